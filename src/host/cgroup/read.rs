//! Reads the files of a cgroup. Blocking, but the kernel generates them from memory.

use super::files::{Buffer, CgroupDirectory, CgroupFile, CgroupReading, Handles, Scratch};
use super::parse::{self, parse_pressure};
use super::{
    CgroupFs, CgroupLimits, CgroupUsage, CpuUsage, Depth, MemoryUsage, Pressures, ReadOptions,
    TaskCount,
};
use crate::host::proc::MemInfo;
use std::io;

impl CgroupFs {
    /// Reads the two values that show whether anything changed: total CPU time and memory. Their files are kept open
    /// in `handles` as far as the budget in `scratch` allows.
    ///
    /// # Errors
    /// The cgroup does not exist, or has neither controller.
    pub fn read_activity(
        &self,
        path: &str,
        handles: &mut Handles,
        scratch: &mut Scratch,
    ) -> io::Result<CgroupUsage> {
        let (mut reading, buffer, _) = CgroupReading::new(self, path, handles, scratch);
        let mut usage = CgroupUsage::default();
        let memory = reading.read(CgroupFile::Memory, buffer).map(parse::number);
        if let Ok(Some(usage_now)) = memory {
            usage.memory = Some(MemoryUsage { usage: usage_now, ..MemoryUsage::default() });
        }
        let cpu = reading.read(CgroupFile::Cpu, buffer);
        if self.is_v2() {
            let text = if memory.is_ok() { cpu.unwrap_or_default() } else { cpu? };
            if !text.is_empty() {
                let (cpu, throttling) = parse::cpu_stat_v2(text);
                (usage.cpu, usage.throttling) = (Some(cpu), Some(throttling));
            }
            return Ok(usage);
        }
        // A v1 cgroup without its memory directory is being removed.
        memory?;
        let total = cpu.ok().and_then(parse::number);
        usage.cpu = total.map(|total| CpuUsage { total, ..CpuUsage::default() });
        Ok(usage)
    }

    /// Reads the remaining usage for the requested depth; missing values are left out.
    pub fn complete(
        &self,
        path: &str,
        options: ReadOptions,
        usage: &mut CgroupUsage,
        handles: &mut Handles,
        scratch: &mut Scratch,
    ) {
        let (mut reading, first, second) = CgroupReading::new(self, path, handles, scratch);
        reading.keep = options.keep_open;
        if !options.has_cpu_quota {
            usage.throttling = None;
        }
        if let Some(memory) = &mut usage.memory {
            if let Ok(text) = reading.read(CgroupFile::MemoryStat, first) {
                if self.is_v2() {
                    parse::memory_stat_v2(text, memory)
                } else {
                    parse::memory_stat_v1(text, memory)
                }
            }
            if let Some(swap) =
                self.is_v2().then(|| reading.number(CgroupFile::Swap, first)).flatten()
            {
                memory.swap = swap;
            }
        }
        if options.depth >= Depth::Common {
            usage.tasks = tasks(&mut reading, first);
            usage.pressure = pressures(&mut reading, first);
        }
        if options.depth >= Depth::Full {
            read_cadvisor_values(&mut reading, usage, options.has_cpu_quota, first, second);
        }
    }

    /// Memory usage of the whole machine in the form of a cgroup's. `root` is the root cgroup's, which on cgroup v2 has no
    /// file with its usage, and on v1 one that lacks kernel memory.
    pub fn memory_of_machine(
        &self,
        info: &MemInfo,
        root: Option<MemoryUsage>,
        scratch: &mut Scratch,
    ) -> MemoryUsage {
        let memory = root.unwrap_or_else(|| {
            let mut memory = MemoryUsage::default();
            if let Ok(root) = CgroupDirectory::open(&self.directory("memory", "/"))
                && let Ok(text) = root.read("memory.stat", &mut scratch.first)
            {
                parse::memory_stat_v2(text, &mut memory);
            }
            memory.rss = info.anonymous;
            memory.swap = info.swap_total.saturating_sub(info.swap_free);
            memory
        });
        if info.total == 0 {
            // Not read.
            return memory;
        }
        MemoryUsage { usage: info.used(), inactive_file: info.inactive_file, ..memory }
    }

