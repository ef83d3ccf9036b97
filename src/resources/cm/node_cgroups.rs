//! Configuration and results of the container manager.

use super::wanted::{NodeAmounts, PodRules};
use crate::host::Slices;

/// A cgroup of other processes of the node that gets limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// For errors: `System ReservedCgroup`.
    pub what: &'static str,
    /// For events: `system` or `kube`.
    pub name: &'static str,
    /// Its path as the driver spells it.
    pub cgroup: String,
    /// What is reserved.
    pub amounts: NodeAmounts,
    /// Only its share of CPU time is set.
    pub only_compressible: bool,
}

/// The configuration of the cgroups of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeCgroups {
    /// The node's name, for events.
    pub node_name: String,
    /// `cgroupRoot`.
    pub root: String,
    /// Only with the driver `systemd`.
    pub slices: Option<Slices>,
    /// What all pods together may use.
    pub pods: NodeAmounts,
    /// The CPUs of all pods, as the kernel lists them; empty where the CPU manager gives them out.
    pub cpus: String,
    /// How each pod is limited.
    pub rules: PodRules,
    /// Memory is protected by class (version 2, `MemoryQoS`).
    pub memory_qos: bool,
    /// Memory that classes below others may use, and how much of a hundred of requests is kept from them.
    pub qos_reserved: Option<(i64, i64)>,
    /// Cgroups of other processes.
    pub reserved: Vec<ReservedCgroup>,
}

/// A pod's cgroup that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    /// For the runtime; empty when it is to choose.
    pub parent: String,
    /// The error of a limit that the kernel refused.
    pub refused: Option<String>,
}

/// A memory limit that a resize lowers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoweredMemoryLimit {
    /// The new limit, bytes.
    pub limit: u64,
    /// The memory in use, bytes; `None` if it cannot be read.
    pub usage: Option<u64>,
}
