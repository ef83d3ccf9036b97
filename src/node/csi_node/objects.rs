//! What the CSINode object and the Node object should say of the drivers. Pure.

use super::facts::DriverFacts;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Annotation of the Node object: the node ID of each driver, as JSON.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Annotation of the CSINode object: the in-tree plugins whose volumes are handled by CSI drivers.
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const MIGRATED_PLUGIN_NAMES: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,\
    kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,\
    kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";

/// The facts of each driver that the objects should have.
pub(super) type WantedDrivers = BTreeMap<String, DriverFacts>;

/// The Node object that owns the CSINode object.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeOwner<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
}

/// The next request that makes the CSINode object what it should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CsiNodeStep {
    /// Nothing differs.
    Done,
    Create(Box<CSINode>),
    Update(Box<CSINode>),
    /// It belongs to an earlier Node object of this name; with its UID.
    Delete(Option<String>),
}

/// The next step for the object as it is. `removed` is a driver to remove; others that are not wanted stay.
pub(super) fn csi_node_step(
    existing: Option<CSINode>,
    owner: NodeOwner<'_>,
    wanted: &WantedDrivers,
    removed: Option<&str>,
) -> CsiNodeStep {
    let Some(mut csi_node) = existing else {
        return CsiNodeStep::Create(Box::new(new_csi_node(owner, wanted)));
    };
    let before = csi_node.clone();
    let owners = csi_node.metadata.owner_references.get_or_insert_default();
    let mut nodes = owners.iter().filter(|reference| is_node(reference, owner.name));
    if let Some(reference) = nodes.next() {
        if reference.uid != owner.uid {
            return CsiNodeStep::Delete(csi_node.metadata.uid);
        }
    } else {
        owners.push(owner_reference(owner));
    }
    let annotations = csi_node.metadata.annotations.get_or_insert_default();
    annotations.insert(MIGRATED_PLUGINS.to_owned(), MIGRATED_PLUGIN_NAMES.to_owned());
    let drivers = &mut csi_node.spec.drivers;
    drivers.retain(|driver| Some(driver.name.as_str()) != removed);
    for (name, facts) in wanted {
        let driver = csi_node_driver(name, facts);
        match drivers.iter().position(|known| known.name == *name) {
            Some(at) => {
                let known = drivers.get(at).map(comparable);
                if known.as_ref() == Some(&driver) {
                    continue;
                }
                drivers.remove(at);
                // The API server lets only the limit of an entry change: with another node ID or topology it has to be
                // removed first, and the next step adds it again.
                let without_limit =
                    |driver: CSINodeDriver| CSINodeDriver { allocatable: None, ..driver };
                if known.map(without_limit) == Some(without_limit(driver.clone())) {
                    drivers.push(driver);
                }
            }
            None => drivers.push(driver),
        }
    }
    if csi_node == before { CsiNodeStep::Done } else { CsiNodeStep::Update(Box::new(csi_node)) }
}

fn new_csi_node(owner: NodeOwner<'_>, wanted: &WantedDrivers) -> CSINode {
    let drivers = wanted.iter();
    let drivers = drivers.map(|(name, facts)| csi_node_driver(name, facts));
    let annotation = (MIGRATED_PLUGINS.to_owned(), MIGRATED_PLUGIN_NAMES.to_owned());
    CSINode {
        metadata: ObjectMeta {
            name: Some(owner.name.to_owned()),
            annotations: Some([annotation].into()),
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: drivers.collect() },
    }
}

fn owner_reference(owner: NodeOwner<'_>) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: owner.name.to_owned(),
        uid: owner.uid.to_owned(),
        ..OwnerReference::default()
    }
}

fn is_node(reference: &OwnerReference, name: &str) -> bool {
    reference.api_version == "v1" && reference.kind == "Node" && reference.name == name
}

fn csi_node_driver(name: &str, facts: &DriverFacts) -> CSINodeDriver {
    let keys = facts.topology.keys().cloned().collect();
    comparable(&CSINodeDriver {
        name: name.to_owned(),
        node_id: facts.node_id.clone(),
        topology_keys: Some(keys),
        allocatable: facts.max_volumes.map(|count| VolumeNodeResources { count: Some(count) }),
    })
}

/// An entry in the form in which entries are compared: empty fields and absent fields mean the same.
fn comparable(driver: &CSINodeDriver) -> CSINodeDriver {
    let mut driver = driver.clone();
    driver.topology_keys = driver.topology_keys.filter(|keys| !keys.is_empty());
    driver.allocatable = driver.allocatable.filter(|it| it.count.is_some());
    driver
}

/// The patch of the Node object for a driver: its node ID and its topology labels; `None` if nothing differs.
///
/// # Errors
/// A label has another value, of the cluster or of another driver.
pub(super) fn node_patch(
    node: &Node,
    driver: &str,
    facts: &DriverFacts,
) -> Result<Option<Value>, String> {
    let existing = node.metadata.labels.as_ref();
    let mut labels = Map::new();
    for (key, value) in &facts.topology {
        match existing.and_then(|labels| labels.get(key)) {
            None => {
                labels.insert(key.clone(), json!(value));
            }
            Some(known) if known == value => {}
            Some(known) => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but \
                     existing label is {key:?}:{known:?}"
                ));
            }
        }
    }
    let mut ids = node_ids(node);
    ids.insert(driver.to_owned(), facts.node_id.clone());
    Ok(patch(node, &ids, labels))
}

/// The patch of the Node object that removes a driver's node ID; `None` if it has none. Labels stay: another driver may
/// have reported them too.
pub(super) fn node_patch_without(node: &Node, driver: &str) -> Option<Value> {
    let mut ids = node_ids(node);
    ids.remove(driver)?;
    patch(node, &ids, Map::new())
}

/// The node IDs in the annotation; none if its value is not what the kubelet writes.
fn node_ids(node: &Node) -> BTreeMap<String, String> {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|annotations| annotations.get(NODE_IDS));
    let ids = text.and_then(|text| serde_json::from_str(text).ok());
    ids.unwrap_or_default()
}

fn patch(node: &Node, ids: &BTreeMap<String, String>, labels: Map<String, Value>) -> Option<Value> {
    let mut metadata = Map::new();
    if *ids != node_ids(node) {
        let value = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
        metadata.insert("annotations".into(), json!({ NODE_IDS: value }));
    }
    if !labels.is_empty() {
        metadata.insert("labels".into(), labels.into());
    }
    if metadata.is_empty() {
        return None;
    }
    // Not for another Node object of this name.
    if let Some(uid) = &node.metadata.uid {
        metadata.insert("uid".into(), json!(uid));
    }
    Some(json!({ "metadata": metadata }))
}
