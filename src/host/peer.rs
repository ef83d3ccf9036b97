//! The process at the other end of a local socket.

#![allow(
    unsafe_code,
    reason = "rustix reads the process of a socket's other end into a number that is never 0"
)]

use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::{fs, io, mem};

/// Since Linux 6.5; not in the `libc` crate.
const SO_PEERPIDFD: libc::c_int = 77;

/// Namespaces that a container does not share with the node.
const NAMESPACES: [&str; 2] = ["mnt", "pid"];

/// Whether the process that connected to this socket is in the mount and PID namespaces of this process. False for a
/// process that has ended. Blocking.
///
/// # Errors
/// The process cannot be inspected; it may have ended.
pub fn shares_namespaces(stream: &impl AsFd) -> io::Result<bool> {
    let fd = stream.as_fd().as_raw_fd();
    // SAFETY: all zeroes is a valid `ucred`, and the kernel writes a complete one.
    let credentials: libc::ucred = unsafe { option(fd, libc::SO_PEERCRED, mem::zeroed()) }?;
    if credentials.pid <= 0 {
        // The peer is in a PID namespace that is not visible from this one.
        return Ok(false);
    }
    // The PID may be reused after the process has ended. The pidfd, which refers to the process itself, is used to
    // check at the end that the PID still belongs to it. Older kernels have no `SO_PEERPIDFD`; there, a reuse of the
    // PID between `connect` and the check is not detected.
    // SAFETY: the kernel writes a descriptor number.
    let process = match unsafe { option::<RawFd>(fd, SO_PEERPIDFD, -1) } {
        // SAFETY: the descriptor was just created for this caller.
        Ok(process) => Some(unsafe { OwnedFd::from_raw_fd(process) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
        Err(error) => return Err(error),
    };
    let theirs = namespaces(&Path::new("/proc").join(credentials.pid.to_string()))?;
    if let Some(process) = process
        && pid_of(&process)? != Some(credentials.pid)
    {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    Ok(theirs == namespaces(Path::new("/proc/self"))?)
}

fn namespaces(process: &Path) -> io::Result<[PathBuf; 2]> {
    let [mnt, pid] = NAMESPACES.map(|name| fs::read_link(process.join("ns").join(name)));
    Ok([mnt?, pid?])
}

/// The PID of a pidfd's process; `None` if it has ended.
fn pid_of(process: &OwnedFd) -> io::Result<Option<libc::pid_t>> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid = pid.and_then(|pid| pid.trim().parse().ok());
    Ok(pid.filter(|pid| *pid > 0))
}

/// Reads a socket option.
///
/// # Safety
/// The kernel writes this option as a `T`, and any bytes that it may write are a valid `T`.
unsafe fn option<T>(fd: RawFd, name: libc::c_int, mut value: T) -> io::Result<T> {
    let size = mem::size_of::<T>();
    let mut length = libc::socklen_t::try_from(size).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    match got {
        0 if usize::try_from(length) == Ok(size) => Ok(value),
        0 => Err(io::Error::from(io::ErrorKind::InvalidData)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_process_beside_this_one_shares_its_namespaces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(shares_namespaces(&accepted).unwrap());
        // What counts is who connected, also when that end is closed by now.
        drop(client);
        assert!(shares_namespaces(&accepted).unwrap());
    }
}
