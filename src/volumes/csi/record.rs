//! This kubelet's records of CSI volumes: one file per volume of the node. Blocking.
//!
//! A record is written before the volume is staged and before it is published, and removed once it is unstaged. So the
//! next kubelet knows what may have to be undone, also if the call never returned, and also for a volume that is staged
//! without a pod. Records have no secrets, and nothing from the driver.
//!
//! A record that cannot be read, or is of another version, is never replaced or removed: its volume stays in use. An
//! older kubelet finds such records after a rollback.

use super::expansion::decision::NodeSize;
use super::files::{self, ReadError};
use super::identity::{
    BLOCK, FILESYSTEM, Lifecycle, NameField, VolumeIdentity, check_file_name, sha256_hex,
};
use super::paths;
use crate::base::{atomic_file, error_chain, if_exists};
use crate::model::PodUid;
use crate::volumes::KubeletRoot;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{fs, io};

/// The version of the format.
const VERSION: u64 = 1;
/// Maximum size of a record: a thousand pods.
const MAX_SIZE: u64 = 1024 * 1024;

/// What this kubelet has of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// The volume.
    pub identity: VolumeIdentity,
    /// Name of the PersistentVolume, or of the inline volume.
    pub spec_name: String,
    /// A controller had to attach it.
    pub attach_required: bool,
    /// A stage began and is not known to be undone.
    pub is_staged: bool,
    /// The pods for which a publish began that is not known to be undone, with the name of their volume directory.
    pub pods: BTreeMap<PodUid, String>,
    /// The group that all files of the volume have been given to since it was staged.
    pub owner_group: Option<u32>,
    /// The size that the node has reached; `None` if it is not known.
    pub size: Option<NodeSize>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordFile {
    version: u64,
    driver: String,
    handle: String,
    lifecycle: String,
    spec_name: String,
    attach_required: bool,
    mode: String,
    staged: bool,
    pods: Vec<PodEntry>,
    /// Kubelets that do not know it give the files to the group again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_group: Option<u32>,
    /// Kubelets that do not know it take the size from the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_size: Option<NodeSizeEntry>,
}

/// The size that the node has reached.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSizeEntry {
    bytes: i64,
    /// The claim has it.
    reported: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    uid: String,
    spec_name: String,
}

/// A record whose content is not known to this kubelet. The volume stays in use, and the record stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRecord {
    /// The file.
    pub path: PathBuf,
    /// The digest of the volume's unique name.
    pub digest: String,
    /// The volume's unique name, if that much can be read.
    pub unique_name: Option<String>,
    /// Why it is unreadable.
    pub why: String,
}

/// Why a record is neither written nor removed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The existing one is unreadable.
    #[error("the record {} of the volume {}", .0.path.display(), .0.why)]
    Unreadable(Box<UnreadableRecord>),
    /// The system's error.
    #[error("cannot {action} the record {path} of the volume")]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// All records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Those that this kubelet understands.
    pub readable: Vec<VolumeRecord>,
    /// The others.
    pub unreadable: Vec<UnreadableRecord>,
}

/// Writes the record of a volume, so that it survives a power failure.
///
/// # Errors
/// See [`RecordError`]. The step must not begin then.
pub fn write(root: &KubeletRoot, record: &VolumeRecord) -> Result<(), RecordError> {
    let unique_name = record.identity.unique_name();
    check_existing(root, &unique_name)?;
    let path = path(root, &unique_name);
    let written = encode(record).and_then(|text| {
        files::create_directory(root, &paths::records(root))?;
        atomic_file::write_durable(&path, &text)
    });
    written.map_err(|source| RecordError::Io { action: "write", path, source })
}

/// Removes the record of a volume that is undone.
///
/// # Errors
/// See [`RecordError`].
pub fn remove(root: &KubeletRoot, volume: &VolumeIdentity) -> Result<(), RecordError> {
    let unique_name = volume.unique_name();
    check_existing(root, &unique_name)?;
    let path = path(root, &unique_name);
    let removed = if_exists(fs::remove_file(&path));
    removed.map(drop).map_err(|source| RecordError::Io { action: "remove", path, source })
}

