//! Stopping containers and pods.
//!
//! * Owns: the order and the timing of stops.
//! * Woken by: syncs whose actions stop something, and terminating pods.
//! * Publishes: nothing; the PLEG reports the exits.
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
