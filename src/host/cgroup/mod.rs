//! Groups of processes in both versions of cgroups: what the kernel counts for them, and what they may use.

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

/// How much of what a cgroup has used is wanted; each has what the one before has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// All CPU time, memory and swap.
    #[default]
    Core,
    /// Processes, and time lost waiting.
    Common,
    /// The rest.
    Everything,
}

/// What a cgroup has used, as far as its controllers are there. Counters never go back while the
/// cgroup lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupUsage {
    /// CPU time.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// What the CPU quota did; only read where there is a quota.
    pub throttling: Option<Throttling>,
    /// Processes and threads.
    pub tasks: Option<TaskCount>,
    /// Reads and writes by device.
    pub io: Vec<DeviceIo>,
    /// Time lost waiting, where the kernel measures it for cgroups (version 2 only).
    pub pressure: Option<Pressures>,
}

/// CPU time, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// All of it.
    pub total: u64,
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
}

/// Memory, bytes, and counts of what happened to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All that is charged, the page cache included.
    pub usage: u64,
    /// The most there ever was; absent on kernels that do not keep it.
    pub max_usage: Option<u64>,
    /// Page cache.
    pub cache: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Swapped out.
    pub swap: u64,
    /// Kernel memory.
    pub kernel: u64,
    /// Mapped files.
    pub mapped_file: u64,
    /// Page cache in use.
    pub active_file: u64,
    /// Page cache that would go first.
    pub inactive_file: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that read from a disk.
    pub major_page_faults: u64,
    /// How often the limit was hit.
    pub failures: u64,
    /// Processes killed for want of memory.
    pub oom_kills: u64,
}

impl MemoryUsage {
    /// Memory that cannot simply be taken back: usage without the inactive page cache.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

/// What a CPU quota did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods that were enforced.
    pub periods: u64,
    /// Those of them in which the quota was used up.
    pub throttled_periods: u64,
    /// Time spent throttled, nanoseconds.
    pub throttled: u64,
    /// Periods with a burst.
    pub burst_periods: u64,
    /// Time spent in bursts, nanoseconds.
    pub burst: u64,
}

/// How many run in a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Processes of the cgroup itself.
    pub processes: u64,
    /// Threads, those of cgroups below included.
    pub threads: u64,
    /// Any one of the processes.
    pub one: Option<u32>,
}

/// What went to and from one block device.
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

/// Time lost waiting for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: PressureLine,
    /// All tasks waited.
    pub full: PressureLine,
}

/// Time lost waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressures {
    /// For a CPU.
    pub cpu: Pressure,
    /// For memory.
    pub memory: Pressure,
    /// For disks.
    pub io: Pressure,
}

/// What a cgroup may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Shares of the CPU, in version 1's scale.
    pub cpu_shares: Option<u64>,
    /// Period of the quota, microseconds.
    pub cpu_period: Option<u64>,
    /// Microseconds per period; `None` without a quota.
    pub cpu_quota: Option<u64>,
    /// Bytes; `None` without a limit, like those below.
    pub memory: Option<u64>,
    /// Bytes of memory and swap together (version 1), or of swap alone (version 2).
    pub swap: Option<u64>,
    /// Bytes that are kept for it.
    pub reservation: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// The memory controller is there.
    pub has_memory: bool,
}