/// Reads all records, and removes temporary files of a killed kubelet.
///
/// # Errors
/// The directory cannot be listed, so there may be more.
pub fn read_all(root: &KubeletRoot) -> io::Result<Records> {
    let directory = paths::records(root);
    let mut records = Records::default();
    let Some(entries) = if_exists(fs::read_dir(&directory))? else {
        return Ok(records);
    };
    atomic_file::remove_leftovers(&directory)?;
    for entry in entries {
        let name = entry?.file_name();
        let Some(digest) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        if !paths::is_digest(digest) {
            continue;
        }
        match read(root, digest) {
            Ok(record) => records.readable.extend(record),
            Err(unreadable) => records.unreadable.push(unreadable),
        }
    }
    Ok(records)
}

fn path(root: &KubeletRoot, unique_name: &str) -> PathBuf {
    paths::records(root).join(paths::record_name(unique_name))
}

fn check_existing(root: &KubeletRoot, unique_name: &str) -> Result<(), RecordError> {
    match read(root, &sha256_hex(&[unique_name])) {
        Ok(_) => Ok(()),
        Err(unreadable) => Err(RecordError::Unreadable(Box::new(unreadable))),
    }
}

fn read(root: &KubeletRoot, digest: &str) -> Result<Option<VolumeRecord>, UnreadableRecord> {
    let path = paths::records(root).join(format!("{digest}.json"));
    let unreadable = |unique_name, why| UnreadableRecord {
        path: path.clone(),
        digest: digest.to_owned(),
        unique_name,
        why,
    };
    let text = match files::read_small(&path, MAX_SIZE) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(ReadError::Io(error)) => {
            return Err(unreadable(None, format!("cannot be read: {error}")));
        }
        Err(error) => return Err(unreadable(None, error.to_string())),
    };
    let why = match decode(&text) {
        Ok(record) if sha256_hex(&[&record.identity.unique_name()]) == digest => {
            return Ok(Some(record));
        }
        Ok(_) => return Err(unreadable(None, "is of another volume".to_owned())),
        Err(why) => why,
    };
    let name = unique_name(&text).filter(|name| sha256_hex(&[name]) == digest);
    Err(unreadable(name, why))
}

fn encode(record: &VolumeRecord) -> io::Result<Vec<u8>> {
    let pods = record
        .pods
        .iter()
        .map(|(uid, spec_name)| PodEntry { uid: uid.to_string(), spec_name: spec_name.clone() });
    let file = RecordFile {
        version: VERSION,
        driver: record.identity.driver().to_owned(),
        handle: record.identity.handle(),
        lifecycle: record.identity.lifecycle().to_string(),
        spec_name: record.spec_name.clone(),
        attach_required: record.attach_required,
        mode: record.identity.mode().as_str().to_owned(),
        staged: record.is_staged,
        pods: pods.collect(),
        owner_group: record.owner_group,
        node_size: record
            .size
            .map(|size| NodeSizeEntry { bytes: size.bytes, reported: size.is_reported }),
    };
    Ok(serde_json::to_vec(&file)?)
}

