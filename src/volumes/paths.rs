//! Paths below the kubelet's root directory. They are upstream's, except for the record of volumes and the markers of
//! ownership and claims.

use crate::base::if_exists;
use crate::model::PodUid;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// Prefix of the names of claim markers; names of volumes have no underscore.
pub(super) const CLAIM_PREFIX: &str = "claim_";

/// The directory of mounted devices, below that of a plugin.
pub(super) const MOUNTS: &str = "mounts";

/// A name that is not a valid path component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a file")]
pub struct UnsafeName(pub String);

/// Returns the name if it is a single normal path component.
pub fn component(name: &str) -> Result<&str, UnsafeName> {
    let fine = !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0']);
    if fine { Ok(name) } else { Err(UnsafeName(name.chars().take(64).collect())) }
}

/// The root directory (`/var/lib/kubelet`), with symbolic links resolved so that it can be compared with mount
/// points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRoot(Arc<Path>);

impl KubeletRoot {
    /// Creates the directory (0750) and `pods` in it if they are missing. Blocking.
    pub fn create(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o750).create(path.join("pods"))?;
        Ok(Self(fs::canonicalize(path)?.into()))
    }

    /// An existing root, of which nothing is created.
    pub fn existing(path: &Path) -> io::Result<Self> {
        Ok(Self(fs::canonicalize(path)?.into()))
    }

    /// The root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `pods`, with one directory per pod UID.
    pub fn pods_dir(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Where devices of `local` volumes are mounted, each below the name of its PersistentVolume.
    pub fn local_devices(&self) -> PathBuf {
        let plugins = self.0.join("plugins");
        plugins.join(VolumePlugin::LOCAL.0).join(MOUNTS)
    }

    /// Where the device of a flexVolume driver is mounted.
    pub(super) fn flex_device(&self, device: &FlexDevice) -> PathBuf {
        let directory = self.flex_directory().join(&device.driver);
        directory.join(MOUNTS).join(&device.name)
    }

    fn flex_directory(&self) -> PathBuf {
        self.0.join("plugins/kubernetes.io/flexvolume")
    }

    /// The devices of flexVolume drivers that have a directory. Blocking.
    ///
    /// # Errors
    /// A directory cannot be read, so there may be more of them.
    pub(super) fn flex_devices(&self) -> io::Result<Vec<FlexDevice>> {
        let directory = self.flex_directory();
        let mut drivers = Vec::new();
        for vendor in names_in(&directory)? {
            for driver in names_in(&directory.join(&vendor))? {
                if driver != MOUNTS {
                    drivers.push(format!("{vendor}/{driver}"));
                }
            }
            // A driver may have no vendor.
            drivers.push(vendor);
        }
        let mut devices = Vec::new();
        for driver in drivers {
            let names = names_in(&directory.join(&driver).join(MOUNTS))?;
            devices.extend(names.iter().map(|name| FlexDevice::new(&driver, name)));
        }
        Ok(devices)
    }

    /// `seccomp`, the directory of Localhost profiles.
    pub fn seccomp_dir(&self) -> PathBuf {
        self.0.join("seccomp")
    }

    /// The directory of a pod.
    pub fn pod(&self, uid: &PodUid) -> Result<PodDir, UnsafeName> {
        Ok(PodDir(self.pods_dir().join(component(uid.as_str())?)))
    }
}

/// The names in a directory; none if it is missing or a file. Other names than UTF-8 are not the kubelet's.
fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        entries => if_exists(entries)?,
    };
    let mut names = Vec::new();
    for entry in entries.into_iter().flatten() {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// An attached volume of a flexVolume driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlexDevice {
    pub(super) driver: String,
    /// Name of the PersistentVolume, or of the pod's volume.
    pub(super) name: String,
}

impl FlexDevice {
    pub(super) fn new(driver: &str, name: &str) -> Self {
        Self { driver: driver.to_owned(), name: name.to_owned() }
    }

    /// Upstream's unique name of the volume.
    pub(super) fn unique_name(&self) -> String {
        format!("{}/{}", self.driver, self.name)
    }
}

