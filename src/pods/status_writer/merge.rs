//! The patch from the API server's status to the kubelet's. Pure.
//!
//! Upstream: `mergePodStatus` and the two-way merge patch that is made from it.

use crate::model::Pod;
use crate::pods::status::generate::{
    DISRUPTION_TARGET, IllegalTransition, PodPhase, is_owned, transition,
};
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Fields that only the kubelet writes; each is replaced as a whole. Fields that are not named here belong to other
/// writers, and `conditions` are shared.
const OWNED: [&str; 11] = [
    "phase",
    "reason",
    "message",
    "startTime",
    "podIP",
    "podIPs",
    "initContainerStatuses",
    "containerStatuses",
    "observedGeneration",
    "resources",
    "allocatedResources",
];

/// Fields that are sent only when they are known here.
const OWNED_WHEN_KNOWN: [&str; 3] = ["hostIP", "hostIPs", "ephemeralContainerStatuses"];

/// Set by the API server when the pod is created, and immutable: sent only where it is missing.
const QOS_CLASS: &str = "qosClass";

/// Lists that the API server merges by a key.
const MERGED_LISTS: [&str; 2] = ["podIPs", "hostIPs"];

/// The `status` of a strategic merge patch from `api_status` to `ours`; `None` if there is no difference. While
/// containers of the pod may be running, a terminal phase is not sent, because the scheduler would give its resources to
/// another pod.
pub(super) fn merge(
    pod: &Pod,
    ours: &PodStatus,
    api_status: &PodStatus,
    may_be_running: bool,
) -> Result<Option<Value>, IllegalTransition> {
    transition::check(pod, api_status, ours)?;
    let mut merged = ours.clone();
    let ends = is_terminal(ours) && !is_terminal(api_status);
    if ends && may_be_running {
        merged.phase.clone_from(&api_status.phase);
        merged.reason.clone_from(&api_status.reason);
        merged.message.clone_from(&api_status.message);
    }
    merged.conditions = Some(conditions(ours, api_status, ends && !may_be_running));
    Ok(diff(&merged, api_status))
}

fn is_terminal(status: &PodStatus) -> bool {
    let phase = status.phase.as_deref().and_then(PodPhase::parse);
    phase.is_some_and(PodPhase::is_terminal)
}

/// The conditions that the kubelet is to write.
fn conditions(ours: &PodStatus, api_status: &PodStatus, ends: bool) -> Vec<PodCondition> {
    let theirs = api_status.conditions.as_deref().unwrap_or_default();
    let is_new_disruption = |condition: &PodCondition| {
        condition.type_ == DISRUPTION_TARGET && ends && !theirs.contains(condition)
    };
    let ours = ours.conditions.iter().flatten();
    ours.filter(|condition| is_owned(condition) || is_new_disruption(condition)).cloned().collect()
}

fn diff(ours: &PodStatus, api_status: &PodStatus) -> Option<Value> {
    let (mut new, mut old) = (fields(ours), fields(api_status));
    let mut patch = Map::new();
    let known: Vec<_> = OWNED_WHEN_KNOWN
        .iter()
        .copied()
        .chain((!old.contains_key(QOS_CLASS)).then_some(QOS_CLASS))
        .filter(|name| new.contains_key(*name))
        .collect();
    for name in OWNED.into_iter().chain(known) {
        let (new, old) = (new.remove(name), old.remove(name));
        if new != old {
            patch.insert(name.into(), replacement(name, new, old.is_some()));
        }
    }
    let changed = changed_conditions(ours, api_status);
    if !changed.is_empty() {
        patch.insert("conditions".into(), changed.into());
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The value in the patch that replaces the old value instead of merging with it.
fn replacement(name: &str, new: Option<Value>, has_old: bool) -> Value {
    match new {
        None => Value::Null,
        Some(value) if !has_old => value,
        Some(Value::Array(items)) if MERGED_LISTS.contains(&name) => {
            let mut list = vec![json!({"$patch": "replace"})];
            list.extend(items);
            list.into()
        }
        Some(Value::Object(mut map)) => {
            map.insert("$patch".into(), "replace".into());
            map.into()
        }
        Some(value) => value,
    }
}

/// The API server merges conditions by type, so only what changed is sent; a field that is gone is null.
fn changed_conditions(ours: &PodStatus, api_status: &PodStatus) -> Vec<Value> {
    let theirs = api_status.conditions.as_deref().unwrap_or_default();
    let ours = ours.conditions.as_deref().unwrap_or_default();
    let changed = ours.iter().filter_map(|new| {
        let old = theirs.iter().find(|old| old.type_ == new.type_);
        if old == Some(new) {
            return None;
        }
        let mut patch = fields(new);
        for (name, _) in old.map(fields).unwrap_or_default() {
            patch.entry(name).or_insert(Value::Null);
        }
        Some(Value::Object(patch))
    });
    let gone =
        theirs.iter().filter(|old| is_owned(old) && !ours.iter().any(|new| new.type_ == old.type_));
    let gone = gone.map(|old| json!({"$patch": "delete", "type": old.type_}));
    changed.chain(gone).collect()
}

fn fields<T: Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map.into_iter().filter(|(_, value)| !is_empty(value)).collect(),
        _ => Map::new(),
    }
}

/// An empty list, map or text is the same as none.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Whether the status changes the Ready condition. Such a status is sent first, because traffic depends on it.
pub(super) fn changes_readiness(ours: &PodStatus, api_status: &PodStatus) -> bool {
    let ready = |status: &PodStatus| {
        let conditions = status.conditions.iter().flatten();
        let mut ready = conditions.filter(|c| c.type_ == "Ready");
        ready.next().map(|c| c.status.clone())
    };
    ready(ours) != ready(api_status)
}