fn decode(text: &[u8]) -> Result<VolumeRecord, String> {
    let value: Value =
        serde_json::from_slice(text).map_err(|error| format!("is damaged: {error}"))?;
    // First: another version may differ in everything else.
    match value.get("version").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(version) => {
            return Err(format!("has version {version}, and this kubelet knows {VERSION}"));
        }
        None => return Err("has no version".to_owned()),
    }
    let file: RecordFile =
        serde_json::from_value(value).map_err(|error| format!("is damaged: {error}"))?;
    let lifecycle = Lifecycle::parse(&file.lifecycle);
    let is_block = match (file.mode.as_str(), lifecycle) {
        (FILESYSTEM, _) => false,
        (BLOCK, Some(Lifecycle::Persistent)) => true,
        (mode, _) => return Err(format!("has the unknown mode {mode:?}")),
    };
    let invalid = |error| format!("has an invalid name: {}", error_chain(&error));
    // A volume that was found staged without a pod has no name until a pod wants it.
    let may_be_unnamed = lifecycle == Some(Lifecycle::Persistent) && !is_block;
    if !(may_be_unnamed && file.spec_name.is_empty()) {
        check_file_name(NameField::SpecName, &file.spec_name).map_err(invalid)?;
    }
    let mut pods = BTreeMap::new();
    for pod in &file.pods {
        check_file_name(NameField::PodUid, &pod.uid).map_err(invalid)?;
        check_file_name(NameField::SpecName, &pod.spec_name).map_err(invalid)?;
        pods.insert(PodUid::from(pod.uid.as_str()), pod.spec_name.clone());
    }
    let identity = match (lifecycle, file.pods.as_slice()) {
        (Some(Lifecycle::Persistent), _) if is_block => {
            VolumeIdentity::block(&file.driver, &file.handle, &file.spec_name)
        }
        (Some(Lifecycle::Persistent), _) => VolumeIdentity::persistent(&file.driver, &file.handle),
        (Some(Lifecycle::Ephemeral), [pod]) => {
            VolumeIdentity::inline(&file.driver, &pod.uid.as_str().into(), &pod.spec_name)
        }
        (Some(Lifecycle::Ephemeral), _) => return Err("does not have one pod".to_owned()),
        (None, _) => return Err(format!("has the unknown lifecycle {:?}", file.lifecycle)),
    };
    Ok(VolumeRecord {
        identity: identity.map_err(invalid)?,
        spec_name: file.spec_name,
        attach_required: file.attach_required,
        is_staged: file.staged,
        pods,
        owner_group: file.owner_group,
        size: file.node_size.map(|size| NodeSize { bytes: size.bytes, is_reported: size.reported }),
    })
}

