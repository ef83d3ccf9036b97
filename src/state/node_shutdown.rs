//! Whether the node is shutting down.
//!
//! * Owns: one flag.
//! * Woken by: the shutdown manager, the only writer.
//! * Publishes: the flag, for the node status and for admission.

use tokio::sync::watch;

/// Reading end; cheap to clone.
pub type NodeShutdownReader = watch::Receiver<bool>;
/// Writing end.
pub type NodeShutdownWriter = watch::Sender<bool>;
