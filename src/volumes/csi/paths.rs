//! Paths of CSI volumes below the kubelet's root directory: upstream's, except for the records. Pure.
//!
//! Drivers and names come from a [`VolumeIdentity`] or are checked here.

use super::identity::{
    BLOCK_DIRECTORY, BLOCK_PUBLISH, BLOCK_STAGING, InvalidName, NameField, PLUGIN, VolumeIdentity,
    VolumeMode, check_device_name, check_driver, check_file_name, sha256_hex,
};
use crate::model::PodUid;
use crate::volumes::{KubeletRoot, PodDir};
use std::path::{Path, PathBuf};

/// The directory or mount of the staged volume.
pub const GLOBAL_MOUNT: &str = "globalmount";
/// The directory or mount of the published volume.
pub const MOUNT: &str = "mount";
/// Upstream's file about a volume.
pub const VOL_DATA: &str = "vol_data.json";
/// The directory of that file in the directory of a block volume.
const BLOCK_DATA: &str = "data";
/// The directory of devices in the directory of a block volume.
const BLOCK_MAPS: &str = "dev";

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
pub struct StageDir {
    path: PathBuf,
    target: PathBuf,
    vol_data: PathBuf,
    devices: Option<DeviceDirs>,
}

/// The directories of all pods that have a staged block volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceDirs {
    /// The devices, one per pod.
    pub maps: PathBuf,
    /// What the driver has published, one per pod.
    pub published: PathBuf,
}

impl StageDir {
    /// The directory for a volume.
    pub fn new(root: &KubeletRoot, volume: &VolumeIdentity) -> Self {
        match volume.mode() {
            VolumeMode::Filesystem => {
                let driver = drivers(root).join(volume.driver());
                Self::mounted(driver.join(stage_name(&volume.handle())))
            }
            VolumeMode::Block { volume } => Self::device(root, volume),
        }
    }

    /// The directory of a file system volume that was found, by its driver and name.
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
        Ok(Self::mounted(drivers(root).join(driver).join(name)))
    }

    /// The directory of a block volume that was found, by the name of its PersistentVolume.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn found_block(root: &KubeletRoot, volume: &str) -> Result<Self, InvalidName> {
        check_device_name(volume)?;
        Ok(Self::device(root, volume))
    }

    fn mounted(path: PathBuf) -> Self {
        Self { target: path.join(GLOBAL_MOUNT), vol_data: path.join(VOL_DATA), devices: None, path }
    }

    fn device(root: &KubeletRoot, volume: &str) -> Self {
        let all = block_volumes(root);
        let path = all.join(volume);
        Self {
            target: all.join(BLOCK_STAGING).join(volume),
            vol_data: path.join(BLOCK_DATA).join(VOL_DATA),
            devices: Some(DeviceDirs {
                maps: path.join(BLOCK_MAPS),
                published: all.join(BLOCK_PUBLISH).join(volume),
            }),
            path,
        }
    }

    /// The directory itself. The target of a block volume is elsewhere.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `staging_target_path` of calls.
    pub fn target(&self) -> PathBuf {
        self.target.clone()
    }

    /// Upstream's file.
    pub fn vol_data(&self) -> PathBuf {
        self.vol_data.clone()
    }

    /// The directories of a block volume's devices.
    pub fn devices(&self) -> Option<&DeviceDirs> {
        self.devices.as_ref()
    }
}

/// The directory of one volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublishDir {
    path: PathBuf,
    target: PathBuf,
    device: Option<DevicePaths>,
}

/// Where the kubelet puts the device that a driver has published for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePaths {
    /// The device is bound here; upstream's global map path.
    pub map: PathBuf,
    /// A link to it in the pod's directory, which the container's device is made from.
    pub link: PathBuf,
}

