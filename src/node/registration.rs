//! The initial Node object, and the reconciliation of an existing one. Pure.

use crate::node::node_status::GeneratedStatus;
use crate::resources::devices::is_extended_resource;
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Annotation that lets the attach/detach controller manage the volumes of this node.
const CONTROLLER_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Taint that repels pods until an external cloud provider has initialized the node.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Labels that the kubelet reconciles on an existing node; others are set only at creation.
const RECONCILED_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Configuration of the Node object.
#[derive(Clone, Debug)]
pub struct RegistrationConfig {
    /// `--register-node`.
    pub register: bool,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `providerID`.
    pub provider_id: Option<String>,
    /// `--cloud-provider=external`.
    pub external_cloud_provider: bool,
    /// `enableControllerAttachDetach`.
    pub controller_attach: bool,
}

/// The inputs of the Node object.
#[derive(Clone, Debug)]
pub struct RegistrationSettings {
    /// The node's name, also the label `kubernetes.io/hostname`.
    pub node_name: String,
    /// The architecture in Go's spelling (`GOARCH`).
    pub architecture: String,
    /// The configuration.
    pub config: RegistrationConfig,
}

/// The initial object, without a status.
pub fn initial(settings: &RegistrationSettings) -> Node {
    let pairs = [
        ("kubernetes.io/hostname", settings.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", &settings.architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", &settings.architecture),
    ];
    let own = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut labels = BTreeMap::from(own);
    labels.extend(settings.config.labels.clone());
    let mut taints = settings.config.taints.clone();
    if settings.config.external_cloud_provider {
        taints.push(Taint {
            key: UNINITIALIZED.into(),
            value: Some("true".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        });
    }
    let annotation = (CONTROLLER_ATTACH.to_owned(), "true".to_owned());
    Node {
        metadata: ObjectMeta {
            name: Some(settings.node_name.clone()),
            labels: Some(labels),
            annotations: settings.config.controller_attach.then(|| [annotation].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: settings.config.provider_id.clone(),
            taints: (!taints.is_empty()).then_some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// The object to create, with its status.
pub fn new_node(settings: &RegistrationSettings, generated: GeneratedStatus) -> Node {
    let mut node = initial(settings);
    node.status = Some(generated.status);
    let annotations = generated.annotations.into_iter();
    let set = annotations.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    node.metadata.annotations.get_or_insert_default().extend(set);
    node
}

/// The patch of the status subresource that reconciles an existing object; `None` if nothing differs. With
/// `reset_devices`, previously advertised devices become zero until their plugins register again.
pub fn reconcile(
    settings: &RegistrationSettings,
    existing: &Node,
    reset_devices: bool,
) -> Option<Value> {
    let wanted = initial(settings);
    let labels = differing_labels(&wanted, existing);
    let annotations = differing_annotation(settings, existing);
    let devices = if reset_devices { zero_extended_resources(existing) } else { Map::new() };
    let mut patch = Map::new();
    let mut metadata = Map::new();
    for (name, part) in [("labels", labels), ("annotations", annotations)] {
        if !part.is_empty() {
            metadata.insert(name.into(), part.into());
        }
    }
    if !metadata.is_empty() {
        patch.insert("metadata".into(), metadata.into());
    }
    if !devices.is_empty() {
        let status = json!({ "capacity": devices, "allocatable": devices });
        patch.insert("status".into(), status);
    }
    (!patch.is_empty()).then(|| patch.into())
}

fn differing_labels(wanted: &Node, existing: &Node) -> Map<String, Value> {
    let wanted = wanted.metadata.labels.iter().flatten();
    let ours = wanted.filter(|(name, _)| RECONCILED_LABELS.contains(&name.as_str()));
    let differing = ours.filter_map(|(name, value)| {
        let labels = existing.metadata.labels.as_ref();
        let known = labels.and_then(|labels| labels.get(name));
        if value.is_empty() {
            return known.map(|_| (name.clone(), Value::Null));
        }
        (known != Some(value)).then(|| (name.clone(), json!(value)))
    });
    differing.collect()
}

fn differing_annotation(settings: &RegistrationSettings, existing: &Node) -> Map<String, Value> {
    let annotations = existing.metadata.annotations.as_ref();
    let known = annotations.and_then(|annotations| annotations.get(CONTROLLER_ATTACH));
    let value = match (settings.config.controller_attach, known.map(String::as_str)) {
        (true, Some("true")) | (false, None) => return Map::new(),
        (true, _) => json!("true"),
        (false, Some(_)) => Value::Null,
    };
    Map::from_iter([(CONTROLLER_ATTACH.to_owned(), value)])
}

fn zero_extended_resources(existing: &Node) -> Map<String, Value> {
    let status = existing.status.as_ref();
    let capacity = status.and_then(|status| status.capacity.as_ref());
    let names = capacity.into_iter().flatten();
    let devices = names.filter(|(name, amount)| is_extended_resource(name) && amount.0 != "0");
    devices.map(|(name, _)| (name.clone(), json!("0"))).collect()
}

#[cfg(test)]
mod tests;
