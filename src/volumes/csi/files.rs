//! Reads, creates and removes the kubelet's own files and directories of CSI volumes. Blocking.
//!
//! Nothing behind a link is read or created, and nothing is removed but single files and empty directories: what a driver
//! has mounted or written stays.

use super::devices;
use super::mount_table::MountTable;
use super::paths::{PublishDir, StageDir, VOL_DATA};
use crate::base::{atomic_file, if_exists};
use crate::volumes::KubeletRoot;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path};
use std::{fs, io};

/// Mode of directories, as upstream's.
const DIRECTORY_MODE: u32 = 0o750;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is a link, a directory, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// It is larger than files of its kind are.
    #[error("is larger than {0} bytes")]
    TooLarge(u64),
    /// The system's error.
    #[error("cannot be read")]
    Io(#[from] io::Error),
}

/// Reads a small file; `None` if it does not exist. A link is not followed, and a pipe does not block.
///
/// # Errors
/// See [`ReadError`].
pub fn read_small(path: &Path, max: u64) -> Result<Option<Vec<u8>>, ReadError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match if_exists(opened) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(None),
        Err(error) => {
            // NXIO is a socket.
            let errno = Errno::from_io_error(&error);
            let is_other = matches!(errno, Some(Errno::LOOP | Errno::NXIO));
            return Err(if is_other { ReadError::NotAFile } else { error.into() });
        }
    };
    if !file.metadata()?.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(ReadError::TooLarge(max));
    }
    Ok(Some(bytes))
}

/// Creates a directory below the kubelet's root directory and its parents (0750), without following links. One that
/// exists stays as it is, also if something is mounted on it.
///
/// # Errors
/// The system's error; `InvalidInput` for a path elsewhere, and `NotADirectory` where something else is in the way.
pub fn create_directory(root: &KubeletRoot, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(root.path());
    let below = below.map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parent: OwnedFd = rustix::fs::open(root.path(), flags, Mode::empty())?;
    let mut components = below.components().peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        if components.peek().is_some() {
            parent = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            continue;
        }
        // The last one may be a mount that hangs, so it is not opened, and its server is not asked.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&parent, name, flags, StatxFlags::TYPE)?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
    }
    Ok(())
}

/// Removes the directory of a volume that is not staged.
///
/// # Errors
/// The system's error; `ResourceBusy` if something is or may be mounted there, `DirectoryNotEmpty` if something else is
/// there.
pub fn remove_stage(directory: &StageDir, mounts: &MountTable) -> io::Result<()> {
    match directory.devices() {
        None => remove(directory.path(), &directory.target(), mounts),
        Some(dirs) => devices::remove_stage(directory, dirs, mounts),
    }
}

/// Removes the directory of a volume of a pod that is not published.
///
/// # Errors
/// As [`remove_stage`].
pub fn remove_published(directory: &PublishDir, mounts: &MountTable) -> io::Result<()> {
    match directory.device() {
        None => remove(directory.path(), &directory.target(), mounts),
        Some(device) => devices::remove_published(directory, device, mounts),
    }
}

/// The target goes first: while it cannot be removed, the file that says what it is stays.
fn remove(directory: &Path, target: &Path, mounts: &MountTable) -> io::Result<()> {
    if mounts.is_mounted(directory) {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    if_exists(fs::remove_dir(target))?;
    if_exists(fs::remove_file(directory.join(VOL_DATA)))?;
    if if_exists(atomic_file::remove_leftovers(directory))?.is_some() {
        if_exists(fs::remove_dir(directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::parse_mountinfo;
    use crate::volumes::csi::identity::VolumeIdentity;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::PathBuf;

    fn root() -> (tempfile::TempDir, KubeletRoot) {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(&base.path().join("k")).unwrap();
        (base, root)
    }

    fn stage(root: &KubeletRoot) -> StageDir {
        StageDir::new(root, &VolumeIdentity::persistent("d", "h").unwrap())
    }

    fn no_mounts() -> MountTable {
        MountTable::new(Ok(Vec::new()))
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let (base, _) = root();
        let path = |name: &str| base.path().join(name);
        fs::write(path("small"), "1234").unwrap();
        fs::write(path("large"), "12345").unwrap();
        symlink(path("small"), path("link")).unwrap();
        fs::create_dir(path("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let read = |name: &str| match read_small(&path(name), 4) {
            Ok(Some(text)) => String::from_utf8(text).unwrap(),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(read("small"), "1234");
        assert_eq!(read("missing"), "none");
        assert_eq!(read("large"), "is larger than 4 bytes");
        for other in ["link", "directory", "socket"] {
            assert_eq!(read(other), "is not a regular file", "{other}");
        }
    }

    #[test]
    fn directories_are_made_without_following_links() {
        let (base, root) = root();
        let target = stage(&root).target();
        create_directory(&root, &target).unwrap();
        create_directory(&root, &target).unwrap();
        for path in [&target, &root.path().join("plugins")] {
            let mode = fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!(mode & !0o750, 0, "{}", path.display());
        }
        let outside = base.path().join("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, root.path().join("link")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        for path in ["link", "link/a", "link/a/b", "file", "file/a", "a/../b"] {
            let created = create_directory(&root, &root.path().join(path));
            assert!(created.is_err(), "{path}");
        }
        assert!(create_directory(&root, &outside.join("a")).is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn what_is_removed_is_the_kubelets_own() {
        let (_base, root) = root();
        let directory = stage(&root);
        remove_stage(&directory, &no_mounts()).unwrap();
        create_directory(&root, &directory.target()).unwrap();
        fs::write(directory.vol_data(), "{}").unwrap();
        fs::write(directory.path().join(".vol_data.json.1-2.tmp"), "").unwrap();
        remove_stage(&directory, &no_mounts()).unwrap();
        assert!(!directory.path().exists());
    }

    #[test]
    fn data_and_mounts_stay() {
        let (_base, root) = root();
        let pod = root.pod(&"u1".into()).unwrap();
        let directory = PublishDir::new(&pod, "pv1").unwrap();
        create_directory(&root, &directory.target()).unwrap();
        fs::write(directory.vol_data(), "{}").unwrap();
        let line = format!("1 2 8:1 / {} rw - ext4 /dev/x rw\n", directory.target().display());
        let mounted = MountTable::new(Ok(parse_mountinfo(line.as_bytes())));
        let unreadable = MountTable::new(Err(io::ErrorKind::NotFound.into()));
        let kind = |mounts: &MountTable| remove_published(&directory, mounts).unwrap_err().kind();
        assert_eq!(kind(&mounted), io::ErrorKind::ResourceBusy);
        assert_eq!(kind(&unreadable), io::ErrorKind::ResourceBusy);
        let data = directory.target().join("data");
        fs::write(&data, "x").unwrap();
        assert_eq!(kind(&no_mounts()), io::ErrorKind::DirectoryNotEmpty);
        let kept: [PathBuf; 2] = [data.clone(), directory.vol_data()];
        assert!(kept.iter().all(|path| path.exists()));
        fs::remove_file(&data).unwrap();
        let foreign = directory.path().join("foreign");
        fs::write(&foreign, "x").unwrap();
        assert_eq!(kind(&no_mounts()), io::ErrorKind::DirectoryNotEmpty);
        assert!(foreign.exists());
    }
}
