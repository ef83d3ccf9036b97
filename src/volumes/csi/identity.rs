//! Names of CSI volumes, and the checks of names from outside. Pure.

use crate::base::{hex, named_enum};
use crate::model::PodUid;
use crate::volumes::component;
use sha2::{Digest as _, Sha256};

/// Name of the plugin.
pub const PLUGIN: &str = "kubernetes.io/csi";
/// Maximum length of the name of a driver, as the CSI specification says.
const MAX_DRIVER_NAME: usize = 63;
/// Maximum length of a handle in bytes. Handles of migrated volumes are paths, so the 128 bytes of the CSI specification
/// are too few.
const MAX_HANDLE: usize = 4096;
/// The directory of block volumes, beside the directories of drivers.
pub const BLOCK_DIRECTORY: &str = "volumeDevices";
/// Directories in it that are not of one volume.
pub const BLOCK_STAGING: &str = "staging";
/// See [`BLOCK_STAGING`].
pub const BLOCK_PUBLISH: &str = "publish";
/// The names of [`VolumeMode`]s.
pub const FILESYSTEM: &str = "Filesystem";
/// See [`FILESYSTEM`].
pub const BLOCK: &str = "Block";

named_enum! {
    /// How long a volume lives, with the names in upstream's `vol_data.json`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Lifecycle {
        /// Longer than its pods: the volume of a PersistentVolume.
        Persistent = "Persistent",
        /// As long as its pod, which defines it inline.
        Ephemeral = "Ephemeral",
    }
}

/// How pods use the volume of a PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeMode {
    /// As a file system.
    Filesystem,
    /// As a device. Upstream names the directories of such a volume after its PersistentVolume, not after its handle.
    Block {
        /// The PersistentVolume.
        volume: String,
    },
}

impl VolumeMode {
    /// The name in the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Filesystem => FILESYSTEM,
            Self::Block { .. } => BLOCK,
        }
    }
}

/// What identifies a volume on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeIdentity {
    /// The volume of a PersistentVolume.
    Persistent {
        /// The driver.
        driver: String,
        /// The driver's name of the volume.
        handle: String,
        /// How pods use it.
        mode: VolumeMode,
    },
    /// A volume that a pod defines inline.
    Inline {
        /// The driver.
        driver: String,
        /// The pod.
        pod: PodUid,
        /// The volume's name in the pod.
        name: String,
    },
}

impl VolumeIdentity {
    /// A volume of a PersistentVolume, which pods use as a file system.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn persistent(driver: &str, handle: &str) -> Result<Self, InvalidName> {
        Self::with_mode(driver, handle, VolumeMode::Filesystem)
    }

    /// The volume of a PersistentVolume of this name, which pods use as a device.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn block(driver: &str, handle: &str, volume: &str) -> Result<Self, InvalidName> {
        check_device_name(volume)?;
        let volume = volume.to_owned();
        Self::with_mode(driver, handle, VolumeMode::Block { volume })
    }

    fn with_mode(driver: &str, handle: &str, mode: VolumeMode) -> Result<Self, InvalidName> {
        check_driver(driver)?;
        check_handle(handle)?;
        Ok(Self::Persistent { driver: driver.to_owned(), handle: handle.to_owned(), mode })
    }

    /// A volume that a pod defines inline.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn inline(driver: &str, pod: &PodUid, name: &str) -> Result<Self, InvalidName> {
        check_driver(driver)?;
        check_file_name(NameField::PodUid, pod.as_str())?;
        check_file_name(NameField::SpecName, name)?;
        Ok(Self::Inline { driver: driver.to_owned(), pod: pod.clone(), name: name.to_owned() })
    }

    /// The name of the driver.
    pub fn driver(&self) -> &str {
        match self {
            Self::Persistent { driver, .. } | Self::Inline { driver, .. } => driver,
        }
    }

    /// The driver's name of the volume. For an inline volume the kubelet makes it up.
    pub fn handle(&self) -> String {
        match self {
            Self::Persistent { handle, .. } => handle.clone(),
            Self::Inline { pod, name, .. } => {
                format!("csi-{}", sha256_hex(&[pod.as_str(), name]))
            }
        }
    }

    /// How long the volume lives.
    pub fn lifecycle(&self) -> Lifecycle {
        match self {
            Self::Persistent { .. } => Lifecycle::Persistent,
            Self::Inline { .. } => Lifecycle::Ephemeral,
        }
    }

    /// How pods use the volume.
    pub fn mode(&self) -> &VolumeMode {
        match self {
            Self::Persistent { mode, .. } => mode,
            Self::Inline { .. } => &VolumeMode::Filesystem,
        }
    }

    /// Whether pods use it as a device.
    pub fn is_block(&self) -> bool {
        matches!(self.mode(), VolumeMode::Block { .. })
    }

    /// Upstream's unique name of the volume, as in the Node's `volumesInUse` and `volumesAttached`.
    pub fn unique_name(&self) -> String {
        match self {
            Self::Persistent { driver, handle, .. } => format!("{PLUGIN}/{driver}^{handle}"),
            Self::Inline { pod, name, .. } => format!("{PLUGIN}/{pod}-{name}"),
        }
    }
}

