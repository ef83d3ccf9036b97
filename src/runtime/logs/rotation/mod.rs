//! Rotation of container logs.
//!
//! * Owns: the names and the number of a container's log files while it runs; when each log is checked.
//! * Woken by: a timer (`containerLogMonitorInterval`), and in between for logs that grow so fast that
//!   they would be too large by then.
//! * Publishes: nothing.
//! * Must never write to a log; overwrite a file that the runtime has made; stop between renaming a log
//!   and the runtime's ReopenContainerLog; call the runtime about logs that need no rotation.
//! * Upstream: `pkg/kubelet/logs/container_log_manager.go`.
//!
//! A rotation deletes surplus files, renames the log, has the runtime reopen it, and compresses the file that was
//! rotated before. Upstream compresses first, so its log keeps growing meanwhile, and indefinitely if the disk is full.

pub(super) mod plan;
pub(super) mod rotate;
mod task;

#[cfg(test)]
mod tests;

pub use plan::RotationPolicy;
pub use task::{Config, Rotation};
