//! A Unix socket that only root can connect to. Blocking; created once, at start.

use crate::base::if_exists;
use anyhow::Context as _;
use rustix::fs::{Mode, chmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{fs, io};

const BACKLOG: i32 = 64;

/// The file of a bound socket; removed when dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode, to not unlink the socket of another kubelet that replaced it.
    identity: (u64, u64),
}

impl SocketFile {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path);
        if ours.is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a socket with mode 0600. An existing socket at the path is replaced, because it belongs to a kubelet that
/// was killed or is exiting. Any other file is an error.
pub fn listen_at(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(meta) = if_exists(fs::symlink_metadata(path))? {
        if !meta.file_type().is_socket() {
            let text = "a file that is not a socket is there";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        fs::remove_file(path)?;
    }
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &address)?;
    // Nothing can connect before `listen`, so the mode that the socket was created with does not matter.
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    listen(&socket, BACKLOG)?;
    let meta = fs::symlink_metadata(path)?;
    let place = SocketFile { path: path.to_path_buf(), identity: (meta.dev(), meta.ino()) };
    Ok((UnixListener::from(socket), place))
}

/// As [`listen_at`], and creates the directory of the socket, with mode 0750.
///
/// # Errors
/// The directory or the socket cannot be created.
pub fn listen_in(path: &Path) -> anyhow::Result<(UnixListener, SocketFile)> {
    if let Some(directory) = path.parent() {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o750).create(directory);
        made.with_context(|| format!("cannot create {}", directory.display()))?;
    }
    listen_at(path).with_context(|| format!("cannot listen at {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_socket_is_its_owners_alone_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        let (_listener, place) = listen_at(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(place.path()).unwrap();
        drop(place);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_is_left_over_makes_room_and_takes_nothing_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        let (_old, old_place) = listen_at(&path).unwrap();
        let (_new, _place) = listen_at(&path).unwrap();
        drop(old_place);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn anything_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        fs::write(&path, "data").unwrap();
        assert!(listen_at(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        let long = dir.path().join("x".repeat(120));
        assert!(listen_at(&long).is_err());
    }
}
