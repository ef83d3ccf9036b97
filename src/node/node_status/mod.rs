//! The status of the Node object: capacity, conditions, addresses, versions, images. Pure.
//!
//! * Owns: nothing; a status is computed from facts and the previous status.
//! * Must never drop conditions, resources or addresses that other components set.
//! * Upstream: `pkg/kubelet/nodestatus` and the arithmetic of `pkg/kubelet/cm`.

mod conditions;
mod dropped;
mod patch;
pub mod resources;
#[cfg(test)]
mod tests;

pub use conditions::{READY, transition_reasons};
pub use dropped::DroppedFields;
pub use patch::difference;

use crate::state::device_capacity::Capacities;
use crate::state::node_pressure::NodePressure;
use crate::volumes::csi::identity::is_csi_volume;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use resources::{PodLimits, ReservedResources};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Annotation with the configured node IPs, for an external cloud provider.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Maximum number of names per image, as in upstream.
const MAX_NAMES: usize = 5;
/// `status.declaredFeatures`: the features that v1.36 declares there and this kubelet supports.
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Facts that do not change while the kubelet runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMachineInfo {
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory: i64,
    /// Size of the file system of the root directory, bytes; `None` with `localStorageCapacityIsolation: false`.
    pub ephemeral_storage: Option<i64>,
    /// Huge page sizes, with the total bytes of preallocated pages of that size.
    pub huge_pages: Vec<(i64, i64)>,
    /// Swap, bytes.
    pub swap: i64,
    /// Machine IDs and versions, without the runtime's version.
    pub info: NodeSystemInfo,
}

/// Configuration of the status.
#[derive(Clone, Debug)]
pub struct StatusSettings {
    /// The node's name.
    pub node_name: String,
    /// `--node-ip`.
    pub given_ips: Vec<IpAddr>,
    /// `--cloud-provider=external`.
    pub external_cloud_provider: bool,
    /// Port of the kubelet's HTTPS server; 0 if it is disabled.
    pub port: u16,
    /// `nodeStatusMaxImages`; `None` for all.
    pub max_images: Option<usize>,
    /// `maxPods` and `podsPerCore`.
    pub pods: PodLimits,
    /// Reserved resources and eviction thresholds.
    pub reservation: ReservedResources,
}

/// Facts that the runtime reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeFacts {
    /// Name and version, such as `containerd://2.1.0`.
    pub version: String,
    /// Features of each runtime handler; empty if the runtime does not report them.
    pub handlers: Vec<NodeRuntimeHandler>,
    /// Whether the runtime supports `supplementalGroupsPolicy`; `None` if it does not report that.
    pub supplemental_groups_policy: Option<bool>,
    /// Images of the node; `None` before the first list.
    pub images: Option<Vec<ContainerImage>>,
}

/// The inputs of a status.
#[derive(Clone, Copy, Debug)]
pub struct NodeStatusInputs<'a> {
    /// Facts that do not change while the kubelet runs.
    pub machine: &'a NodeMachineInfo,
    /// Configuration of the status.
    pub settings: &'a StatusSettings,
    /// Facts that the runtime reports.
    pub runtime: &'a RuntimeFacts,
    /// Capacity of device plugins.
    pub devices: &'a Capacities,
    /// The address of the default route.
    pub default_route_ip: Option<IpAddr>,
    /// The attachable volumes in use; `None` until they are known.
    pub volumes_in_use: Option<&'a BTreeSet<String>>,
    /// While the volumes in use are not known: whether an attachable volume may be mounted, by an earlier kubelet. Then
    /// `volumesInUse` is kept, so that its device is not detached.
    pub volumes_mounted: bool,
    /// The reasons for which the node is not ready.
    pub not_ready_reasons: &'a [String],
    /// Memory, disk and PID pressure.
    pub pressure: NodePressure,
    /// The current time.
    pub now: Timestamp,
}

/// A generated status and the annotations that depend on it.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedStatus {
    /// The complete status.
    pub status: NodeStatus,
    /// Annotations to set or, if `None`, to remove.
    pub annotations: BTreeMap<&'static str, Option<String>>,
}

