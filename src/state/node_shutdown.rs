//! Whether the machine is going down.
//!
//! * Owns: that one fact.
//! * Woken by: the task that watches for the shutdown of the node, its one writer.
//! * Publishes: it, for the Node object and for admission.

use tokio::sync::watch;

/// Reading end; cheap to clone.
pub type NodeShutdownReader = watch::Receiver<bool>;
/// Writing end.
pub type NodeShutdownWriter = watch::Sender<bool>;
