//! Where things are below the kubelet's root directory; the same places as upstream's.

use crate::model::PodUid;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A name from outside that cannot be one path component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a file")]
pub struct UnsafeName(pub String);

/// Returns the name if it is exactly one ordinary path component.
pub fn component(name: &str) -> Result<&str, UnsafeName> {
    let fine = !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0']);
    if fine {
        Ok(name)
    } else {
        Err(UnsafeName(name.chars().take(64).collect()))
    }
}

/// The root directory (`/var/lib/kubelet`), free of links so that it compares with mount points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRoot(Arc<Path>);

impl KubeletRoot {
    /// Makes the directory (0750) and its `pods` where they are missing. Blocking.
    pub fn create(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(path.join("pods"))?;
        Ok(Self(fs::canonicalize(path)?.into()))
    }

    /// The root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `pods`, which holds one directory per pod UID.
    pub fn pods_dir(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Where devices of `local` volumes are mounted, each at the name of its volume.
    pub fn local_devices(&self) -> PathBuf {
        let plugins = self.0.join("plugins");
        plugins.join(VolumePlugin::Local.name()).join("mounts")
    }

    /// `seccomp`, below which Localhost profiles are.
    pub fn seccomp_dir(&self) -> PathBuf {
        self.0.join("seccomp")
    }

    /// The places of one pod.
    pub fn pod(&self, uid: &PodUid) -> Result<PodDir, UnsafeName> {
        Ok(PodDir(self.pods_dir().join(component(uid.as_str())?)))
    }
}

/// `pods/<uid>` and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDir(PathBuf);

/// The kinds of volumes that the kubelet makes below a pod's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumePlugin {
    /// emptyDir.
    EmptyDir,
    /// configMap.
    ConfigMap,
    /// secret.
    Secret,
    /// projected.
    Projected,
    /// downwardAPI.
    DownwardApi,
    /// A persistent volume of kind local: of a device, or with options.
    Local,
}

impl VolumePlugin {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::EmptyDir,
        Self::ConfigMap,
        Self::Secret,
        Self::Projected,
        Self::DownwardApi,
        Self::Local,
    ];

    /// Upstream's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io/empty-dir",
            Self::ConfigMap => "kubernetes.io/configmap",
            Self::Secret => "kubernetes.io/secret",
            Self::Projected => "kubernetes.io/projected",
            Self::DownwardApi => "kubernetes.io/downward-api",
            Self::Local => "kubernetes.io/local-volume",
        }
    }

    /// The name as a directory's.
    pub(super) fn directory(self) -> String {
        self.name().replace('/', "~")
    }
}

/// The managed hosts file of a pod below this root directory.
///
/// # Errors
/// The UID is not a file name.
pub fn hosts_file(root: &Path, uid: &PodUid) -> Result<PathBuf, UnsafeName> {
    let root = KubeletRoot(root.into());
    Ok(root.pod(uid)?.hosts_file())
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

    /// Directory of one container, where its termination logs are.
    pub fn container(&self, name: &str) -> Result<PathBuf, UnsafeName> {
        Ok(self.0.join("containers").join(component(name)?))
    }

    /// All volumes.
    pub fn volumes(&self) -> PathBuf {
        self.0.join("volumes")
    }

    /// Volume plugins' notes.
    pub fn plugins(&self) -> PathBuf {
        self.0.join("plugins")
    }

    /// All volumes of one kind.
    pub fn volumes_of(&self, plugin: VolumePlugin) -> PathBuf {
        self.volumes().join(plugin.directory())
    }

    /// One volume.
    pub fn volume(&self, plugin: VolumePlugin, volume: &str) -> Result<PathBuf, UnsafeName> {
        Ok(self.volumes_of(plugin).join(component(volume)?))
    }

    /// What is written down about all volumes before they are made.
    pub fn volume_records(&self) -> PathBuf {
        self.0.join("volumes.json")
    }

    /// Notes about all emptyDir volumes.
    pub fn empty_dir_notes(&self) -> PathBuf {
        self.plugins().join(VolumePlugin::EmptyDir.directory())
    }

    /// Directory whose file `ready` says that an emptyDir volume was set up.
    pub fn empty_dir_note(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        Ok(self.empty_dir_notes().join(component(volume)?))
    }

    /// Directory whose file `ready` says that a volume of the node was given to the pod's group.
    pub fn ownership_note(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        self.empty_dir_note(&format!("owned_{volume}"))
    }

    /// Directory whose file `ready` says what the volume of a claim is.
    pub fn claim_note(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        self.empty_dir_note(&format!("claim_{volume}"))
    }

    /// Directory whose file `ready` says that a volume of files was set up.
    pub fn content_note(&self, volume: &str) -> Result<PathBuf, UnsafeName> {
        self.empty_dir_note(&format!("wrapped_{volume}"))
    }

    /// All places where sub-paths of volumes are bound.
    pub fn sub_paths(&self) -> PathBuf {
        self.0.join("volume-subpaths")
    }

    /// Where one sub-path of a volume is bound for a container.
    pub fn sub_path(
        &self,
        volume: &str,
        container: &str,
        mount_index: usize,
    ) -> Result<PathBuf, UnsafeName> {
        let directory = self.sub_paths().join(component(volume)?);
        Ok(directory
            .join(component(container)?)
            .join(mount_index.to_string()))
    }
}
