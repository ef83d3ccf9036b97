//! Upstream's `vol_data.json`, one beside each staged and one beside each published volume. Blocking.
//!
//! A Go kubelet that takes over the node finds its volumes by these files, and this one finds the volumes of a Go kubelet. They
//! are written before a call and removed after its undo. Upstream writes them without a rename, so that they may be empty
//! or cut short: then they say nothing, and are never trusted in part.

use super::files::{self, ReadError};
use super::identity::{InvalidName, Lifecycle, VolumeIdentity};
use super::paths::{self, PublishDir, StageDir};
use crate::apiserver::volume_attachment::attachment_name;
use crate::base::atomic_file;
use crate::model::PodUid;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Maximum size of a file: a handle of 4 KiB, with escapes.
const MAX_SIZE: u64 = 64 * 1024;
/// As upstream's files.
const MODE: u32 = 0o644;

const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const SPEC_NAME: &str = "specVolID";
const NODE: &str = "nodeName";
const ATTACHMENT: &str = "attachmentID";
const LIFECYCLE: &str = "volumeLifecycleMode";
const SELINUX: &str = "seLinuxMountContext";

/// The file beside a staged volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageData {
    /// The volume.
    pub identity: VolumeIdentity,
    /// The SELinux context that it is mounted with.
    pub selinux: Option<String>,
}

/// The file beside a published volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishData {
    /// The volume.
    pub identity: VolumeIdentity,
    /// Name of the PersistentVolume, or of the inline volume.
    pub spec_name: String,
    /// Name of the node.
    pub node: String,
    /// The SELinux context that it is mounted with.
    pub selinux: Option<String>,
}

/// Why a file is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolDataError {
    /// It is no regular file, or too large, or its content is invalid. Nothing will make it valid.
    #[error("vol_data.json {0}")]
    Damaged(String),
    /// It describes a volume that does not belong into its directory.
    #[error("vol_data.json is of another {0}")]
    Contradicts(&'static str),
    /// It cannot be read now.
    #[error("vol_data.json cannot be read: {0}")]
    Unreadable(String),
}

/// Writes the file of a staged volume. The directory has to exist.
///
/// # Errors
/// The system's error.
pub fn write_staged(directory: &StageDir, data: &StageData) -> io::Result<()> {
    let handle = data.identity.handle();
    let fields = [(HANDLE, handle.as_str()), (DRIVER, data.identity.driver())];
    write(&directory.vol_data(), &fields, data.selinux.as_deref())
}

/// Writes the file of a published volume. The directory has to exist.
///
/// # Errors
/// The system's error.
pub fn write_published(directory: &PublishDir, data: &PublishData) -> io::Result<()> {
    let handle = data.identity.handle();
    let driver = data.identity.driver();
    let attachment = attachment_name(&handle, driver, &data.node);
    let fields = [
        (SPEC_NAME, data.spec_name.as_str()),
        (HANDLE, &handle),
        (DRIVER, driver),
        (NODE, &data.node),
        // Upstream computes it even for a volume that is not attached.
        (ATTACHMENT, &attachment),
        (LIFECYCLE, data.identity.lifecycle().as_str()),
    ];
    write(&directory.vol_data(), &fields, data.selinux.as_deref())
}

/// Writes the file of a block volume. Its directory has to exist.
///
/// # Errors
/// The system's error.
pub fn write_block(directory: &StageDir, data: &PublishData) -> io::Result<()> {
    let handle = data.identity.handle();
    let driver = data.identity.driver();
    let fields = [
        (SPEC_NAME, data.spec_name.as_str()),
        (HANDLE, &handle),
        (DRIVER, driver),
        (NODE, &data.node),
        (ATTACHMENT, &attachment_name(&handle, driver, &data.node)),
    ];
    write(&directory.vol_data(), &fields, None)
}

fn write(path: &Path, fields: &[(&str, &str)], selinux: Option<&str>) -> io::Result<()> {
    let selinux = selinux.filter(|context| !context.is_empty());
    let fields = fields.iter().copied();
    let fields: BTreeMap<_, _> = fields.chain(selinux.map(|context| (SELINUX, context))).collect();
    let mut text = serde_json::to_vec(&fields)?;
    text.push(b'\n');
    atomic_file::write_synced(path, &text, MODE)
}

/// Reads the file of a staged volume in the directory of `driver` with this name; `None` if it does not exist.
///
/// # Errors
/// See [`VolDataError`].
pub fn read_staged(
    directory: &StageDir,
    driver: &str,
    name: &str,
) -> Result<Option<StageData>, VolDataError> {
    let Some(fields) = read(&directory.vol_data())? else {
        return Ok(None);
    };
    let identity = persistent(&fields)?;
    if identity.driver() != driver {
        return Err(VolDataError::Contradicts("driver"));
    }
    if paths::stage_name(&identity.handle()) != name {
        return Err(VolDataError::Contradicts("volume"));
    }
    let selinux = text(&fields, SELINUX).ok().map(str::to_owned);
    Ok(Some(StageData { identity, selinux }))
}