/// `pods/<uid>` and the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDir(PathBuf);

/// A volume plugin that creates volumes below a pod's directory, by upstream's name. Each kind has its own; those that
/// paths and files of other kinds depend on are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePlugin(pub(super) &'static str);

impl VolumePlugin {
    /// emptyDir. Its directories also have the markers of other plugins.
    pub(super) const EMPTY_DIR: Self = Self("kubernetes.io/empty-dir");
    /// local, of a block device or with mount options.
    pub(super) const LOCAL: Self = Self("kubernetes.io/local-volume");

    /// The plugin name as directory name, with `~` for `/`.
    pub(super) fn directory(self) -> String {
        self.0.replace('/', "~")
    }
}

/// The managed hosts file of a pod.
///
/// # Errors
/// The UID is not a file name.
pub fn hosts_file(root: &Path, uid: &PodUid) -> Result<PathBuf, UnsafeName> {
    let root = KubeletRoot(root.into());
    Ok(root.pod(uid)?.hosts_file())
}

/// The directory of a container's termination logs.
///
/// # Errors
/// The UID or the name is not a file name.
pub fn termination_logs(root: &Path, uid: &PodUid, container: &str) -> Result<PathBuf, UnsafeName> {
    let root = KubeletRoot(root.into());
    root.pod(uid)?.container(container)
}

impl PodDir {
    #[cfg(test)]
    pub(super) fn at(path: &Path) -> Self {
        Self(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The managed hosts file.
    pub fn hosts_file(&self) -> PathBuf {
        self.0.join("etc-hosts")
    }

    /// The directory of a container, with its termination logs.
    pub fn container(&self, name: &str) -> Result<PathBuf, UnsafeName> {
        Ok(self.0.join("containers").join(component(name)?))
    }

    /// `volumes`
    pub fn volumes(&self) -> PathBuf {
        self.0.join("volumes")
    }

    /// `plugins`, the directory for markers of volume plugins.
    pub fn plugins(&self) -> PathBuf {
        self.0.join("plugins")
    }

    /// The directory of all volumes of one plugin.
    pub fn volumes_of(&self, plugin: VolumePlugin) -> PathBuf {
        self.volumes().join(plugin.directory())
    }

    /// The directory of one volume.
    pub fn volume(&self, plugin: VolumePlugin, volume: &str) -> Result<PathBuf, UnsafeName> {
        Ok(self.volumes_of(plugin).join(component(volume)?))
    }

    /// The record of the pod's volumes, written before volumes are created.
    pub fn volume_records(&self) -> PathBuf {
        self.0.join("volumes.json")
    }

    /// The directory of the markers of all emptyDir volumes.
    pub fn empty_dir_markers(&self) -> PathBuf {
        self.plugins().join(VolumePlugin::EMPTY_DIR.directory())
    }

    /// Directory whose file `ready` marks an emptyDir volume as set up.
    pub fn empty_dir_marker(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        Ok(self.empty_dir_markers().join(component(volume)?))
    }

    /// Directory whose file `ready` records that the group of a volume's files was changed.
    pub fn ownership_marker(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        self.empty_dir_marker(&format!("owned_{volume}"))
    }

    /// Directory whose file `ready` records the volume of a claim.
    pub fn claim_marker(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        self.empty_dir_marker(&format!("{CLAIM_PREFIX}{volume}"))
    }

    /// Directory whose file `ready` marks a content volume as set up.
    pub fn content_marker(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        self.empty_dir_marker(&format!("wrapped_{volume}"))
    }

    /// `volume-subpaths`, the directory of bind mounts of sub-paths.
    pub fn sub_paths(&self) -> PathBuf {
        self.0.join("volume-subpaths")
    }

    /// Where one sub-path of a volume is bind-mounted for a container.
    pub fn sub_path(
        &self,
        spec_name: &str,
        container: &str,
        mount_index: usize,
    ) -> Result<PathBuf, UnsafeName> {
        let directory = self.sub_paths().join(component(spec_name)?);
        Ok(directory.join(component(container)?).join(mount_index.to_string()))
    }
}