/// Computes the status of a node; `known` is its current object, or an empty one for a new node.
pub fn generate(known: &Node, facts: &NodeStatusInputs<'_>) -> GeneratedStatus {
    let before = known.status.clone().unwrap_or_default();
    let known_resources = before.capacity.clone().unwrap_or_default();
    let (capacity, allocatable) = resources::resources(
        facts.machine,
        facts.settings.pods,
        &facts.settings.reservation,
        facts.devices,
        &known_resources,
    );
    let conditions = before.conditions.as_deref().unwrap_or_default();
    let conditions =
        conditions::conditions(conditions, facts.not_ready_reasons, facts.pressure, facts.now);
    let status = NodeStatus {
        addresses: addresses(before.addresses.clone(), facts),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: facts.settings.port.into() }),
        }),
        declared_features: Some(DECLARED_FEATURES.map(str::to_owned).to_vec()),
        features: facts
            .runtime
            .supplemental_groups_policy
            .map(|supported| NodeFeatures { supplemental_groups_policy: Some(supported) }),
        images: images(before.images.clone(), facts),
        node_info: Some(info(facts)),
        runtime_handlers: some(facts.runtime.handlers.clone()),
        volumes_in_use: volumes_in_use(before.volumes_in_use.as_deref(), facts),
        ..before
    };
    GeneratedStatus { status, annotations: annotations(facts) }
}

/// The attachable volumes in use, sorted. Those of other plugins than CSI are an earlier kubelet's, and stay while any volume
/// is mounted: so do all of them before the volumes of CSI are known.
fn volumes_in_use(known: Option<&[String]>, facts: &NodeStatusInputs<'_>) -> Option<Vec<String>> {
    let known = known.unwrap_or_default().iter();
    let mut kept = known.filter(|_| facts.volumes_mounted).cloned();
    match facts.volumes_in_use {
        None => some(kept.collect()),
        Some(names) => {
            let mut names = names.clone();
            names.extend(kept.by_ref().filter(|name| !is_csi_volume(name)));
            some(names.into_iter().collect())
        }
    }
}

/// Whether the machine has rebooted since this status was written.
pub fn has_rebooted(known: &Node, machine: &NodeMachineInfo) -> bool {
    let info = known.status.as_ref().and_then(|status| status.node_info.as_ref());
    let before = info.map_or("", |info| info.boot_id.as_str());
    !before.is_empty() && !machine.info.boot_id.is_empty() && before != machine.info.boot_id
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn info(facts: &NodeStatusInputs<'_>) -> NodeSystemInfo {
    NodeSystemInfo {
        container_runtime_version: facts.runtime.version.clone(),
        swap: (facts.machine.swap > 0)
            .then_some(NodeSwapStatus { capacity: Some(facts.machine.swap) }),
        ..facts.machine.info.clone()
    }
}

/// The addresses. With an external cloud provider, its addresses are kept; before it has set any, they are those of
/// `--node-ip`, or none.
fn addresses(
    known: Option<Vec<NodeAddress>>,
    facts: &NodeStatusInputs<'_>,
) -> Option<Vec<NodeAddress>> {
    let settings = facts.settings;
    if settings.external_cloud_provider {
        let is_set = known.as_ref().is_some_and(|known| !known.is_empty());
        if is_set || settings.given_ips.is_empty() {
            return known;
        }
    }
    let name = settings.node_name.as_str();
    let own: Vec<IpAddr> = match settings.given_ips.as_slice() {
        [] => name.parse().ok().or(facts.default_route_ip).into_iter().collect(),
        given => given.to_vec(),
    };
    if own.is_empty() {
        // The machine may have lost its default route for a moment.
        return known;
    }
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let internal = own.iter().map(|ip| address("InternalIP", ip.to_string()));
    let hostname = std::iter::once(address("Hostname", name.to_owned()));
    Some(internal.chain(hostname).collect())
}

fn annotations(facts: &NodeStatusInputs<'_>) -> BTreeMap<&'static str, Option<String>> {
    let settings = facts.settings;
    if !settings.external_cloud_provider {
        return BTreeMap::new();
    }
    let ips: Vec<String> = settings.given_ips.iter().map(ToString::to_string).collect();
    let value = (!ips.is_empty()).then(|| ips.join(","));
    BTreeMap::from([(PROVIDED_NODE_IP, value)])
}

/// The largest images, as in upstream; they matter most for image locality in the scheduler.
fn images(
    known: Option<Vec<ContainerImage>>,
    facts: &NodeStatusInputs<'_>,
) -> Option<Vec<ContainerImage>> {
    let Some(images) = &facts.runtime.images else {
        return known;
    };
    let mut images = images.clone();
    images.sort_by(|a, b| {
        let size = |image: &ContainerImage| image.size_bytes.unwrap_or_default();
        size(b).cmp(&size(a)).then_with(|| a.names.cmp(&b.names))
    });
    images.truncate(facts.settings.max_images.unwrap_or(usize::MAX));
    for names in images.iter_mut().filter_map(|image| image.names.as_mut()) {
        names.truncate(MAX_NAMES);
    }
    some(images)
}