/// Reads a published volume's file in the pod's directory of this name; `None` if it does not exist.
///
/// # Errors
/// See [`VolDataError`].
pub fn read_published(
    directory: &PublishDir,
    pod: &PodUid,
    spec_name: &str,
) -> Result<Option<PublishData>, VolDataError> {
    let Some(fields) = read(&directory.vol_data())? else {
        return Ok(None);
    };
    let recorded = text(&fields, SPEC_NAME)?;
    if recorded != spec_name {
        return Err(VolDataError::Contradicts("volume"));
    }
    // Files of old kubelets have no lifecycle.
    let lifecycle = text(&fields, LIFECYCLE).unwrap_or(Lifecycle::Persistent.as_str());
    let identity = match Lifecycle::parse(lifecycle) {
        Some(Lifecycle::Persistent) => persistent(&fields)?,
        Some(Lifecycle::Ephemeral) => {
            let inline = VolumeIdentity::inline(text(&fields, DRIVER)?, pod, spec_name);
            let inline = inline.map_err(|error| VolDataError::Damaged(error.to_string()))?;
            if text(&fields, HANDLE)? != inline.handle() {
                return Err(VolDataError::Contradicts("pod"));
            }
            inline
        }
        None => return Err(damaged("has an unknown lifecycle")),
    };
    Ok(Some(PublishData {
        identity,
        spec_name: spec_name.to_owned(),
        node: text(&fields, NODE).unwrap_or_default().to_owned(),
        selinux: text(&fields, SELINUX).ok().map(str::to_owned),
    }))
}

/// Reads the file of the block volume of this PersistentVolume; `None` if it does not exist.
///
/// # Errors
/// See [`VolDataError`].
pub fn read_block(
    directory: &StageDir,
    volume: &str,
) -> Result<Option<VolumeIdentity>, VolDataError> {
    let Some(fields) = read(&directory.vol_data())? else {
        return Ok(None);
    };
    if text(&fields, SPEC_NAME)? != volume {
        return Err(VolDataError::Contradicts("volume"));
    }
    let block = VolumeIdentity::block(text(&fields, DRIVER)?, text(&fields, HANDLE)?, volume);
    block.map(Some).map_err(invalid_name)
}

fn read(path: &Path) -> Result<Option<Map<String, Value>>, VolDataError> {
    let text = match files::read_small(path, MAX_SIZE) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(ReadError::Io(error)) => return Err(VolDataError::Unreadable(error.to_string())),
        Err(error) => return Err(VolDataError::Damaged(error.to_string())),
    };
    if text.is_empty() {
        return Err(damaged("is empty"));
    }
    match serde_json::from_slice(&text) {
        Ok(fields) => Ok(Some(fields)),
        Err(error) => Err(VolDataError::Damaged(format!("is invalid: {error}"))),
    }
}

fn persistent(fields: &Map<String, Value>) -> Result<VolumeIdentity, VolDataError> {
    let volume = VolumeIdentity::persistent(text(fields, DRIVER)?, text(fields, HANDLE)?);
    volume.map_err(invalid_name)
}

