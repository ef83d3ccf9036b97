//! Reading a cgroup's files. Blocking, though the kernel makes them from memory.

use super::{
    CpuUsage, Limits, MemoryUsage, Pressures, TaskCount, Usage,
    parse::{self, parse_pressure},
};
use crate::host::proc::MemInfo;
use rustix::fs::{Mode, OFlags};
use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// The longest file that is read: 100,000 process ids.
const LONGEST: usize = 1 << 20;
/// What is asked for at a time; most files fit.
const CHUNK: usize = 4096;

/// Where cgroups are.
#[derive(Clone, Debug)]
pub struct CgroupFs {
    root: PathBuf,
    v2: bool,
}

/// Room for a file's content, used again for the next.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<u8>,
    second: Vec<u8>,
}

/// A cgroup's directory in one hierarchy.
struct Directory(OwnedFd);

impl Directory {
    fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Directory(rustix::fs::open(path, flags, Mode::empty())?))
    }

    fn read<'a>(&self, name: &str, bytes: &'a mut Vec<u8>) -> io::Result<&'a str> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        read_all(&file, bytes)
    }

    /// A file's only number.
    fn number(&self, name: &str, scratch: &mut Scratch) -> Option<u64> {
        parse::number(self.read(name, &mut scratch.bytes).ok()?)
    }

    /// A file's only number, unless it means that there is no limit.
    fn limit(&self, name: &str, scratch: &mut Scratch) -> Option<u64> {
        parse::limit(self.read(name, &mut scratch.bytes).ok()?)
    }
}

fn read_all<'a>(file: &OwnedFd, bytes: &'a mut Vec<u8>) -> io::Result<&'a str> {
    bytes.clear();
    while bytes.len() < LONGEST {
        let before = bytes.len();
        bytes.resize(before + CHUNK, 0);
        let room = bytes.get_mut(before..).unwrap_or_default();
        let read = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut *room));
        bytes.truncate(before + read.as_ref().copied().unwrap_or(0));
        // The kernel fills what it is given unless the end is near.
        if read? < CHUNK / 2 {
            break;
        }
    }
    std::str::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

impl CgroupFs {
    /// The hierarchies below `root` (`/sys/fs/cgroup`); whether they are one of version 2.
    pub fn new(root: impl Into<PathBuf>, v2: bool) -> Self {
        Self {
            root: root.into(),
            v2,
        }
    }

    /// Whether this is version 2.
    pub fn is_v2(&self) -> bool {
        self.v2
    }

    /// A hierarchy that has every cgroup with memory of its own.
    pub(super) fn tree(&self) -> PathBuf {
        match self.v2 {
            true => self.root.clone(),
            false => self.root.join("memory"),
        }
    }

    fn directory(&self, controller: &str, path: &str) -> io::Result<Directory> {
        let mut full = self.root.clone();
        if !self.v2 {
            full.push(controller);
        }
        full.push(path.trim_start_matches('/'));
        Directory::open(&full)
    }

