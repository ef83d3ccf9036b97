//! The CPU manager: exclusive CPUs of containers, and the pool that all others share. Pure.
//!
//! * Owns: which CPUs are reserved, shared, and exclusive to which container, and the format of its checkpoint.
//! * Woken by: the admission of a pod, and removed pods.
//! * Publishes: the CPUs of each container.
//! * Must never give a CPU to two containers at once, except to an init container and a later container of its pod;
//!   must never change the exclusive CPUs of a container.
//! * Upstream: `pkg/kubelet/cm/cpumanager`.

mod checkpoint;
mod cpuset;
mod distribute;
mod manager;
mod options;
mod pod_level;
mod policy;
mod requests;
mod take;
mod topology;

pub use checkpoint::{STATE_FILE, from_checkpoint, to_checkpoint};
pub use cpuset::CpuSet;
pub use manager::{CpuCounters, CpuManager};
pub use options::{CpuOptions, OptionGates};
pub use policy::{ReservedCpus, StaticCpuPolicy};
pub use topology::CpuTopology;

use std::collections::BTreeMap;

/// Exclusive and shared CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// The CPUs of every container without exclusive ones.
    pub shared: CpuSet,
    /// Exclusive CPUs by the UID of the pod and the name of the container.
    pub assigned: super::Assignments<CpuSet>,
    /// Exclusive CPUs of whole pods by UID (`PodLevelResourceManagers`). Those that `assigned` has for their containers
    /// are parts of them.
    pub pods: BTreeMap<String, CpuSet>,
}

#[cfg(test)]
mod manager_tests;
#[cfg(test)]
mod pod_level_tests;
#[cfg(test)]
mod take_tests;
#[cfg(test)]
mod tests;
