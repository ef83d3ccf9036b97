//! Cgroups of both versions: their resource usage and limits.

mod files;
mod fs;
mod hierarchies;
mod join;
mod kill;
mod membership;
mod parse;
mod path;
mod read;
mod settings;
mod slice;
mod walk;
mod writer;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod writer_tests;

pub use files::{Handles, Scratch};
pub use fs::CgroupFs;
pub use membership::{NotAccounted, ProcessCgroups};
pub use parse::{PressureLine, parse_pressure};
pub use path::{BadCgroupPath, CgroupPath};
pub use settings::{CgroupSettings, cpu_weight};
pub use walk::Descend;
pub use writer::Cgroups;

/// How much of a cgroup's usage to read; each level includes the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// CPU time, memory and swap.
    #[default]
    Core,
    /// Processes and pressure as well.
    Common,
    /// Peak memory, limit hits, OOM kills and I/O as well; on v1 also kernel memory, user and system CPU time, and
    /// throttling.
    Full,
}

/// What to read of a cgroup after [`CgroupFs::read_activity`].
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// How much of its usage.
    pub depth: Depth,
    /// Whether it has a CPU quota; without one throttling is not read.
    pub has_cpu_quota: bool,
    /// Whether the files stay open.
    pub keep_open: bool,
}

/// The resource usage of a cgroup, as far as its controllers are enabled. Counters never decrease while the cgroup
/// exists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupUsage {
    /// CPU time.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// CPU throttling; read only if there is a CPU quota.
    pub throttling: Option<Throttling>,
    /// Processes and threads.
    pub tasks: Option<TaskCount>,
    /// Reads and writes by device.
    pub io: Vec<DeviceIo>,
    /// Pressure stall information, if the kernel has it for cgroups (v2 only).
    pub pressure: Option<Pressures>,
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// Total.
    pub total: u64,
    /// In user mode.
    pub user: u64,
    /// In kernel mode.
    pub system: u64,
}

/// Memory in bytes, and counters of memory events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Total charged memory, including the page cache.
    pub usage: u64,
    /// The peak usage; `None` on kernels without it.
    pub max_usage: Option<u64>,
    /// Page cache.
    pub cache: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Swap in use.
    pub swap: u64,
    /// Kernel memory.
    pub kernel: u64,
    /// Mapped files.
    pub mapped_file: u64,
    /// Active page cache.
    pub active_file: u64,
    /// Inactive page cache, which is reclaimed first.
    pub inactive_file: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that needed a disk read.
    pub major_page_faults: u64,
    /// How many times the limit was hit.
    pub failures: u64,
    /// Processes killed by the OOM killer.
    pub oom_kills: u64,
}

impl MemoryUsage {
    /// The working set: usage without the inactive page cache.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

/// CPU throttling by the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Elapsed enforcement periods.
    pub periods: u64,
    /// Periods in which the quota was exhausted.
    pub throttled_periods: u64,
    /// Throttled time in nanoseconds.
    pub throttled: u64,
    /// Periods in which burst was used.
    pub burst_periods: u64,
    /// Time used in bursts, in nanoseconds.
    pub burst: u64,
}

/// Number of processes and threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Processes directly in the cgroup.
    pub processes: u64,
    /// Threads, including those of descendants.
    pub threads: u64,
    /// The PID of any one of the processes.
    pub any_pid: Option<u32>,
}

/// I/O of one block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Major and minor number.
    pub device: (u32, u32),
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Pressure stall information of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Time in which at least one task was stalled.
    pub some: PressureLine,
    /// Time in which all tasks were stalled.
    pub full: PressureLine,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressures {
    /// CPU.
    pub cpu: Pressure,
    /// Memory.
    pub memory: Pressure,
    /// I/O.
    pub io: Pressure,
}

/// The limits of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// CPU shares, in the units of cgroup v1.
    pub cpu_shares: Option<u64>,
    /// CPU quota period in microseconds.
    pub cpu_period: Option<u64>,
    /// CPU quota in microseconds per period; `None` without one.
    pub cpu_quota: Option<u64>,
    /// Memory limit in bytes; as below, `None` means no limit.
    pub memory: Option<u64>,
    /// In bytes: memory and swap together (v1), or swap alone (v2).
    pub swap: Option<u64>,
    /// Memory reservation in bytes.
    pub reservation: Option<u64>,
    /// Maximum number of threads.
    pub threads: Option<u64>,
    /// Whether the memory controller is enabled.
    pub has_memory: bool,
}
