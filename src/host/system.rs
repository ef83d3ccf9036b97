//! Where the machine is read and changed.

use super::SystemBus;
use std::{path::PathBuf, sync::Arc};

/// The directories of the kernel's file systems, and the message bus. Tests replace them.
#[derive(Clone)]
pub struct System {
    /// A directory of plain directories instead of the kernel's cgroups.
    pub cgroups: Option<PathBuf>,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`, for processes that are moved between cgroups.
    pub proc: PathBuf,
    /// Where systemd and logind are.
    pub bus: Arc<SystemBus>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            cgroups: None,
            sys: "/sys".into(),
            proc: "/proc".into(),
            bus: Arc::default(),
        }
    }
}