fn invalid_name(error: InvalidName) -> VolDataError {
    VolDataError::Damaged(format!("has an invalid name: {error}"))
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, VolDataError> {
    let value = fields.get(name).and_then(Value::as_str);
    let value = value.filter(|value| !value.is_empty());
    value.ok_or_else(|| VolDataError::Damaged(format!("has no {name}")))
}

fn damaged(why: &str) -> VolDataError {
    VolDataError::Damaged(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::KubeletRoot;
    use crate::volumes::csi::identity::sha256_hex;
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn root() -> (tempfile::TempDir, KubeletRoot) {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(base.path()).unwrap();
        (base, root)
    }

    fn volume() -> VolumeIdentity {
        VolumeIdentity::persistent("d.example", "h1").unwrap()
    }

    fn staged(root: &KubeletRoot) -> StageDir {
        let directory = StageDir::new(root, &volume());
        files::create_directory(root, directory.path()).unwrap();
        directory
    }

    fn published(root: &KubeletRoot, name: &str) -> PublishDir {
        let directory = PublishDir::new(&root.pod(&"u1".into()).unwrap(), name).unwrap();
        files::create_directory(root, directory.path()).unwrap();
        directory
    }

    #[test]
    fn the_files_are_upstreams() {
        let (_base, root) = root();
        let directory = staged(&root);
        let data = StageData { identity: volume(), selinux: None };
        write_staged(&directory, &data).unwrap();
        let text = fs::read_to_string(directory.vol_data()).unwrap();
        assert_eq!(text, "{\"driverName\":\"d.example\",\"volumeHandle\":\"h1\"}\n");
        let mode = fs::metadata(directory.vol_data()).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o644);
        let name = sha256_hex(&["h1"]);
        assert_eq!(read_staged(&directory, "d.example", &name), Ok(Some(data)));

        let directory = published(&root, "pv1");
        let data = PublishData {
            identity: volume(),
            spec_name: "pv1".into(),
            node: "node1".into(),
            selinux: Some("system_u:object_r:container_file_t:s0".into()),
        };
        write_published(&directory, &data).unwrap();
        let text = fs::read(directory.vol_data()).unwrap();
        let text: Value = serde_json::from_slice(&text).unwrap();
        let expected = json!({
            "specVolID": "pv1", "volumeHandle": "h1", "driverName": "d.example",
            "nodeName": "node1", "volumeLifecycleMode": "Persistent",
            "attachmentID": format!("csi-{}", sha256_hex(&["h1d.examplenode1"])),
            "seLinuxMountContext": "system_u:object_r:container_file_t:s0",
        });
        assert_eq!(text, expected);
        assert_eq!(read_published(&directory, &"u1".into(), "pv1"), Ok(Some(data)));
    }

    #[test]
    fn the_file_of_a_block_volume_is_upstreams() {
        let (_base, root) = root();
        let volume = VolumeIdentity::block("d.example", "h1", "pv1").unwrap();
        let directory = StageDir::new(&root, &volume);
        let path = directory.vol_data();
        files::create_directory(&root, path.parent().unwrap()).unwrap();
        assert_eq!(read_block(&directory, "pv1"), Ok(None));
        let data = PublishData {
            identity: volume.clone(),
            spec_name: "pv1".into(),
            node: "node1".into(),
            selinux: None,
        };
        write_block(&directory, &data).unwrap();
        let text: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let expected = json!({
            "specVolID": "pv1", "volumeHandle": "h1", "driverName": "d.example",
            "nodeName": "node1",
            "attachmentID": format!("csi-{}", sha256_hex(&["h1d.examplenode1"])),
        });
        assert_eq!(text, expected);
        assert_eq!(read_block(&directory, "pv1"), Ok(Some(volume)));
        let other = Err(VolDataError::Contradicts("volume"));
        assert_eq!(read_block(&directory, "pv2"), other);
    }

    #[test]
    fn an_inline_volume_is_of_its_pod() {
        let (_base, root) = root();
        let directory = published(&root, "data");
        let data = PublishData {
            identity: VolumeIdentity::inline("d.example", &"u1".into(), "data").unwrap(),
            spec_name: "data".into(),
            node: "node1".into(),
            selinux: None,
        };
        write_published(&directory, &data).unwrap();
        let of = |uid: &str| read_published(&directory, &uid.into(), "data");
        assert_eq!(of("u1"), Ok(Some(data)));
        assert_eq!(of("u2"), Err(VolDataError::Contradicts("pod")));
    }

    #[test]
    fn a_file_that_is_damaged_or_of_another_volume_is_not_trusted() {
        let (_base, root) = root();
        let directory = staged(&root);
        let name = sha256_hex(&["h1"]);
        let read = || match read_staged(&directory, "d.example", &name) {
            Ok(Some(_)) => "read".to_owned(),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(read(), "none");
        let large = format!("{{\"x\":\"{}\"}}", "y".repeat(64 * 1024));
        for (text, why) in [
            ("", "vol_data.json is empty"),
            ("{\"driverName\":\"d.ex", "vol_data.json is invalid"),
            ("[]", "vol_data.json is invalid"),
            ("{}", "vol_data.json has no driverName"),
            (r#"{"driverName":"d.example","volumeHandle":1}"#, "vol_data.json has no volumeHandle"),
            (r#"{"driverName":"..","volumeHandle":"h1"}"#, "vol_data.json has an invalid name"),
            (r#"{"driverName":"e","volumeHandle":"h1"}"#, "vol_data.json is of another driver"),
            (
                r#"{"driverName":"d.example","volumeHandle":"h2"}"#,
                "vol_data.json is of another volume",
            ),
            (&large, "vol_data.json is larger than"),
            (r#"{"driverName":"d.example","volumeHandle":"h1","new":{}}"#, "read"),
        ] {
            fs::write(directory.vol_data(), text).unwrap();
            assert!(read().starts_with(why), "{why}: {}", read());
        }
        let moved = directory.path().join("moved");
        fs::rename(directory.vol_data(), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, directory.vol_data()).unwrap();
        assert_eq!(read(), "vol_data.json is not a regular file");
    }

    #[test]
    fn a_published_volume_is_that_of_its_directory() {
        let (_base, root) = root();
        let directory = published(&root, "pv1");
        let read = |text: Value| {
            fs::write(directory.vol_data(), text.to_string()).unwrap();
            read_published(&directory, &"u1".into(), "pv1")
        };
        let old = json!({"specVolID": "pv1", "driverName": "d.example", "volumeHandle": "h1"});
        assert_eq!(read(old).unwrap().unwrap().identity, volume());
        let other = json!({"specVolID": "pv2", "driverName": "d.example", "volumeHandle": "h1"});
        assert_eq!(read(other), Err(VolDataError::Contradicts("volume")));
        let odd = json!({"specVolID": "pv1", "volumeLifecycleMode": "Odd"});
        assert_eq!(read(odd), Err(damaged("has an unknown lifecycle")));
    }
}
