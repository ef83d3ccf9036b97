//! Computes the strategic merge patch from the known to the wanted status. Pure.

use super::GeneratedStatus;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use serde_json::{Map, Value, json};

const OS_LABEL: &str = "kubernetes.io/os";
const ARCH_LABEL: &str = "kubernetes.io/arch";

/// Fields of the status that are replaced as a whole.
const REPLACED_FIELDS: [&str; 5] =
    ["images", "runtimeHandlers", "declaredFeatures", "features", "volumesInUse"];
/// Fields that are merged by key, so that removed keys have to be set to null.
const MERGED_FIELDS: [&str; 4] = ["capacity", "allocatable", "nodeInfo", "daemonEndpoints"];

/// The patch for this status; `None` if nothing differs. Changed heartbeat times count as a difference only if
/// `heartbeats`.
pub fn difference(known: &Node, wanted: &GeneratedStatus, heartbeats: bool) -> Option<Value> {
    let nothing = NodeStatus::default();
    let status = known.status.as_ref().unwrap_or(&nothing);
    let status = status_patch(status, &wanted.status, heartbeats);
    let mut patch = Map::new();
    if !status.is_empty() {
        patch.insert("status".into(), status.into());
    }
    let metadata =
        [("annotations", annotations(known, wanted)), ("labels", labels(known, &wanted.status))];
    let metadata = metadata.into_iter().filter(|(_, part)| !part.is_empty());
    let metadata: Map<String, Value> =
        metadata.map(|(name, part)| (name.to_owned(), part.into())).collect();
    if !metadata.is_empty() {
        patch.insert("metadata".into(), metadata.into());
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// The differing labels of the operating system and the architecture, which others may have changed.
fn labels(known: &Node, wanted: &NodeStatus) -> Map<String, Value> {
    let existing = known.metadata.labels.as_ref();
    let info = wanted.node_info.iter();
    let wanted = info
        .flat_map(|info| [(OS_LABEL, &info.operating_system), (ARCH_LABEL, &info.architecture)]);
    wanted
        .filter(|(name, value)| existing.and_then(|labels| labels.get(*name)) != Some(*value))
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect()
}

fn annotations(known: &Node, wanted: &GeneratedStatus) -> Map<String, Value> {
    let existing = known.metadata.annotations.as_ref();
    let mut differing = Map::new();
    for (name, value) in &wanted.annotations {
        let before = existing.and_then(|annotations| annotations.get(*name));
        if before != value.as_ref() {
            differing.insert((*name).to_owned(), json!(value));
        }
    }
    differing
}

fn status_patch(known: &NodeStatus, wanted: &NodeStatus, heartbeats: bool) -> Map<String, Value> {
    let (before, after) = (object(known), object(wanted));
    let mut patch = Map::new();
    let (null, empty) = (Value::Null, Map::new());
    for name in REPLACED_FIELDS {
        let (old, new) = (before.get(name).unwrap_or(&null), after.get(name).unwrap_or(&null));
        if old != new {
            patch.insert(name.into(), new.clone());
        }
    }
    for name in MERGED_FIELDS {
        let map = |of: &'_ Map<String, Value>| of.get(name).and_then(Value::as_object).cloned();
        let (old, new) = (map(&before), map(&after));
        let part = merged(&old.unwrap_or_default(), new.as_ref().unwrap_or(&empty));
        if !part.is_empty() {
            patch.insert(name.into(), part.into());
        }
    }
    if known.addresses != wanted.addresses {
        // Replaced as a whole: their merge key is the type, which the addresses of a dual-stack node share.
        let mut list: Vec<Value> = wanted.addresses.iter().flatten().map(|a| json!(a)).collect();
        list.push(json!({ "$patch": "replace" }));
        patch.insert("addresses".into(), list.into());
    }
    let sent = conditions(known, wanted, heartbeats);
    if !sent.is_empty() {
        patch.insert("conditions".into(), sent.into());
    }
    patch
}

fn object(status: &NodeStatus) -> Map<String, Value> {
    match json!(status) {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn merged(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let removed = old.keys().filter(|name| !new.contains_key(*name));
    let mut patch: Map<String, Value> = removed.map(|name| (name.clone(), Value::Null)).collect();
    let set = new.iter().filter(|(name, value)| old.get(*name) != Some(value));
    patch.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    patch
}

/// The changed conditions. Conditions are merged by type, so those of other components can be omitted.
fn conditions(known: &NodeStatus, wanted: &NodeStatus, heartbeats: bool) -> Vec<Value> {
    let find = |kind: &str| {
        let mut all = known.conditions.iter().flatten();
        all.find(|condition| condition.type_ == kind)
    };
    let plain = |condition: &NodeCondition| NodeCondition {
        last_heartbeat_time: None,
        ..condition.clone()
    };
    let differs = |condition: &&NodeCondition| match find(&condition.type_) {
        Some(known) if heartbeats => known != *condition,
        Some(known) => plain(known) != plain(condition),
        None => true,
    };
    let sent = wanted.conditions.iter().flatten().filter(differs);
    sent.map(|condition| json!(condition)).collect()
}
