//! Access to the kernel and the machine: mounts, `/proc`, `/sys`, the kernel log, protected file access.
//!
//! * Owns: every mount(2) and openat2(2), the parsers of kernel text files, [`HostMachine`], its [`MachineIdentity`]
//!   and address, and the settings of the heap.
//! * Woken by its callers; publishes nothing; keeps no state.
//! * Must never know about pods, and never follow a link or cross a mount while deleting.
//! * Functions that access the machine block: call them from `spawn_blocking`.
//! * Upstream: `k8s.io/mount-utils` and the parts of cAdvisor that a kubelet uses: machine info, cgroup usage, disk
//!   usage of directories.

mod address;
pub mod files;
mod identity;
mod kernel_log;
mod kernel_tunables;
mod lock_file;
mod machine;
pub mod memory;
mod mountinfo;
pub mod mount;
mod peer;
pub mod proc;
pub mod process_metrics;
pub mod profile;
pub mod program;
pub mod remove;
mod tree_walk;
mod disk_usage;
mod project_quota;
mod service_manager;
mod confined;
mod system_bus;
mod logind;
mod system;
mod systemd;
pub mod cgroup;
mod port_owner;
mod proc_dir;
mod process_limits;
pub mod terminal;
mod topology;
pub mod unix_socket;

pub use address::own_address;
pub use confined::{ConfinedFile, open_confined};
pub use disk_usage::{DiskUsage, DiskWalk, disk_usage, files_usage};
pub use identity::MachineIdentity;
pub use kernel_log::{KERNEL_LOG, KernelLog, KernelLogEnd};
pub use kernel_tunables::{KernelTunableBehavior, set_up_kernel_tunables};
pub use lock_file::{LockFile, take_lock};
pub use logind::{InhibitLock, LOGIND_CONFIG_DIRECTORY, Logind, write_inhibit_delay};
pub use machine::{
    FilesystemUsage, HostMachine, filesystem_usage, go_architecture, huge_pages, online_cpus,
    parse_cpu_list, parse_mem_total,
};
pub use mountinfo::{MountEntry, parse_mountinfo};
pub use peer::shares_namespaces;
pub use port_owner::listener_of;
pub use proc_dir::ProcDir;
pub use process_limits::{allow_open_files, set_oom_score_adj};
pub use program::ProgramEnd;
pub use project_quota::{limit_project, project_of, project_usage, set_project};
pub use service_manager::ServiceManager;
pub use system::System;
pub use system_bus::{BusError, SystemBus};
#[cfg(test)]
pub(crate) use systemd::fake as systemd_fake;
pub use systemd::{PropertyValue, Slices, UnitProperty};
pub use topology::{CpuPlace, MachineTopology, NumaNode};
pub use tree_walk::TreeWalk;

#[cfg(test)]
pub(crate) mod quota_disk;
#[cfg(test)]
pub(crate) mod tcp_table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod topology_tests;
