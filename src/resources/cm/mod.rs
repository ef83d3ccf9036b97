//! The node's cgroups: one for all pods, one per QoS class, one per pod.
//!
//! * Owns: the cgroups below `cgroupRoot`/kubepods, and the limits of reserved cgroups; the configured cgroups of the
//!   kubelet itself and of processes in the root cgroup (`system_containers`).
//! * Woken by: pod syncs that start a sandbox or container, pods that terminated, and a timer of a minute.
//! * Publishes: the cgroup parent of each pod; events when the node's limits are set or cannot be, and on cgroup v1.
//! * Must never remove or kill anything outside of these cgroups, or of a pod that should run, nor move a process out
//!   of a cgroup other than the root.
//! * Upstream: the parts of `pkg/kubelet/cm` about cgroups.

mod cgroup_manager;
mod config;
mod container_manager;
mod driver;
mod metrics;
mod name;
mod node_cgroups;
mod placement;
mod start;
mod system_containers;
pub mod resource_config;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod resource_config_tests;

pub use config::CgroupsConfig;
pub use container_manager::{ContainerManager, SandboxResources, pod_cgroup_name};
pub use driver::driver as cgroup_driver;
pub use metrics::CgroupMetrics;
pub use name::{CgroupDriver, CgroupName};
pub use node_cgroups::{LoweredMemoryLimit, NodeCgroups, PodCgroup, ReservedCgroup};
pub use start::{CgroupRules, allocatable, enter_kubelet_cgroup, start};
pub use system_containers::{SystemContainers, SystemContainersConfig};
