//! Configuration of the node's cgroups.

use super::resource_config::NodeAmounts;
use super::{CgroupDriver, ReservedCgroup};

/// Configuration of the node's cgroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupsConfig {
    /// `cgroupsPerQOS`: a cgroup for all pods, for each QoS class and for each pod.
    pub per_qos: bool,
    /// `cgroupRoot`; `/` by default.
    pub root: String,
    /// `cgroupDriver`, used if the runtime does not report its driver.
    pub driver: CgroupDriver,
    /// Whether `enforceNodeAllocatable` has `pods`: limits all pods together to the allocatable amounts.
    pub enforce_pods: bool,
    /// `systemReserved` and `kubeReserved`, in this order.
    pub reserved_amounts: [NodeAmounts; 2],
    /// `systemReservedCgroup` and `kubeReservedCgroup`, as far as `enforceNodeAllocatable` limits them.
    pub reserved_cgroups: Vec<ReservedCgroup>,
    /// `podPidsLimit`, if there is a limit.
    pub pod_pids: Option<i64>,
    /// `MemoryQoS`: protects and throttles memory by cgroup settings.
    pub memory_qos: bool,
    /// Whether `MemoryQoS` protects requested memory (`memoryReservationPolicy: TieredReservation`).
    pub tiered_reservation: bool,
    /// `kubeletCgroups`: the cgroup that the kubelet moves itself into. This path and those below start at the root of
    /// the hierarchy, not at `cgroupRoot`.
    pub kubelet: Option<String>,
    /// `protectKernelDefaults`: refuse to start if kernel settings differ from those that the kubelet would set.
    pub protect_kernel_defaults: bool,
    /// `systemCgroups`: the cgroup for processes of the root cgroup.
    pub system: Option<String>,
    /// `--runtime-cgroups`: the cgroup of the runtime.
    pub runtime: Option<String>,
    /// `qosReserved`: the percentage of memory requests that lower QoS classes cannot use.
    pub qos_reserved_percent: Option<i64>,
}
