//! Memory, disk and PID pressure of the node.
//!
//! * Owns: the pressure conditions of the last eviction pass, including those that are kept true for the transition
//!   period.
//! * Woken by: the eviction manager, the only writer.
//! * Publishes: the conditions, for the node status and for admission.
//! * Must never report pressure before the first measurement.

use tokio::sync::watch;

/// The pressure conditions of the node.
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
    /// The types of the conditions that are true.
    pub fn conditions(self) -> Vec<&'static str> {
        let all = [
            ("MemoryPressure", self.memory),
            ("DiskPressure", self.disk),
            ("PIDPressure", self.pid),
        ];
        all.into_iter().filter_map(|(name, is)| is.then_some(name)).collect()
    }
}

/// Reading end; cheap to clone.
pub type NodePressureReader = watch::Receiver<NodePressure>;
/// Writing end.
pub type NodePressureWriter = watch::Sender<NodePressure>;
