//! Container logs as the runtime writes them.
//!
//! * Owns: the CRI log format, and reading a log file from its end.
//! * Woken by its callers; publishes nothing.
//! * Must never hold more of a file than a fixed amount, whatever is in it, or run on an async thread
//!   (the readers here block; callers use `spawn_blocking`).
//! * Answers to upstream's `pkg/kubelet/kuberuntime/logs`.

mod line;
pub mod tail;

pub use line::{LogLine, Stream};
