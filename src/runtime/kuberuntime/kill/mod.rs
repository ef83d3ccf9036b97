//! Stopping containers and pods.
//!
//! * Owns: the order and the timing of stops.
//! * Woken by: plans that stop something, and terminating pods.
//! * Publishes: nothing; containers that have exited.
//! * Must never stop a sandbox while a container of it may still run, and never give more grace than
//!   was given before.
//! * Answers to upstream's `killContainer`, `killPodWithSyncResult` and `terminationOrdering`
//!   (`pkg/kubelet/kuberuntime`).

mod stop_tracker;
pub mod plan;
mod pre_stop;
mod running;
mod stop;
mod stop_status;

pub(super) use stop::{PodKiller, StopCause};
