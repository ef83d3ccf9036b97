//! Stopping containers and pods.
//!
//! * Owns: the order and the timing of stops.
//! * Woken by: syncs whose actions stop something, and terminating pods.
//! * Publishes: stopped items to the pod cache (`touch`); events; preStop hooks that ran and stopped sandboxes to the pod
//!   state store. The PLEG reads the exits.
//! * Must never stop a sandbox while one of its containers may still run, and never lengthen a grace period.
//! * Upstream: `killContainer`, `killPodWithSyncResult` and `terminationOrdering`
//!   (`pkg/kubelet/kuberuntime`).

mod stop_tracker;
pub mod plan;
mod pre_stop;
mod running;
mod stop;
mod stop_status;

pub(super) use stop::{PodKiller, StopCause};
