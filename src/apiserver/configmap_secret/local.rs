//! ConfigMaps and Secrets from local files: a directory per object, a file per key. Blocking.
//!
//! The directory belongs to the administrator, but users with write access to a part of it can create links there. So
//! links are not followed out of an object, and the name of an object cannot lead out of its namespace.

use super::object::{ObjectData, ObjectError, ObjectKey, ObjectKind};
use crate::host::files::{PATH_ONLY, reopen};
use bytes::Bytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Maximum total size of an object's values, bytes; the API's limit.
pub const MAX_OBJECT_BYTES: usize = 1 << 20;
/// Maximum length of a key.
const MAX_KEY: usize = 253;
/// The file that marks an object as immutable. Its name is not a valid key.
const IMMUTABLE: &str = "..immutable";
/// Maximum number of reads of an object that changes during the read.
const TRIES: usize = 8;

/// Why an object is rejected.
type ObjectFault = String;

/// Identity and times of each file; they change when a file is replaced or written.
type Stamps = BTreeMap<String, [i128; 5]>;

pub(super) fn read(directory: &Path, key: &ObjectKey) -> Result<ObjectData, ObjectError> {
    let not_found = || ObjectError::NotFound(key.clone());
    let unreadable = |reason| ObjectError::Unreadable { key: key.clone(), reason };
    if !is_name(&key.namespace) || !is_name(&key.name) {
        return Err(not_found());
    }
    let kind = match key.kind {
        ObjectKind::ConfigMap => "configmaps",
        ObjectKind::Secret => "secrets",
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).and_then(|root| {
        let kind = open_beneath(root.as_fd(), kind, flags)?;
        let namespace = open_beneath(kind.as_fd(), &key.namespace, flags)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_beneath(namespace.as_fd(), &key.name, flags)
    });
    match opened {
        Ok(object) => read_consistent(object.as_fd()).map_err(unreadable),
        Err(Errno::NOENT) => Err(not_found()),
        Err(error) => Err(unreadable(describe("its directory", error))),
    }
}

/// Reads an object, again if it changed during the read, so that two versions are never mixed.
fn read_consistent(object_dir: BorrowedFd<'_>) -> Result<ObjectData, ObjectFault> {
    let mut before = stamps(object_dir)?;
    for _ in 0..TRIES {
        let entries = read_all(object_dir, &before)?;
        let after = stamps(object_dir)?;
        if before == after {
            let object: ObjectData = entries.into_iter().collect();
            let immutable = open_beneath(object_dir, IMMUTABLE, OFlags::PATH).is_ok();
            return Ok(object.with_immutable(immutable));
        }
        before = after;
    }
    Err("it changed during every read".into())
}

/// The keys of an object. Directories and names that are not valid keys are ignored.
fn stamps(object: BorrowedFd<'_>) -> Result<Stamps, ObjectFault> {
    let failed = |error| describe("its directory", error);
    let mut stamps = Stamps::new();
    let mut names = 0;
    for entry in Dir::read_from(object).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(key) = entry.file_name().to_str().ok().filter(|name| is_key(name)) else {
            continue;
        };
        names += key.len();
        if names > MAX_OBJECT_BYTES {
            return Err("it has too many keys".into());
        }
        let stat = open_beneath(object, key, OFlags::PATH).and_then(rustix::fs::fstat);
        match stat {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {}
            Ok(stat) => {
                stamps.insert(key.to_string(), stamp(&stat));
            }
            // Removed since the listing, or a dangling link.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(describe(key, error)),
        }
    }
    Ok(stamps)
}

fn stamp(stat: &Stat) -> [i128; 5] {
    let nanos = |seconds: i64, rest: u64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    [
        i128::from(stat.st_dev),
        i128::from(stat.st_ino),
        i128::from(stat.st_size),
        nanos(stat.st_mtime, stat.st_mtime_nsec),
        nanos(stat.st_ctime, stat.st_ctime_nsec),
    ]
}

fn read_all(object: BorrowedFd<'_>, keys: &Stamps) -> Result<Vec<(String, Bytes)>, ObjectFault> {
    let mut left = MAX_OBJECT_BYTES as u64;
    let mut entries = Vec::with_capacity(keys.len());
    for key in keys.keys() {
        let found = match open_beneath(object, key, PATH_ONLY) {
            Err(Errno::NOENT) => continue,
            opened => opened.map_err(|error| describe(key, error))?,
        };
        let failed = |error: std::io::Error| format!("{key}: {error}");
        let (file, _) = reopen(found).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(left + 1).read_to_end(&mut bytes).map_err(failed)?;
        left = left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| format!("it is larger than {MAX_OBJECT_BYTES} bytes"))?;
        entries.push((key.clone(), bytes.into()));
    }
    Ok(entries)
}

fn open_beneath(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn describe(what: &str, error: Errno) -> ObjectFault {
    match error {
        Errno::XDEV => format!("{what} is a link that leads out of its parent directory"),
        other => format!("{what}: {}", std::io::Error::from(other)),
    }
}

/// Whether this is a valid name of an object or namespace in the API.
fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    (1..=253).contains(&name.len())
        && name.chars().all(good)
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.'])
}

/// Whether this is a valid key in the API.
fn is_key(key: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=MAX_KEY).contains(&key.len())
        && key.chars().all(good)
        && key != "."
        && !key.starts_with("..")
}
