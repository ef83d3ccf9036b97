//! Stores the records as files, in upstream's layout: `pulling` and `pulled` below `image_manager`. All functions
//! block.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::record::{ImagePullIntent, ImagePulledRecord, PulledRecordFile};
use crate::base::{atomic_file, if_exists};
use crate::host::files::read_head_or_empty;

const PREFIX: &str = "sha256-";
/// Maximum size of a record, in bytes. Upstream keeps up to 100 secrets per image name.
const MAX_RECORD_BYTES: usize = 1 << 20;

/// The file name of a record: `sha256-` and the digest of the image's name or reference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RecordFileName(String);

impl RecordFileName {
    pub(super) fn of(image: &str) -> RecordFileName {
        let digest = crate::base::hex(&Sha256::digest(image));
        RecordFileName(format!("{PREFIX}{digest}"))
    }
}

impl fmt::Display for RecordFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The directories of the records.
#[derive(Debug, Clone)]
pub(super) struct PullRecordDirs {
    pulling: PathBuf,
    pulled: PathBuf,
}

/// The records found at startup.
#[derive(Debug, Default)]
pub(super) struct RecordsOnDisk {
    pub(super) pulled: HashMap<RecordFileName, PulledRecordFile>,
    /// The image of each file; `None` if the file cannot be read.
    pub(super) intents: HashMap<RecordFileName, Option<String>>,
    pub(super) problems: Vec<String>,
}

impl PullRecordDirs {
    pub(super) fn open(root: &Path) -> io::Result<(PullRecordDirs, RecordsOnDisk)> {
        let parent = root.join("image_manager");
        let disk =
            PullRecordDirs { pulling: parent.join("pulling"), pulled: parent.join("pulled") };
        for dir in [&disk.pulling, &disk.pulled] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(dir)?;
        }
        let mut found = RecordsOnDisk::default();
        for (name, bytes) in files(&disk.pulling, &mut found.problems)? {
            let intent = bytes.and_then(|bytes| ImagePullIntent::decode(&bytes));
            let intent = intent.and_then(|intent| check_file_name(intent.image, &name));
            let intent = found.ok_or_report(&disk.pulling, &name, intent);
            found.intents.insert(name, intent);
        }
        for (name, bytes) in files(&disk.pulled, &mut found.problems)? {
            let record = bytes.and_then(|bytes| ImagePulledRecord::decode(&bytes));
            let record = record.and_then(|record| {
                check_file_name(record.image_ref.clone(), &name)?;
                Ok(PulledRecordFile::Record(Arc::new(record)))
            });
            let record = found.ok_or_report(&disk.pulled, &name, record);
            found.pulled.insert(name, record.unwrap_or(PulledRecordFile::Unreadable));
        }
        Ok((disk, found))
    }

    pub(super) fn write_intent(&self, image: &str) -> io::Result<()> {
        write(&self.pulling, &RecordFileName::of(image), &ImagePullIntent::of(image))
    }

    pub(super) fn remove_intent(&self, name: &RecordFileName) -> io::Result<()> {
        remove(&self.pulling, name)
    }

    pub(super) fn write_pulled(&self, record: &ImagePulledRecord) -> io::Result<()> {
        write(&self.pulled, &RecordFileName::of(&record.image_ref), record)
    }

    pub(super) fn remove_pulled(&self, name: &RecordFileName) -> io::Result<()> {
        remove(&self.pulled, name)
    }
}

impl RecordsOnDisk {
    /// Returns the content that was read, or records the error.
    fn ok_or_report<T>(
        &mut self,
        dir: &Path,
        name: &RecordFileName,
        read: Result<T, String>,
    ) -> Option<T> {
        read.map_err(|problem| {
            let path = dir.join(&name.0);
            self.problems.push(format!("{}: {problem}", path.display()));
        })
        .ok()
    }
}

fn check_file_name(image: String, name: &RecordFileName) -> Result<String, String> {
    if RecordFileName::of(&image) == *name {
        Ok(image)
    } else {
        Err("the image does not match the file name".to_owned())
    }
}

type RecordContent = Result<Vec<u8>, String>;

/// The records of a directory. Removes temporary files of a killed kubelet, this one's or upstream's.
fn files(
    dir: &Path,
    problems: &mut Vec<String>,
) -> io::Result<Vec<(RecordFileName, RecordContent)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let temporary = name.starts_with(PREFIX) && name.ends_with(".tmp");
        if temporary || atomic_file::is_leftover(&name) {
            if let Err(error) = fs::remove_file(entry.path()) {
                problems.push(format!("{}: {error}", entry.path().display()));
            }
        } else if name.starts_with(PREFIX) {
            found.push((RecordFileName(name), read(&entry.path())));
        }
    }
    Ok(found)
}

fn read(path: &Path) -> RecordContent {
    let bytes =
        read_head_or_empty(path, MAX_RECORD_BYTES + 1).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_RECORD_BYTES {
        Err(format!("it is longer than {MAX_RECORD_BYTES} bytes"))
    } else {
        Ok(bytes)
    }
}

fn write(dir: &Path, name: &RecordFileName, record: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(record)?;
    bytes.push(b'\n');
    atomic_file::write(&dir.join(&name.0), &bytes)
}

/// Removes a record; a missing file is no error.
fn remove(dir: &Path, name: &RecordFileName) -> io::Result<()> {
    if_exists(fs::remove_file(dir.join(&name.0))).map(drop)
}
