//! Writes files atomically: readers see either the old content or the new one.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// Mode of files that only the kubelet reads.
pub const PRIVATE: u32 = 0o600;

/// Writes a temporary file beside `path` and renames it, with mode 0600. Blocking: call it from `spawn_blocking`. The
/// data survives a killed process. It is not synced to disk, because after a power failure the containers that it
/// describes are gone too.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, |_| Ok(()))
}

/// As [`write()`], for files that must survive a power failure: the file is synced before the rename, and the directory
/// before this returns.
pub fn write_durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, fs::File::sync_all)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// As [`write()`], with this mode, for files that are not used by the kubelet alone: after a power failure the file has
/// the old content or the new one.
pub fn write_synced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    replace(path, bytes, |file| {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()
    })
}

/// Syncs a directory, so that created and renamed files survive a power failure. Blocking.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    // The parent of a bare file name is empty and stands for the working directory.
    let is_empty = path.as_os_str().is_empty();
    fs::File::open(if is_empty { Path::new(".") } else { path })?.sync_all()
}

fn replace(
    path: &Path,
    bytes: &[u8],
    sync: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    use std::os::unix::fs::OpenOptionsExt;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_file_name(format!(".{name}.{}-{serial}.tmp", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(PRIVATE)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            sync(&file)
        })
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Whether a directory entry is a temporary file that a killed process left.
pub fn is_leftover(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

/// Removes temporary files that a killed process left in a directory; one that cannot be removed stays. Blocking.
///
/// # Errors
/// The directory cannot be read.
pub fn remove_leftovers(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_leftover) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_replaces_the_whole_file_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, b"a long first version").unwrap();
        write(&path, b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        write_durable(&path, b"durable").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"durable");
        write_synced(&path, b"public", 0o644).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing").join("state.json");
        assert!(write(&path, b"x").is_err());
        assert!(write_durable(&path, b"x").is_err());
    }

    #[test]
    fn only_temporary_files_are_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".state.json.12-3.tmp", "state.json", ".hidden", "a.tmp"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        remove_leftovers(dir.path()).unwrap();
        assert!(!dir.path().join(".state.json.12-3.tmp").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(remove_leftovers(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn what_is_not_on_disk_gets_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        write(&path, b"old").unwrap();
        let fails = |_: &fs::File| Err(io::ErrorKind::StorageFull.into());
        assert!(replace(&path, b"new", fails).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
