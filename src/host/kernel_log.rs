//! Follows the kernel log, `/dev/kmsg`.

use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::{Errno, read};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The device.
pub const KERNEL_LOG: &str = "/dev/kmsg";
/// The maximum record size; a read with a smaller buffer fails.
const LONGEST_RECORD: usize = 8192;
/// Records with this priority or a higher number have a facility other than the kernel's, so processes wrote them.
const FIRST_OF_PROCESSES: u32 = 8;

/// The log, positioned after its last record.
#[derive(Debug)]
pub struct KernelLogEnd(OwnedFd);

/// A reader of the kernel log.
#[derive(Debug)]
pub struct KernelLog {
    device: AsyncFd<OwnedFd>,
    buffer: Box<[u8]>,
}

impl KernelLogEnd {
    /// Opens the log after its last record. Blocking.
    ///
    /// # Errors
    /// It does not exist, or this process may not read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let device = open(path, flags, Mode::empty())?;
        seek(&device, SeekFrom::End(0))?;
        Ok(Self(device))
    }

    /// Starts to read. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The descriptor cannot be registered with the runtime.
    #[allow(unsafe_code, reason = "tokio cannot check that a descriptor stays the same")]
    pub fn follow(self) -> io::Result<KernelLog> {
        // SAFETY: an `OwnedFd` is open until it is dropped, and its descriptor never changes.
        let device = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
        Ok(KernelLog {
            device: device.map_err(io::Error::from)?,
            buffer: vec![0; LONGEST_RECORD].into(),
        })
    }
}

/// For tests: a non-blocking descriptor that returns one record per read.
impl From<OwnedFd> for KernelLogEnd {
    fn from(device: OwnedFd) -> Self {
        Self(device)
    }
}

impl KernelLog {
    /// The next message of the kernel itself. Messages that were overwritten before they were read are skipped. Safe
    /// to cancel.
    ///
    /// # Errors
    /// The log cannot be read any more.
    pub async fn next(&mut self) -> io::Result<String> {
        loop {
            let mut ready = self.device.readable().await?;
            let buffer = &mut self.buffer;
            let Ok(done) = ready.try_io(|device| Ok(read(device, &mut **buffer)?)) else {
                continue;
            };
            let length = match done {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                // Records were overwritten, or the read was interrupted by a signal.
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            };
            let record = self.buffer.get(..length).unwrap_or_default();
            if let Some(message) = message(&String::from_utf8_lossy(record)) {
                return Ok(message.to_owned());
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::PIPE, Errno::INTR].map(|errno| Some(errno.raw_os_error()));
    passing.contains(&error.raw_os_error())
}

/// The text of a kernel record, `priority,sequence,microseconds,flags;text`; further lines are properties. `None` for
/// records of processes.
fn message(record: &str) -> Option<&str> {
    let (head, rest) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let text = rest.lines().next().unwrap_or_default();
    (priority < FIRST_OF_PROCESSES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    #[test]
    fn only_what_the_kernel_wrote_is_a_message() {
        for (record, expected) in [
            ("3,427,2090054221,-;Memory cgroup\n", Some("Memory cgroup")),
            ("6,1,2,-,caller=T1;a; b\n SUBSYSTEM=pci\n DEVICE=+x\n", Some("a; b")),
            ("4,1,2,-;\n", Some("")),
            // A process may write what it likes.
            ("12,1,2,-;python3 invoked oom-killer: \n", None),
            ("8,1,2,-;a\n", None),
            ("x,1,2,-;a\n", None),
            ("no record", None),
            ("", None),
        ] {
            assert_eq!(message(record), expected, "{record}");
        }
    }

    #[tokio::test]
    async fn messages_are_read_as_they_come_until_the_log_ends() {
        let (device, kernel) = UnixDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        let mut log = KernelLogEnd::from(OwnedFd::from(device)).follow().unwrap();
        kernel.send(b"6,1,2,-;first\n").unwrap();
        kernel.send(b"14,1,2,-;of a process\n").unwrap();
        kernel.send(b"6,1,2,-;second\n").unwrap();
        assert_eq!(log.next().await.unwrap(), "first");
        assert_eq!(log.next().await.unwrap(), "second");
        let nothing = tokio::time::timeout(Duration::from_millis(20), log.next()).await;
        assert!(nothing.is_err(), "it waits");
        kernel.send(b"6,1,2,-;third\n").unwrap();
        assert_eq!(log.next().await.unwrap(), "third");
        kernel.send(b"").unwrap();
        let end = log.next().await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_was_written_before_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(KernelLogEnd::open(&dir.path().join("none")).is_err());
        let path = dir.path().join("log");
        std::fs::write(&path, "6,1,2,-;before\n").unwrap();
        let end = KernelLogEnd::open(&path).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(read(&end.0, &mut buffer).unwrap(), 0);
        // The device itself, where it can be read, can be waited for.
        if let Ok(end) = KernelLogEnd::open(Path::new(KERNEL_LOG)) {
            end.follow().unwrap();
        }
    }
}
