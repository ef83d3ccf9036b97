//! Requests of containers for devices. Pure.

use crate::model::validation::is_qualified_name;
use crate::model::{Pod, PodExt, PodUid, Quantity, is_sidecar};
use crate::resources::requests;
use crate::resources::topology::NumaMask;
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

/// Whether a resource is an extended resource, which device plugins or administrators advertise (upstream's
/// `IsExtendedResourceName`).
pub fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}"))
}

/// Whether a resource may be provided by DRA: an extended resource, or the name of a device class (upstream's
/// `IsDRAExtendedResourceName`).
pub fn is_dra_extended_resource(name: &str) -> bool {
    name.starts_with("deviceclass.resource.kubernetes.io/") || is_extended_resource(name)
}

/// Whether later containers of the pod may reuse a container's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// An init container: it has exited before later containers start, so they may reuse its devices.
    UntilExit,
    /// A sidecar or a regular container: it keeps its devices.
    Kept,
}

/// The devices that one container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The container's name.
    pub name: String,
    /// Whether later containers may reuse its devices.
    pub kind: DeviceUse,
    /// Number of devices by extended resource, all above zero.
    pub amounts: BTreeMap<String, u64>,
    /// Preferred NUMA nodes of its devices; `None` for any.
    pub affinity: Option<NumaMask>,
}

/// Preferred NUMA nodes by container.
pub type Affinities = BTreeMap<String, NumaMask>;

/// The requests of a pod's containers, in the order of their allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// The pod.
    pub uid: PodUid,
    /// Init containers first.
    pub containers: Vec<DeviceRequest>,
}

impl PodRequest {
    /// The requests of a pod, by its limits: for extended resources, requests equal limits.
    pub fn of(pod: &Pod) -> Self {
        let init = pod.init_containers().iter().map(|container| {
            let keeps_devices = is_sidecar(container);
            let kind = if keeps_devices { DeviceUse::Kept } else { DeviceUse::UntilExit };
            (container, kind)
        });
        let regular = pod.containers().iter();
        let regular = regular.map(|container| (container, DeviceUse::Kept));
        let containers = init.chain(regular).map(|(container, kind)| DeviceRequest {
            name: container.name.clone(),
            kind,
            amounts: amounts(pod, container),
            affinity: None,
        });
        Self { uid: pod.uid(), containers: containers.collect() }
    }

    /// Sets the preferred NUMA nodes.
    #[must_use]
    pub fn aligned(mut self, affinities: &Affinities) -> Self {
        for container in &mut self.containers {
            container.affinity = affinities.get(&container.name).copied();
        }
        self
    }

    /// Whether no container requests an extended resource.
    pub fn is_empty(&self) -> bool {
        self.containers.iter().all(|c| c.amounts.is_empty())
    }
}

/// The requested amounts. Those that cannot be parsed count as zero, because validation rejects such a pod.
fn amounts(pod: &Pod, container: &Container) -> BTreeMap<String, u64> {
    let resources = requests::of_container::<Quantity>(container).unwrap_or_default();
    let limits = resources.limits.iter();
    let extended = limits
        .filter(|(name, _)| is_extended_resource(name) && !is_claimed(pod, &container.name, name));
    extended
        .filter_map(|(name, quantity)| Some((name.clone(), u64::try_from(quantity.value()).ok()?)))
        .filter(|(_, amount)| *amount > 0)
        .collect()
}

/// Whether a ResourceClaim of the pod provides a container's resource.
pub fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref();
    let claim = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let mut mappings = claim.into_iter().flat_map(|claim| &claim.request_mappings);
    mappings.any(|mapping| mapping.container_name == container && mapping.resource_name == resource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_extended_resources_are_upstreams() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("a.b-c/D_e.f", true),
            ("cpu", false),
            ("kubernetes.io/gpu", false),
            ("sub.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
            ("/gpu", false),
            ("example.com/a/b", false),
            ("Example.com/gpu", false),
            ("example.com/../x", false),
            ("", false),
        ] {
            assert_eq!(is_extended_resource(name), expected, "{name}");
        }
        assert!(!is_extended_resource(&format!("example.com/{}", "x".repeat(64))));
    }

    #[test]
    fn a_request_is_the_limits_of_extended_resources_init_containers_first() {
        let limits = |amount: &str| json!({"limits": {"example.com/gpu": amount, "cpu": "1"}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {
                "containers": [
                    {"name": "main", "resources": limits("2")},
                    {"name": "none", "resources": limits("0")},
                    {"name": "claimed", "resources": limits("1")},
                ],
                "initContainers": [
                    {"name": "first", "resources": limits("1")},
                    {"name": "side", "restartPolicy": "Always", "resources": limits("3k")},
                ],
            },
            "status": {"extendedResourceClaimStatus": {
                "resourceClaimName": "c",
                "requestMappings": [
                    {"containerName": "claimed", "resourceName": "example.com/gpu", "requestName": "r"},
                ],
            }},
        }))
        .unwrap();
        let request = PodRequest::of(&pod);
        let shown: Vec<_> = request
            .containers
            .iter()
            .map(|c| (c.name.as_str(), c.kind, c.amounts.get("example.com/gpu").copied()))
            .collect();
        assert_eq!(
            shown,
            [
                ("first", DeviceUse::UntilExit, Some(1)),
                ("side", DeviceUse::Kept, Some(3000)),
                ("main", DeviceUse::Kept, Some(2)),
                ("none", DeviceUse::Kept, None),
                ("claimed", DeviceUse::Kept, None),
            ]
        );
        assert!(!request.is_empty());
        assert!(PodRequest::of(&Pod::default()).is_empty());
    }
}
