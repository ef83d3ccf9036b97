//! The cgroup files that are read repeatedly, and which of them stay open in between.
//!
//! Opening, reading and closing a file costs the kernel about four times as much as reading an open one. An open file
//! does not prevent the removal of its cgroup; reading it fails afterwards. It costs the kernel about 5 KiB, so only
//! a limited number of files that are read often stay open.

use super::fs::CgroupFs;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Maximum size of a file: 100,000 PIDs.
const MAX_FILE_BYTES: usize = 1 << 20;
/// Bytes per read; most files are smaller.
const CHUNK: usize = 4096;
/// Maximum number of cgroup files that stay open.
const MAX_OPEN: usize = 10_000;

/// A file that is read repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupFile {
    Cpu,
    CpuTimes,
    Throttling,
    Memory,
    MemoryPeak,
    MemoryStat,
    MemoryEvents,
    MemoryFailures,
    KernelMemory,
    Swap,
    Processes,
    Threads,
    IoBytes,
    IoCount,
    CpuPressure,
    MemoryPressure,
    IoPressure,
}

impl CgroupFile {
    /// Its controller and name; `None` if it does not exist in this cgroup version.
    fn location(self, v2: bool) -> Option<(&'static str, &'static str)> {
        let (controller, v1, v2_name) = match self {
            Self::Cpu => ("cpuacct", "cpuacct.usage", "cpu.stat"),
            Self::CpuTimes => ("cpuacct", "cpuacct.stat", ""),
            Self::Throttling => ("cpu", "cpu.stat", ""),
            Self::Memory => ("memory", "memory.usage_in_bytes", "memory.current"),
            Self::MemoryPeak => ("memory", "memory.max_usage_in_bytes", "memory.peak"),
            Self::MemoryStat => ("memory", "memory.stat", "memory.stat"),
            Self::MemoryEvents => ("memory", "memory.oom_control", "memory.events"),
            Self::MemoryFailures => ("memory", "memory.failcnt", ""),
            Self::KernelMemory => ("memory", "memory.kmem.usage_in_bytes", ""),
            Self::Swap => ("memory", "", "memory.swap.current"),
            Self::Processes => ("pids", "cgroup.procs", "cgroup.procs"),
            Self::Threads => ("pids", "pids.current", "pids.current"),
            Self::IoBytes => ("blkio", "blkio.throttle.io_service_bytes_recursive", "io.stat"),
            Self::IoCount => ("blkio", "blkio.throttle.io_serviced_recursive", ""),
            Self::CpuPressure => ("", "", "cpu.pressure"),
            Self::MemoryPressure => ("", "", "memory.pressure"),
            Self::IoPressure => ("", "", "io.pressure"),
        };
        let (controller, name) = if v2 { ("", v2_name) } else { (controller, v1) };
        (!name.is_empty()).then_some((controller, name))
    }

    /// Whether it is read to find out whether the other files have to be read.
    fn shows_activity(self) -> bool {
        matches!(self, Self::Cpu | Self::Memory)
    }
}

/// A reusable buffer for the content of a file.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<u8>);

/// Shared by all readers: a buffer, and the number of additional files that may stay open.
#[derive(Debug)]
pub struct Scratch {
    pub(super) first: Buffer,
    pub(super) second: Buffer,
    budget: usize,
}

impl Default for Scratch {
    /// Half of the process's file limit is for cgroup files, up to a maximum.
    fn default() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let files = limit.current.unwrap_or(u64::MAX) / 2;
        Self {
            first: Buffer::default(),
            second: Buffer::default(),
            budget: usize::try_from(files).map_or(MAX_OPEN, |files| files.min(MAX_OPEN)),
        }
    }
}

impl Scratch {
    /// With this number of files that may stay open.
    #[cfg(test)]
    pub(super) fn with_budget(budget: usize) -> Self {
        Self { budget, ..Self::default() }
    }

    /// The content of a pseudo file, which the kernel generates while it is read.
    ///
    /// # Errors
    /// It cannot be opened or read, or is not UTF-8.
    pub fn read(&mut self, path: &str) -> io::Result<&str> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let length = read_all(&file, &mut self.first)?;
        text(&self.first, length)
    }
}

/// The open files of one cgroup.
#[derive(Debug, Default)]
pub struct Handles(Vec<(CgroupFile, OwnedFd)>);

impl Handles {
    /// Number of open files.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no file is open.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Closes all of them.
    pub fn close(&mut self, scratch: &mut Scratch) {
        scratch.budget += self.0.len();
        self.0 = Vec::new();
    }

