//! Configuration and results of the container manager.

use super::resource_config::{NodeAmounts, PodRules};
use crate::host::Slices;

/// A cgroup of processes other than pods that is limited to reserved amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// The name in errors, such as `System Reserved`.
    pub what: &'static str,
    /// The name in events: `system` or `kube`.
    pub name: &'static str,
    /// Its path in the driver's form.
    pub cgroup: String,
    /// The reserved amounts.
    pub amounts: NodeAmounts,
    /// Whether only CPU shares are set (`system-reserved-compressible` and `kube-reserved-compressible`).
    pub only_compressible: bool,
}

/// The configuration of the cgroups of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeCgroups {
    /// The node's name, for events.
    pub node_name: String,
    /// `cgroupRoot`.
    pub root: String,
    /// Set with the driver `systemd`.
    pub slices: Option<Slices>,
    /// The limits of all pods together.
    pub pods: NodeAmounts,
    /// The CPUs of all pods, in the kernel's list format; empty if the CPU manager assigns CPUs.
    pub cpus: String,
    /// Rules for the limits of pods.
    pub rules: PodRules,
    /// Whether memory is protected by QoS class (cgroup v2, `MemoryQoS`).
    pub memory_qos: bool,
    /// With `qosReserved`: the node's allocatable memory in bytes, and the percentage of memory requests that lower QoS
    /// classes cannot use.
    pub qos_reserved: Option<(i64, i64)>,
    /// Cgroups of processes other than pods.
    pub reserved: Vec<ReservedCgroup>,
}

/// The cgroup of a pod, which exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    /// The cgroup parent for the runtime; empty if the runtime chooses it.
    pub parent: String,
    /// The error of a limit that the kernel rejected.
    pub limit_error: Option<String>,
}

/// A memory limit that a resize lowers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoweredMemoryLimit {
    /// The new limit, bytes.
    pub limit: u64,
    /// The memory in use, bytes; `None` if it cannot be read.
    pub usage: Option<u64>,
}
