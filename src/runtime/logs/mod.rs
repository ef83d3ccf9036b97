//! Container logs as the runtime writes them.
//!
//! * Owns: the CRI log format; reading, following and rotating the log files of containers.
//! * Woken by: its callers; inotify while a client follows; a timer that checks the sizes of logs.
//! * Publishes: streams of what containers wrote.
//! * Must never buffer more than a fixed amount of a file; write to a log; read on an async thread; show or
//!   log lines that are not of the format.
//! * Upstream: `pkg/kubelet/kuberuntime/logs` and `pkg/kubelet/logs`.
//!
//! Pure: the format ([`LogLine`]), `names`, `read::decode`, `read::choose`, `rotation::plan`.

mod files;
mod line;
mod names;
mod read;
pub mod rotation;
pub mod tail;

pub use line::{LogLine, OutputStream};
pub use read::{
    ContainerLogs, Decoder, LogError, LogOptions, LogStream, Logs, SelectedStreams, Unavailable,
    container_for_logs, since,
};

use crate::model::ContainerStatus;
use crate::state::pod_cache::PodRef;
use std::path::PathBuf;
use std::sync::Arc;

/// Finds the log of an instance; `None` if a name is not a single path component. Passed in by the code
/// that lays out the directories.
pub type LogPathFn = Arc<dyn Fn(&PodRef, &ContainerStatus) -> Option<PathBuf> + Send + Sync>;
