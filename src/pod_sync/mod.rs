//! The transaction scripts for one pod: set it up, stop it, clean up after it.
//!
//! * Owns: the failures that explain why a container waits (upstream's reason cache).
//! * Woken by: the pod's worker, one turn at a time; statuses also by whoever saw an input change.
//! * Publishes: API statuses through the status manager.
//! * Must never run beside itself for one UID, or wait for anything but its own pod.
//! * Answers to upstream's `Kubelet.SyncPod`, `SyncTerminatingPod` and `SyncTerminatedPod`.

pub mod syncer;