/// The SHA-256 of texts run together, as hexadecimal digits.
pub fn sha256_hex(texts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update(text);
    }
    hex(hasher.finalize().iter())
}

/// Which name is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameField {
    /// The name of the driver.
    Driver,
    /// The volume's handle.
    Handle,
    /// The name of the PersistentVolume, or of the inline volume.
    SpecName,
    /// The UID of the pod.
    PodUid,
}

/// Why a name cannot be used. The name itself is not repeated, because it may be long or not printable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field:?} {why}")]
pub struct InvalidName {
    /// Which.
    pub field: NameField,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Whether this is the name of a driver by the specification. Such a name is safe as a component of a path: it is
/// neither empty nor one of `.` and `..`, and has no separator.
pub fn is_driver_name(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    name.len() <= MAX_DRIVER_NAME
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric)
        && name.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '.'))
}

/// Whether this is the unique name of a CSI volume.
pub fn is_csi_volume(unique_name: &str) -> bool {
    let rest = unique_name.strip_prefix(PLUGIN);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Checks the name of a driver, which is part of paths.
///
/// # Errors
/// It is invalid.
pub fn check_driver(name: &str) -> Result<(), InvalidName> {
    let why = |why| InvalidName { field: NameField::Driver, why };
    let is_name = is_driver_name(name) && !name.contains("..");
    match name {
        "" => Err(why("is empty")),
        // Upstream keeps block volumes in a directory of this name.
        BLOCK_DIRECTORY => Err(why("is reserved")),
        _ if name.len() > MAX_DRIVER_NAME => Err(why("is longer than 63 characters")),
        _ if !is_name => Err(why("is not the name of a CSI driver")),
        _ => Ok(()),
    }
}

/// Checks a handle. It never becomes part of a path, only its digest.
///
/// # Errors
/// It is invalid.
pub fn check_handle(handle: &str) -> Result<(), InvalidName> {
    let why = |why| InvalidName { field: NameField::Handle, why };
    match handle {
        "" => Err(why("is empty")),
        _ if handle.len() > MAX_HANDLE => Err(why("is longer than 4096 bytes")),
        _ if handle.contains(char::is_control) => Err(why("has control characters")),
        _ => Ok(()),
    }
}

/// Checks the name of a PersistentVolume or inline volume, or the UID of a pod, which is part of paths.
///
/// # Errors
/// It is invalid.
pub fn check_file_name(field: NameField, name: &str) -> Result<(), InvalidName> {
    let why = |why| InvalidName { field, why };
    if name.is_empty() {
        return Err(why("is empty"));
    }
    let is_clean = component(name).is_ok() && !name.contains(char::is_control);
    if !is_clean {
        return Err(why("cannot be the name of a file"));
    }
    if name.starts_with('.') {
        return Err(why("begins with a dot"));
    }
    Ok(())
}

/// Checks the name of a PersistentVolume that is a device: it stands beside upstream's directories of all such volumes.
///
/// # Errors
/// It is invalid.
pub fn check_device_name(volume: &str) -> Result<(), InvalidName> {
    check_file_name(NameField::SpecName, volume)?;
    if [BLOCK_STAGING, BLOCK_PUBLISH].contains(&volume) {
        return Err(InvalidName { field: NameField::SpecName, why: "is reserved" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::volume_attachment::attachment_name;

    #[test]
    fn names_of_drivers_follow_the_specification() {
        let long = "d".repeat(64);
        for (name, why) in [
            ("ebs.csi.aws.com", None),
            ("D", None),
            ("a-b.c", None),
            ("", Some("is empty")),
            (&long, Some("is longer than 63 characters")),
            (&long[1..], None),
            ("volumeDevices", Some("is reserved")),
            (".", Some("is not the name of a CSI driver")),
            ("..", Some("is not the name of a CSI driver")),
            ("a..b", Some("is not the name of a CSI driver")),
            ("-a", Some("is not the name of a CSI driver")),
            ("a-", Some("is not the name of a CSI driver")),
            ("a/b", Some("is not the name of a CSI driver")),
            ("a_b", Some("is not the name of a CSI driver")),
            ("ä", Some("is not the name of a CSI driver")),
            ("a\n", Some("is not the name of a CSI driver")),
        ] {
            let checked = check_driver(name).err().map(|error| error.why);
            assert_eq!(checked, why, "{name:?}");
        }
    }

    #[test]
    fn handles_are_any_printable_text_of_bounded_length() {
        let long = "h".repeat(MAX_HANDLE + 1);
        for (handle, why) in [
            ("vol-0123", None),
            ("../../etc", None),
            ("[datastore] a/b.vmdk", None),
            ("projects/ä", None),
            ("", Some("is empty")),
            (&long, Some("is longer than 4096 bytes")),
            (&long[1..], None),
            ("a\nb", Some("has control characters")),
            ("a\0b", Some("has control characters")),
        ] {
            let checked = check_handle(handle).err().map(|error| error.why);
            assert_eq!(checked, why, "{handle:?}");
        }
    }

    #[test]
    fn a_name_in_a_path_is_one_visible_component() {
        let long = "n".repeat(256);
        for (name, why) in [
            ("pv-1", None),
            ("-pv", None),
            ("", Some("is empty")),
            (".", Some("cannot be the name of a file")),
            ("..", Some("cannot be the name of a file")),
            ("a/b", Some("cannot be the name of a file")),
            ("a\0", Some("cannot be the name of a file")),
            ("a\n", Some("cannot be the name of a file")),
            (&long, Some("cannot be the name of a file")),
            (".hidden", Some("begins with a dot")),
            ("..data", Some("begins with a dot")),
        ] {
            let checked = check_file_name(NameField::SpecName, name);
            assert_eq!(checked.err().map(|error| error.why), why, "{name:?}");
        }
    }

    #[test]
    fn unique_names_and_handles_are_upstreams() {
        let volume = VolumeIdentity::persistent("d.example", "h^1").unwrap();
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d.example^h^1");
        assert_eq!(volume.handle(), "h^1");
        let inline = VolumeIdentity::inline("d.example", &"u1".into(), "data").unwrap();
        assert_eq!(inline.unique_name(), "kubernetes.io/csi/u1-data");
        let digest = sha256_hex(&["u1data"]);
        assert_eq!(inline.handle(), format!("csi-{digest}"));
        assert_eq!(digest.len(), 64);
        assert_eq!(inline.lifecycle(), Lifecycle::Ephemeral);
        let attachment = attachment_name("h", "d", "n");
        assert_eq!(attachment, format!("csi-{}", sha256_hex(&["hdn"])));
        assert!(VolumeIdentity::inline("d", &"../u".into(), "data").is_err());
        assert!(VolumeIdentity::inline("d", &"u".into(), "a/b").is_err());
        assert!(VolumeIdentity::persistent("d/e", "h").is_err());
        assert!(VolumeIdentity::persistent("d", "").is_err());
    }
}