    /// The limits of a cgroup. Values that cannot be read count as unlimited.
    pub fn limits(&self, path: &str, scratch: &mut Scratch) -> CgroupLimits {
        let mut limits = CgroupLimits::default();
        let buffer = &mut scratch.first;
        if let Ok(cpu) = CgroupDirectory::open(&self.directory("cpu", path)) {
            if self.is_v2() {
                let weight = cpu.number("cpu.weight", buffer);
                limits.cpu_shares = weight.and_then(parse::shares_of_weight);
                if let Ok(text) = cpu.read("cpu.max", buffer) {
                    (limits.cpu_quota, limits.cpu_period) = parse::cpu_max(text);
                }
            } else {
                limits.cpu_shares = cpu.number("cpu.shares", buffer);
                limits.cpu_period = cpu.number("cpu.cfs_period_us", buffer);
                // -1, which means no quota, does not parse as `u64`.
                limits.cpu_quota = cpu.number("cpu.cfs_quota_us", buffer);
            }
        }
        if let Ok(memory) = CgroupDirectory::open(&self.directory("memory", path)) {
            let [limit, swap, reservation] = if self.is_v2() {
                ["memory.max", "memory.swap.max", "memory.min"]
            } else {
                [
                    "memory.limit_in_bytes",
                    "memory.memsw.limit_in_bytes",
                    "memory.soft_limit_in_bytes",
                ]
            };
            let text = memory.read(limit, buffer);
            limits.has_memory = text.is_ok();
            limits.memory = text.ok().and_then(parse::limit);
            let mut limit = |name| parse::limit(memory.read(name, buffer).ok()?);
            limits.swap = limit(swap);
            limits.reservation = limit(reservation);
        }
        if let Ok(pids) = CgroupDirectory::open(&self.directory("pids", path)) {
            let text = pids.read("pids.max", buffer);
            limits.threads = text.ok().and_then(parse::limit);
        }
        limits
    }
}

fn tasks(reading: &mut CgroupReading<'_>, buffer: &mut Buffer) -> Option<TaskCount> {
    let (processes, any_pid) = parse::processes(reading.read(CgroupFile::Processes, buffer).ok()?);
    Some(TaskCount {
        processes,
        threads: reading.number(CgroupFile::Threads, buffer).unwrap_or(0),
        any_pid,
    })
}

fn pressures(reading: &mut CgroupReading<'_>, buffer: &mut Buffer) -> Option<Pressures> {
    let mut one = |file| Some(parse_pressure(reading.read(file, buffer).ok()?));
    Some(Pressures {
        cpu: one(CgroupFile::CpuPressure)?,
        memory: one(CgroupFile::MemoryPressure)?,
        io: one(CgroupFile::IoPressure)?,
    })
}

/// Reads the values that only the metrics of cAdvisor need.
fn read_cadvisor_values(
    reading: &mut CgroupReading<'_>,
    usage: &mut CgroupUsage,
    has_cpu_quota: bool,
    first: &mut Buffer,
    second: &mut Buffer,
) {
    let v2 = reading.fs.is_v2();
    if let Some(memory) = &mut usage.memory {
        memory.max_usage = reading.number(CgroupFile::MemoryPeak, first);
        if let Ok(text) = reading.read(CgroupFile::MemoryEvents, first) {
            memory.oom_kills = parse::value_of(text, "oom_kill");
            if v2 {
                memory.failures = parse::value_of(text, "max");
            }
        }
        if !v2 {
            memory.failures = reading.number(CgroupFile::MemoryFailures, first).unwrap_or(0);
            memory.kernel = reading.number(CgroupFile::KernelMemory, first).unwrap_or(0);
        }
    }
    let bytes = reading.read(CgroupFile::IoBytes, first).unwrap_or_default();
    if v2 {
        usage.io = parse::io_stat_v2(bytes);
        return;
    }
    // Both files list the same devices.
    if bytes.contains(':') {
        let count = reading.read(CgroupFile::IoCount, second).unwrap_or_default();
        usage.io = parse::blkio(bytes, count);
    }
    if let Some(cpu) = &mut usage.cpu {
        let text = reading.read(CgroupFile::CpuTimes, first);
        (cpu.user, cpu.system) = text.map(parse::cpuacct_stat).unwrap_or_default();
    }
    if has_cpu_quota {
        let text = reading.read(CgroupFile::Throttling, first);
        usage.throttling = text.ok().map(parse::cpu_stat_v1);
    }
}
