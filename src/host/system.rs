//! The interfaces of the machine, which tests replace.

use super::{KERNEL_LOG, SystemBus};
use std::path::PathBuf;
use std::sync::Arc;

/// The directories of kernel file systems, the kernel log, and the message bus.
#[derive(Clone)]
pub struct System {
    /// A directory that replaces the cgroup hierarchies; `None` for the real ones.
    pub cgroups: Option<PathBuf>,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`, for moving processes between cgroups.
    pub proc: PathBuf,
    /// `/dev/kmsg`.
    pub kernel_log: PathBuf,
    /// The bus of systemd and logind.
    pub bus: Arc<SystemBus>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            cgroups: None,
            sys: "/sys".into(),
            proc: "/proc".into(),
            kernel_log: KERNEL_LOG.into(),
            bus: Arc::default(),
        }
    }
}
