//! Garbage collection of dead containers and sandboxes.
//!
//! * Owns: which dead containers and sandboxes may be removed, and their removal.
//! * Woken by: the end of containers and pods, and a slow timer.
//! * Publishes: removals to the pod cache; exits to the pod state store.
//! * Must never remove on a partial list of the runtime, nor treat a pod as removed before its source has delivered.
//! * Upstream: `kuberuntime_gc.go` and `pod_container_deletor.go`.

mod collect;
pub mod plan;

pub(super) use collect::ContainerGc;