    /// The two numbers that tell whether anything happened: CPU time in nanoseconds, and bytes of
    /// memory.
    ///
    /// # Errors
    /// The cgroup is not there, or has neither controller.
    pub fn pulse(&self, path: &str, scratch: &mut Scratch) -> io::Result<(u64, u64)> {
        if self.v2 {
            let directory = self.directory("", path)?;
            let text = directory.read("cpu.stat", &mut scratch.bytes)?;
            let cpu = parse::cpu_stat_v2(text).0.total;
            let memory = directory.number("memory.current", scratch);
            return Ok((cpu, memory.unwrap_or_default()));
        }
        let one = |controller: &str, name: &str, scratch: &mut Scratch| {
            let mut full = self.root.join(controller);
            full.push(path.trim_start_matches('/'));
            full.push(name);
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(&full, flags, Mode::empty())?;
            let text = read_all(&file, &mut scratch.bytes)?;
            parse::number(text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        let cpu = one("cpuacct", "cpuacct.usage", scratch)?;
        let memory = one("memory", "memory.usage_in_bytes", scratch).unwrap_or_default();
        Ok((cpu, memory))
    }

    /// Everything that a cgroup has used. Throttling is read where `quota` says that there is one.
    ///
    /// # Errors
    /// The cgroup is not there.
    pub fn usage(&self, path: &str, quota: bool, scratch: &mut Scratch) -> io::Result<Usage> {
        match self.v2 {
            true => self.usage_v2(path, quota, scratch),
            false => self.usage_v1(path, quota, scratch),
        }
    }

    fn usage_v2(&self, path: &str, quota: bool, scratch: &mut Scratch) -> io::Result<Usage> {
        let directory = self.directory("", path)?;
        let mut usage = Usage::default();
        if let Ok(text) = directory.read("cpu.stat", &mut scratch.bytes) {
            let (cpu, throttling) = parse::cpu_stat_v2(text);
            usage.cpu = Some(cpu);
            usage.throttling = quota.then_some(throttling);
        }
        if let Some(bytes) = directory.number("memory.current", scratch) {
            let mut memory = MemoryUsage {
                usage: bytes,
                max_usage: directory.number("memory.peak", scratch),
                swap: directory
                    .number("memory.swap.current", scratch)
                    .unwrap_or(0),
                ..MemoryUsage::default()
            };
            if let Ok(text) = directory.read("memory.stat", &mut scratch.bytes) {
                parse::memory_stat_v2(text, &mut memory);
            }
            if let Ok(text) = directory.read("memory.events", &mut scratch.bytes) {
                memory.failures = parse::value_of(text, "max");
                memory.oom_kills = parse::value_of(text, "oom_kill");
            }
            usage.memory = Some(memory);
        }
        usage.tasks = tasks(&directory, scratch);
        if let Ok(text) = directory.read("io.stat", &mut scratch.bytes) {
            usage.io = parse::io_stat_v2(text);
        }
        usage.pressure = pressures(&directory, scratch);
        Ok(usage)
    }

    fn usage_v1(&self, path: &str, quota: bool, scratch: &mut Scratch) -> io::Result<Usage> {
        let mut usage = Usage::default();
        let directory = self.directory("memory", path)?;
        if let Some(bytes) = directory.number("memory.usage_in_bytes", scratch) {
            let mut memory = MemoryUsage {
                usage: bytes,
                max_usage: directory.number("memory.max_usage_in_bytes", scratch),
                failures: directory.number("memory.failcnt", scratch).unwrap_or(0),
                kernel: directory
                    .number("memory.kmem.usage_in_bytes", scratch)
                    .unwrap_or(0),
                ..MemoryUsage::default()
            };
            if let Ok(text) = directory.read("memory.stat", &mut scratch.bytes) {
                parse::memory_stat_v1(text, &mut memory);
            }
            if let Ok(text) = directory.read("memory.oom_control", &mut scratch.bytes) {
                memory.oom_kills = parse::value_of(text, "oom_kill");
            }
            usage.memory = Some(memory);
        }
        if let Ok(directory) = self.directory("cpuacct", path)
            && let Some(total) = directory.number("cpuacct.usage", scratch)
        {
            let text = directory.read("cpuacct.stat", &mut scratch.bytes);
            let (user, system) = text.map(parse::cpuacct_stat).unwrap_or_default();
            usage.cpu = Some(CpuUsage {
                total,
                user,
                system,
            });
        }
        if quota && let Ok(directory) = self.directory("cpu", path) {
            let text = directory.read("cpu.stat", &mut scratch.bytes);
            usage.throttling = text.ok().map(parse::cpu_stat_v1);
        }
        if let Ok(directory) = self.directory("pids", path) {
            usage.tasks = tasks(&directory, scratch);
        }
        if let Ok(directory) = self.directory("blkio", path) {
            let Scratch { bytes, second } = scratch;
            let bytes = directory.read("blkio.throttle.io_service_bytes_recursive", bytes);
            let count = directory.read("blkio.throttle.io_serviced_recursive", second);
            usage.io = parse::blkio(bytes.unwrap_or_default(), count.unwrap_or_default());
        }
        Ok(usage)
    }

    /// The memory of the whole machine as if it were one cgroup's, for version 2, whose root does not
    /// count it.
    pub fn memory_of_machine(&self, info: &MemInfo, scratch: &mut Scratch) -> MemoryUsage {
        let mut memory = MemoryUsage::default();
        if let Ok(root) = self.directory("memory", "/")
            && let Ok(text) = root.read("memory.stat", &mut scratch.bytes)
        {
            parse::memory_stat_v2(text, &mut memory);
        }
        MemoryUsage {
            usage: info.total.saturating_sub(info.free),
            rss: info.anonymous,
            swap: info.swap_total.saturating_sub(info.swap_free),
            ..memory
        }
    }

    /// How many processes a cgroup has, and one of them.
    pub fn tasks(&self, path: &str, scratch: &mut Scratch) -> Option<TaskCount> {
        tasks(&self.directory("pids", path).ok()?, scratch)
    }

    /// What a cgroup may use. What cannot be read is as if it were not limited.
    pub fn limits(&self, path: &str, scratch: &mut Scratch) -> Limits {
        let mut limits = Limits::default();
        if let Ok(cpu) = self.directory("cpu", path) {
            if self.v2 {
                let weight = cpu.number("cpu.weight", scratch);
                limits.cpu_shares = weight.and_then(parse::shares_of_weight);
                if let Ok(text) = cpu.read("cpu.max", &mut scratch.bytes) {
                    (limits.cpu_quota, limits.cpu_period) = parse::cpu_max(text);
                }
            } else {
                limits.cpu_shares = cpu.number("cpu.shares", scratch);
                limits.cpu_period = cpu.number("cpu.cfs_period_us", scratch);
                // Without a quota it is -1, which is no such number.
                limits.cpu_quota = cpu.number("cpu.cfs_quota_us", scratch);
            }
        }
        if let Ok(memory) = self.directory("memory", path) {
            let [limit, swap, reservation] = match self.v2 {
                true => ["memory.max", "memory.swap.max", "memory.min"],
                false => [
                    "memory.limit_in_bytes",
                    "memory.memsw.limit_in_bytes",
                    "memory.soft_limit_in_bytes",
                ],
            };
            limits.has_memory = memory.read(limit, &mut scratch.bytes).is_ok();
            limits.memory = memory.limit(limit, scratch);
            limits.swap = memory.limit(swap, scratch);
            limits.reservation = memory.limit(reservation, scratch);
        }
        if let Ok(pids) = self.directory("pids", path) {
            limits.threads = pids.limit("pids.max", scratch);
        }
        limits
    }
}

fn tasks(directory: &Directory, scratch: &mut Scratch) -> Option<TaskCount> {
    let text = directory.read("cgroup.procs", &mut scratch.bytes).ok()?;
    let (processes, one) = parse::processes(text);
    let threads = directory.number("pids.current", scratch).unwrap_or(0);
    Some(TaskCount {
        processes,
        threads,
        one,
    })
}

fn pressures(directory: &Directory, scratch: &mut Scratch) -> Option<Pressures> {
    let mut one = |name: &str| {
        let text = directory.read(name, &mut scratch.bytes).ok()?;
        Some(parse_pressure(text))
    };
    Some(Pressures {
        cpu: one("cpu.pressure")?,
        memory: one("memory.pressure")?,
        io: one("io.pressure")?,
    })
}