impl PublishDir {
    /// The directory of the file system volume of this PersistentVolume, or of this name in the pod.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(pod: &PodDir, spec_name: &str) -> Result<Self, InvalidName> {
        check_file_name(NameField::SpecName, spec_name)?;
        let path = pod_volumes(pod).join(spec_name);
        Ok(Self { target: path.join(MOUNT), device: None, path })
    }

    /// The directory of the block volume of this PersistentVolume. It has the targets of other pods, too.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn block(
        root: &KubeletRoot,
        pod: &PodDir,
        uid: &PodUid,
        volume: &str,
    ) -> Result<Self, InvalidName> {
        check_device_name(volume)?;
        check_file_name(NameField::PodUid, uid.as_str())?;
        let all = block_volumes(root);
        let path = all.join(BLOCK_PUBLISH).join(volume);
        let maps = all.join(volume).join(BLOCK_MAPS);
        Ok(Self {
            target: path.join(uid.as_str()),
            device: Some(DevicePaths {
                map: maps.join(uid.as_str()),
                link: pod_devices(pod).join(volume),
            }),
            path,
        })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `target_path` of calls.
    pub fn target(&self) -> PathBuf {
        self.target.clone()
    }

    /// Upstream's file beside the target of a file system volume.
    pub fn vol_data(&self) -> PathBuf {
        self.path.join(VOL_DATA)
    }

    /// Where the device of a block volume is.
    pub fn device(&self) -> Option<&DevicePaths> {
        self.device.as_ref()
    }

    /// The path that containers get.
    pub fn for_containers(&self) -> PathBuf {
        let link = self.device.as_ref().map(|device| device.link.clone());
        link.unwrap_or_else(|| self.target())
    }

    /// The path in calls that read the usage.
    pub fn for_stats(&self) -> PathBuf {
        let map = self.device.as_ref().map(|device| device.map.clone());
        map.unwrap_or_else(|| self.target())
    }
}

/// The directory of a pod's CSI volumes. The plugin is not one of `VolumePlugin`, whose directories are removed with
/// all their content.
pub fn pod_volumes(pod: &PodDir) -> PathBuf {
    pod.volumes().join(PLUGIN.replace('/', "~"))
}

/// The directory with links to the devices of a pod's CSI volumes.
pub fn pod_devices(pod: &PodDir) -> PathBuf {
    let devices = pod.path().join(BLOCK_DIRECTORY);
    devices.join(PLUGIN.replace('/', "~"))
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
    fn paths_of_block_volumes_are_upstreams() {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(base.path()).unwrap();
        let volume = VolumeIdentity::block("d.example", "../../h", "pv1").unwrap();
        let stage = StageDir::new(&root, &volume);
        let uid = "u1".into();
        let pod = root.pod(&uid).unwrap();
        let publish = PublishDir::block(&root, &pod, &uid, "pv1").unwrap();
        let (dirs, device) = (stage.devices().unwrap(), publish.device().unwrap());
        let all = "plugins/kubernetes.io/csi/volumeDevices";
        for (found, expected) in [
            (stage.path(), format!("{all}/pv1")),
            (&stage.target(), format!("{all}/staging/pv1")),
            (&stage.vol_data(), format!("{all}/pv1/data/vol_data.json")),
            (&dirs.maps, format!("{all}/pv1/dev")),
            (&dirs.published, format!("{all}/publish/pv1")),
            (publish.path(), format!("{all}/publish/pv1")),
            (&publish.target(), format!("{all}/publish/pv1/u1")),
            (&device.map, format!("{all}/pv1/dev/u1")),
            (&device.link, "pods/u1/volumeDevices/kubernetes.io~csi/pv1".to_owned()),
        ] {
            assert_eq!(found, root.path().join(expected));
        }
        assert_eq!(StageDir::found_block(&root, "pv1"), Ok(stage));
        assert_eq!(publish.for_containers(), device.link);
        assert_eq!(publish.for_stats(), device.map);
        for name in ["", "..", "staging", "publish"] {
            assert!(VolumeIdentity::block("d", "h", name).is_err(), "{name}");
            assert!(StageDir::found_block(&root, name).is_err(), "{name}");
            assert!(PublishDir::block(&root, &pod, &uid, name).is_err(), "{name}");
        }
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
