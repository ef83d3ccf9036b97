//! The settings of the node's cgroups.

use super::{CgroupDriver, ReservedCgroup, wanted::NodeAmounts};

/// Which cgroups there are, and what they may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupsConfig {
    /// A cgroup for all pods, for each class of service and for each pod.
    pub per_qos: bool,
    /// Where they are; `/` unless given.
    pub root: String,
    /// Who makes them if the runtime does not say.
    pub driver: CgroupDriver,
    /// All pods together get no more than what is not reserved.
    pub enforce_pods: bool,
    /// What is reserved for the system, and for Kubernetes.
    pub reservations: [NodeAmounts; 2],
    /// Their cgroups, where those are limited.
    pub reserved: Vec<ReservedCgroup>,
    /// Most processes of a pod, if there is a limit.
    pub pod_pids: Option<i64>,
    /// Memory of pods is protected by class and pod (`MemoryQoS`).
    pub memory_qos: bool,
    /// As far as they requested it.
    pub tiered_reservation: bool,
    /// Where the kubelet puts itself; the path of a cgroup, as those below.
    pub kubelet: Option<String>,
    /// The kubelet does not start where the kernel's settings are others than it would set (`protectKernelDefaults`).
    pub protect_kernel_defaults: bool,
    /// Where it puts processes of the root cgroup that belong to nothing else.
    pub system: Option<String>,
    /// Where the runtime is.
    pub runtime: Option<String>,
    /// How much of a hundred of memory requests is kept from lower classes (`QOSReserved`).
    pub qos_reserved_percent: Option<i64>,
}