/// The unique name in a record of another version, if it is where it is in this one.
fn unique_name(text: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let field = |name: &str| value.get(name).and_then(Value::as_str);
    let volume = VolumeIdentity::persistent(field("driver")?, field("handle")?);
    Some(volume.ok()?.unique_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn root() -> (tempfile::TempDir, KubeletRoot) {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(base.path()).unwrap();
        (base, root)
    }

    fn record(handle: &str) -> VolumeRecord {
        VolumeRecord {
            identity: VolumeIdentity::persistent("d.example", handle).unwrap(),
            spec_name: "pv1".into(),
            attach_required: true,
            is_staged: true,
            pods: [("u1".into(), "pv1".to_owned())].into(),
            owner_group: None,
            size: Some(NodeSize { bytes: 1 << 30, is_reported: false }),
        }
    }

    fn block() -> VolumeRecord {
        VolumeRecord {
            identity: VolumeIdentity::block("d.example", "h9", "pv1").unwrap(),
            ..record("h9")
        }
    }

    fn inline() -> VolumeRecord {
        VolumeRecord {
            identity: VolumeIdentity::inline("d.example", &"u1".into(), "data").unwrap(),
            spec_name: "data".into(),
            attach_required: false,
            is_staged: false,
            pods: [("u1".into(), "data".to_owned())].into(),
            owner_group: Some(7),
            size: None,
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let (_base, root) = root();
        assert_eq!(read_all(&root).unwrap(), Records::default());
        let all = [record("h1"), inline(), block()];
        for record in &all {
            write(&root, record).unwrap();
            write(&root, record).unwrap();
        }
        let directory = paths::records(&root);
        fs::write(directory.join(".x.json.1-1.tmp"), "").unwrap();
        fs::write(directory.join("other.json"), "").unwrap();
        let read = read_all(&root).unwrap();
        assert_eq!(read.unreadable, []);
        assert_eq!(read.readable.len(), 3);
        assert!(all.iter().all(|record| read.readable.contains(record)));
        for record in &all {
            remove(&root, &record.identity).unwrap();
            remove(&root, &record.identity).unwrap();
        }
        let left: Vec<_> = fs::read_dir(directory).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn the_format_is_fixed() {
        let text: Value = serde_json::from_slice(&encode(&record("h1")).unwrap()).unwrap();
        let expected = json!({
            "version": 1, "driver": "d.example", "handle": "h1", "lifecycle": "Persistent",
            "specName": "pv1", "attachRequired": true, "mode": "Filesystem", "staged": true,
            "pods": [{"uid": "u1", "specName": "pv1"}],
            "nodeSize": {"bytes": 1 << 30, "reported": false},
        });
        assert_eq!(text, expected);
        let text: Value = serde_json::from_slice(&encode(&block()).unwrap()).unwrap();
        assert_eq!(text["mode"], "Block");
    }

    #[test]
    fn a_record_that_is_not_understood_is_kept_and_blocks_its_volume() {
        let changed = |change: Value| {
            let mut value: Value = serde_json::from_slice(&encode(&record("h1")).unwrap()).unwrap();
            let fields = change.as_object().unwrap().clone();
            value.as_object_mut().unwrap().extend(fields);
            value.to_string()
        };
        let name = Some(record("h1").identity.unique_name());
        for (text, why, name) in [
            (String::new(), "is damaged", None),
            ("{\"version\":1".to_owned(), "is damaged", None),
            ("{}".to_owned(), "has no version", None),
            (changed(json!({"version": 2})), "has version 2", name.clone()),
            (changed(json!({"mode": "Odd"})), "has the unknown mode", name.clone()),
            (
                changed(json!({"mode": "Block", "lifecycle": "Ephemeral"})),
                "has the unknown mode",
                name.clone(),
            ),
            (
                changed(json!({"mode": "Block", "specName": "staging"})),
                "has an invalid name",
                name.clone(),
            ),
            (changed(json!({"pods": 1})), "is damaged", name.clone()),
            (changed(json!({"lifecycle": "Odd"})), "has the unknown lifecycle", name.clone()),
            (changed(json!({"specName": "../x"})), "has an invalid name", name.clone()),
            (
                changed(json!({"pods": [{"uid": "..", "specName": "p"}]})),
                "has an invalid name",
                name,
            ),
            (changed(json!({"driver": ".."})), "has an invalid name", None),
            (changed(json!({"handle": "h2"})), "is of another volume", None),
            (" ".repeat(1024 * 1024 + 1), "is larger than", None),
        ] {
            let (_base, root) = root();
            write(&root, &record("h1")).unwrap();
            let file = path(&root, &record("h1").identity.unique_name());
            fs::write(&file, &text).unwrap();
            let found = read_all(&root).unwrap();
            let [unreadable] = found.unreadable.as_slice() else {
                panic!("{why}: {found:?}");
            };
            assert!(unreadable.why.starts_with(why), "{why}: {unreadable:?}");
            assert_eq!(unreadable.unique_name, name, "{why}");
            assert!(write(&root, &record("h1")).is_err(), "{why}");
            assert!(remove(&root, &record("h1").identity).is_err(), "{why}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            write(&root, &record("h3")).unwrap();
        }
    }

    #[test]
    fn a_link_is_no_record() {
        let (base, root) = root();
        write(&root, &record("h1")).unwrap();
        let file = path(&root, &record("h1").identity.unique_name());
        let moved = base.path().join("moved");
        fs::rename(&file, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &file).unwrap();
        let found = read_all(&root).unwrap();
        assert_eq!(found.unreadable[0].why, "is not a regular file");
        let error = write(&root, &record("h1")).unwrap_err().to_string();
        assert!(error.ends_with("of the volume is not a regular file"), "{error}");
    }
}
