//! What the node is short of.
//!
//! * Owns: the pressure that the last measurement showed, or that was there not long ago.
//! * Woken by: the task that evicts pods, its one writer.
//! * Publishes: conditions for the Node object and for admission.
//! * Must never say anything of a node that was not measured.

use tokio::sync::watch;

/// The conditions of the node that say what it is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// `MemoryPressure`.
    pub memory: bool,
    /// `DiskPressure`.
    pub disk: bool,
    /// `PIDPressure`.
    pub pid: bool,
}

impl NodePressure {
    /// The conditions that are true, by type.
    pub fn conditions(self) -> Vec<&'static str> {
        let all = [
            ("MemoryPressure", self.memory),
            ("DiskPressure", self.disk),
            ("PIDPressure", self.pid),
        ];
        all.into_iter()
            .filter_map(|(name, is)| is.then_some(name))
            .collect()
    }
}

/// Reading end; cheap to clone.
pub type NodePressureReader = watch::Receiver<NodePressure>;
/// Writing end.
pub type NodePressureWriter = watch::Sender<NodePressure>;
