//! Removing what is dead.
//!
//! * Owns: which dead containers and sandboxes may go, and their removal.
//! * Woken by: the end of containers and pods, and a slow timer.
//! * Publishes: nothing.
//! * Must never remove on a partial list of the runtime, nor take a pod for gone before every source
//!   has delivered.
//! * Upstream: `kuberuntime_gc.go` and `pod_container_deletor.go`.

mod collect;
pub mod plan;

pub(super) use collect::ContainerGc;
