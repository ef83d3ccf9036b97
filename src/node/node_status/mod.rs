//! The status of the Node object: capacity, conditions, addresses, versions, images. Pure.
//!
//! * Owns: nothing; the status is made from facts and the status before.
//! * Must never drop conditions, resources or addresses of others.
//! * Answers to upstream's `pkg/kubelet/nodestatus` and the arithmetic of `pkg/kubelet/cm`.

mod conditions;
mod patch;
mod refused;
pub mod resources;
#[cfg(test)]
mod tests;

pub use conditions::{READY, Transition, transitions};
pub use patch::difference;
pub use refused::RefusedPatch;

use crate::state::device_capacity::Capacities;
use crate::state::node_pressure::NodePressure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use resources::{PodLimits, ReservedResources};
use std::{collections::BTreeMap, net::IpAddr};

/// For an external cloud provider: the address of the machine that the administrator chose.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Most names of one image.
const MAX_NAMES: usize = 5;
/// What pods may rely on by `declaredFeatures`: what works here of the features that v1.36 knows so.
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// What does not change while the kubelet runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMachineInfo {
    /// CPUs.
    pub cpus: u32,
    /// Bytes.
    pub memory: i64,
    /// Bytes of the file system of the root directory; `None` where they are not counted
    /// (`localStorageCapacityIsolation: false`).
    pub ephemeral_storage: Option<i64>,
    /// Size of a huge page and bytes of all such pages.
    pub huge_pages: Vec<(i64, i64)>,
    /// Bytes of swap.
    pub swap: i64,
    /// Identifiers and versions, without the runtime's.
    pub info: NodeSystemInfo,
}

/// What the configuration says of the status.
#[derive(Clone, Debug)]
pub struct StatusSettings {
    /// The node's name.
    pub node_name: String,
    /// `--node-ip`.
    pub given_ips: Vec<IpAddr>,
    /// `--cloud-provider=external`.
    pub external_cloud_provider: bool,
    /// Where the authenticated API listens; 0 when it does not.
    pub port: u16,
    /// `nodeStatusMaxImages`; `None` for all.
    pub max_images: Option<usize>,
    /// How many pods it takes.
    pub pods: PodLimits,
    /// What is kept from pods.
    pub reservation: ReservedResources,
}

/// What the runtime says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeFacts {
    /// `containerd://2.1.0`.
    pub version: String,
    /// What each handler can do; empty when the runtime does not say.
    pub handlers: Vec<NodeRuntimeHandler>,
    /// Whether it knows `supplementalGroupsPolicy`; `None` when it does not say.
    pub supplemental_groups_policy: Option<bool>,
    /// Its images; `None` before they were listed.
    pub images: Option<Vec<ContainerImage>>,
}

/// Everything a status is made of.
#[derive(Clone, Copy, Debug)]
pub struct NodeStatusInputs<'a> {
    /// What does not change.
    pub machine: &'a NodeMachineInfo,
    /// The configuration.
    pub settings: &'a StatusSettings,
    /// What the runtime says.
    pub runtime: &'a RuntimeFacts,
    /// Devices of plugins.
    pub devices: &'a Capacities,
    /// The address of the default route.
    pub own_ip: Option<IpAddr>,
    /// An attachable volume may be mounted here, by an earlier kubelet: its device must not be detached.
    pub volumes_mounted: bool,
    /// Why the node is not ready.
    pub problems: &'a [String],
    /// What the node is short of.
    pub pressure: NodePressure,
    /// The time.
    pub now: Timestamp,
}

/// A status, and what belongs beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The whole status.
    pub status: NodeStatus,
    /// Annotations that are set or, without a value, removed.
    pub annotations: BTreeMap<&'static str, Option<String>>,
}

/// The status of a node that is known as `known`, or of a new one.
pub fn generate(known: &Node, facts: &NodeStatusInputs<'_>) -> Generated {
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
    let conditions = conditions::conditions(conditions, facts.problems, facts.pressure, facts.now);
    let status = NodeStatus {
        addresses: addresses(before.addresses.clone(), facts),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: facts.settings.port.into(),
            }),
        }),
        declared_features: Some(DECLARED_FEATURES.map(str::to_owned).to_vec()),
        features: facts
            .runtime
            .supplemental_groups_policy
            .map(|supported| NodeFeatures {
                supplemental_groups_policy: Some(supported),
            }),
        images: images(before.images.clone(), facts),
        node_info: Some(info(facts)),
        runtime_handlers: some(facts.runtime.handlers.clone()),
        volumes_in_use: before
            .volumes_in_use
            .clone()
            .filter(|_| facts.volumes_mounted),
        ..before
    };
    Generated {
        status,
        annotations: annotations(facts),
    }
}

/// Whether the machine has booted since this status was written.
pub fn has_rebooted(known: &Node, machine: &NodeMachineInfo) -> bool {
    let info = known
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    let before = info.map_or("", |info| info.boot_id.as_str());
    !before.is_empty() && !machine.info.boot_id.is_empty() && before != machine.info.boot_id
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn info(facts: &NodeStatusInputs<'_>) -> NodeSystemInfo {
    NodeSystemInfo {
        container_runtime_version: facts.runtime.version.clone(),
        swap: (facts.machine.swap > 0).then_some(NodeSwapStatus {
            capacity: Some(facts.machine.swap),
        }),
        ..facts.machine.info.clone()
    }
}

/// The addresses that a cloud provider has set stay. One that has not yet, and no address given: none.
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
        [] => name.parse().ok().or(facts.own_ip).into_iter().collect(),
        given => given.to_vec(),
    };
    if own.is_empty() {
        // A machine that has just lost its route is still where it was.
        return known;
    }
    let address = |kind: &str, address: String| NodeAddress {
        type_: kind.to_owned(),
        address,
    };
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

/// The largest images first, which are worth the most to the scheduler.
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