    /// Closes all files except those that show whether anything changed.
    pub fn close_rarely_read(&mut self, scratch: &mut Scratch) {
        let before = self.0.len();
        self.0.retain(|(file, _)| file.shows_activity());
        self.0.shrink_to_fit();
        scratch.budget += before - self.0.len();
    }
}

/// A cgroup's directory in one hierarchy.
pub(super) struct CgroupDirectory(OwnedFd);

impl CgroupDirectory {
    pub(super) fn open(path: &Path) -> io::Result<CgroupDirectory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(CgroupDirectory(rustix::fs::open(path, flags, Mode::empty())?))
    }

    fn file(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::empty())?)
    }

    pub(super) fn read<'a>(&self, name: &str, buffer: &'a mut Buffer) -> io::Result<&'a str> {
        let length = read_all(&self.file(name)?, buffer)?;
        text(buffer, length)
    }

    /// The number in a file that contains only one.
    pub(super) fn number(&self, name: &str, buffer: &mut Buffer) -> Option<u64> {
        super::parse::number(self.read(name, buffer).ok()?)
    }
}

/// One reading of a cgroup: its directories are opened at most once, and only if needed.
pub(super) struct CgroupReading<'a> {
    pub(super) fs: &'a CgroupFs,
    pub(super) path: &'a str,
    pub(super) handles: &'a mut Handles,
    /// Number of additional files that may stay open.
    pub(super) budget: &'a mut usize,
    /// Whether files opened now stay open.
    pub(super) keep: bool,
    directories: Vec<(&'static str, CgroupDirectory)>,
}

impl<'a> CgroupReading<'a> {
    /// A reading with two buffers.
    pub(super) fn new(
        fs: &'a CgroupFs,
        path: &'a str,
        handles: &'a mut Handles,
        scratch: &'a mut Scratch,
    ) -> (Self, &'a mut Buffer, &'a mut Buffer) {
        let reading = Self {
            fs,
            path,
            handles,
            budget: &mut scratch.budget,
            keep: false,
            directories: Vec::new(),
        };
        (reading, &mut scratch.first, &mut scratch.second)
    }

    pub(super) fn read<'b>(
        &mut self,
        file: CgroupFile,
        buffer: &'b mut Buffer,
    ) -> io::Result<&'b str> {
        let held = self.handles.0.iter().position(|(held, _)| *held == file);
        if let Some(at) = held {
            let read = match self.handles.0.get(at) {
                Some((_, open)) => read_all(open, buffer),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            match read {
                Ok(length) => return text(buffer, length),
                // The cgroup was removed, and may have been created again.
                Err(_) => {
                    *self.budget += self.handles.0.len();
                    self.handles.0.clear();
                }
            }
        }
        let location = file.location(self.fs.is_v2());
        let (controller, name) = location.ok_or(io::ErrorKind::NotFound)?;
        let open = self.directory(controller)?.file(name)?;
        let length = read_all(&open, buffer)?;
        if (self.keep || file.shows_activity()) && self.fs.detects_removal() && *self.budget > 0 {
            *self.budget -= 1;
            self.handles.0.push((file, open));
        }
        text(buffer, length)
    }

    /// The number in a file that contains only one.
    pub(super) fn number(&mut self, file: CgroupFile, buffer: &mut Buffer) -> Option<u64> {
        super::parse::number(self.read(file, buffer).ok()?)
    }

    fn directory(&mut self, controller: &'static str) -> io::Result<&CgroupDirectory> {
        let at = self.directories.iter().position(|(of, _)| *of == controller);
        let at = match at {
            Some(at) => at,
            None => {
                let opened = CgroupDirectory::open(&self.fs.directory(controller, self.path))?;
                self.directories.push((controller, opened));
                self.directories.len() - 1
            }
        };
        let found = self.directories.get(at).map(|(_, directory)| directory);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Reads a file from its beginning; returns the number of bytes.
fn read_all(file: &OwnedFd, buffer: &mut Buffer) -> io::Result<usize> {
    let mut length = 0;
    while length < MAX_FILE_BYTES {
        if buffer.0.len() < length + CHUNK {
            buffer.0.resize(length + CHUNK, 0);
        }
        let budget = buffer.0.get_mut(length..length + CHUNK);
        let budget = budget.unwrap_or_default();
        let at = u64::try_from(length).unwrap_or(u64::MAX);
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *budget, at))?;
        length += read;
        // The kernel fills the buffer unless the end of the file is near.
        if read < CHUNK / 2 {
            break;
        }
    }
    Ok(length)
}

fn text(buffer: &Buffer, length: usize) -> io::Result<&str> {
    let bytes = buffer.0.get(..length).unwrap_or_default();
    std::str::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}
