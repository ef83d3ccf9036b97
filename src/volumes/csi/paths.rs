//! Paths of CSI volumes below the kubelet's root directory: upstream's, except for the records. Pure.
//!
//! Drivers and names come from a [`VolumeIdentity`] or are checked here.

use super::identity::{
    BLOCK_DIRECTORY, InvalidName, NameField, PLUGIN, VolumeIdentity, check_driver, check_file_name,
    sha256_hex,
};
use crate::volumes::{KubeletRoot, PodDir};
use std::path::{Path, PathBuf};

/// The directory or mount of the staged volume.
pub const GLOBAL_MOUNT: &str = "globalmount";
/// The directory or mount of the published volume.
pub const MOUNT: &str = "mount";
/// Upstream's file about a volume.
pub const VOL_DATA: &str = "vol_data.json";

/// The directory of drivers. Each driver has a directory with its staged volumes.
pub fn drivers(root: &KubeletRoot) -> PathBuf {
    root.path().join("plugins").join(PLUGIN)
}

/// Upstream's directory of block volumes.
pub fn block_volumes(root: &KubeletRoot) -> PathBuf {
    drivers(root).join(BLOCK_DIRECTORY)
}

/// The name of the directory of a staged volume: a digest, because a handle may be long and contain anything.
pub fn stage_name(handle: &str) -> String {
    sha256_hex(&[handle])
}

/// The directory of a staged volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StageDir(PathBuf);

impl StageDir {
    /// The directory for a volume.
    pub fn new(root: &KubeletRoot, volume: &VolumeIdentity) -> Self {
        let driver = drivers(root).join(volume.driver());
        Self(driver.join(stage_name(&volume.handle())))
    }

    /// A directory that was found, by its driver and name.
    ///
    /// # Errors
    /// The driver is invalid, or the name is not a digest.
    pub fn found(root: &KubeletRoot, driver: &str, name: &str) -> Result<Self, InvalidName> {
        check_driver(driver)?;
        if !is_digest(name) {
            return Err(InvalidName {
                field: NameField::Handle,
                why: "is not the digest of a handle",
            });
        }
        Ok(Self(drivers(root).join(driver).join(name)))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `staging_target_path` of calls.
    pub fn target(&self) -> PathBuf {
        self.0.join(GLOBAL_MOUNT)
    }

    /// Upstream's file.
    pub fn vol_data(&self) -> PathBuf {
        self.0.join(VOL_DATA)
    }
}

/// The directory of one volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublishDir(PathBuf);

impl PublishDir {
    /// The directory of the volume of this PersistentVolume, or of this name in the pod.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(pod: &PodDir, spec_name: &str) -> Result<Self, InvalidName> {
        check_file_name(NameField::SpecName, spec_name)?;
        Ok(Self(pod_volumes(pod).join(spec_name)))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `target_path` of calls.
    pub fn target(&self) -> PathBuf {
        self.0.join(MOUNT)
    }

    /// Upstream's file.
    pub fn vol_data(&self) -> PathBuf {
        self.0.join(VOL_DATA)
    }
}

/// The directory of a pod's CSI volumes. The plugin is not one of `VolumePlugin`, whose directories are removed with
/// all their content.
pub fn pod_volumes(pod: &PodDir) -> PathBuf {
    pod.volumes().join(PLUGIN.replace('/', "~"))
}

/// The directory of this kubelet's records, one file per volume. It is not in upstream's directories, because upstream
/// removes those only when they are empty.
pub fn records(root: &KubeletRoot) -> PathBuf {
    root.path().join("csi_volumes")
}

/// The file name of the record of the volume with this unique name.
pub fn record_name(unique_name: &str) -> String {
    format!("{}.json", sha256_hex(&[unique_name]))
}

/// Whether a name has the form of a SHA-256.
pub fn is_digest(name: &str) -> bool {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    name.len() == 64 && name.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_upstreams() {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(base.path()).unwrap();
        let path = root.path();
        let volume = VolumeIdentity::persistent("d.example", "../../h").unwrap();
        let digest = sha256_hex(&["../../h"]);
        let stage = StageDir::new(&root, &volume);
        let expected = path.join(format!("plugins/kubernetes.io/csi/d.example/{digest}"));
        assert_eq!(stage.target(), expected.join("globalmount"));
        assert_eq!(stage.vol_data(), expected.join("vol_data.json"));
        assert_eq!(StageDir::found(&root, "d.example", &digest), Ok(stage));
        let pod = root.pod(&"u1".into()).unwrap();
        let publish = PublishDir::new(&pod, "pv1").unwrap();
        let expected = path.join("pods/u1/volumes/kubernetes.io~csi/pv1");
        assert_eq!(publish.target(), expected.join("mount"));
        assert_eq!(publish.vol_data(), expected.join("vol_data.json"));
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(base.path()).unwrap();
        let digest = sha256_hex(&["h"]);
        for (driver, name) in [
            ("..", digest.as_str()),
            ("volumeDevices", &digest),
            ("d", ".."),
            ("d", "globalmount"),
            ("d", &digest.to_uppercase()),
        ] {
            assert!(StageDir::found(&root, driver, name).is_err(), "{driver}");
        }
        let pod = root.pod(&"u1".into()).unwrap();
        for name in ["", "..", "a/b", ".hidden"] {
            assert!(PublishDir::new(&pod, name).is_err(), "{name}");
        }
    }
}
