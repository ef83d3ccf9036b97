//! Resources of pods: requests and limits, QoS classes, cgroups, exclusive CPUs and memory, and devices.
//!
//! * Owns: [`QosClass`], CPU shares and quotas, OOM scores and huge pages of pods, all pure; the cgroups of the node
//!   ([`cm`]); allocated and actuated amounts ([`allocation`]); CPUs and NUMA nodes ([`cpu`], [`memory`] and
//!   [`topology`], pure, executed by [`managers`]); device plugins ([`devices`]) and DRA drivers ([`dra`]), which
//!   [`plugin_manager`] finds by their sockets; the PodResources API ([`pod_resources`]).
//! * Woken by, publishes: see the modules above; all other modules are pure.
//! * Must never read the machine outside of [`cm`] and [`managers`]: elsewhere [`NodeFacts`](crate::model::NodeFacts)
//!   are an input.
//! * Upstream: `pkg/kubelet/qos`, `pkg/kubelet/cm`, `pkg/kubelet/allocation`, `pkg/kubelet/pluginmanager`,
//!   `pkg/kubelet/apis/podresources` and `kuberuntime_container_linux.go`.

mod checkpoint;
mod checkpoint_file;
pub mod allocation;
mod deps;
pub mod plugin_manager;
mod qos;
mod memory_controls;
mod linux;
pub mod topology;
mod pod_level;
pub mod cpu;
pub mod devices;
pub mod dra;
mod device_managers;
pub mod memory;
pub mod managers;
pub mod cm;
pub mod pod_resources;
mod area;

/// The generated messages, clients and servers of the `v1alpha1` APIs: PodResources, and the device health of DRA
/// drivers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing, dead_code)]
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

pub use crate::model::requests::{self, InvalidQuantity, Resources};
pub use area::{Config, PluginDeps, ResourceArea, bind_pod_resources, start};
pub use checkpoint::Assignments;
pub use deps::{Deps, PodSetReader};
pub use device_managers::{DeviceManagers, HealthDetail};
pub use linux::{
    ResourceEnforcement, container_resources, milli_cpu_to_quota, milli_cpu_to_shares,
    quota_to_milli_cpu, sandbox_overhead, sandbox_resources, shares_to_milli_cpu,
};
pub use memory_controls::{MemoryQos, SwapBehavior, may_swap};
pub use pod_level::AllocationCounters;
pub use qos::{QosClass, oom_score_adj, pod_qos};

#[cfg(test)]
mod tests;
