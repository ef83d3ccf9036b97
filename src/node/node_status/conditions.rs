//! The conditions of the node. Pure.

use crate::state::node_pressure::NodePressure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Type of the condition that the scheduler and controllers act on.
pub const READY: &str = "Ready";

/// A condition without its timestamps.
struct ConditionValue {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

/// The conditions that the kubelet sets, in upstream's order.
fn kubelet_conditions(not_ready_reasons: &[String], pressure: NodePressure) -> [ConditionValue; 4] {
    let value = |kind, status, (reason, message): (&'static str, &str)| ConditionValue {
        kind,
        status,
        reason,
        message: message.to_owned(),
    };
    let memory = if pressure.memory {
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
    } else {
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available")
    };
    let disk = if pressure.disk {
        ("KubeletHasDiskPressure", "kubelet has disk pressure")
    } else {
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    };
    let pid = if pressure.pid {
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available")
    } else {
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available")
    };
    [
        value("MemoryPressure", pressure.memory, memory),
        value("DiskPressure", pressure.disk, disk),
        value("PIDPressure", pressure.pid, pid),
        ready(not_ready_reasons),
    ]
}

fn ready(not_ready_reasons: &[String]) -> ConditionValue {
    match not_ready_reasons {
        [] => ConditionValue {
            kind: READY,
            status: true,
            reason: "KubeletReady",
            message: "kubelet is posting ready status".to_owned(),
        },
        not_ready_reasons => ConditionValue {
            kind: READY,
            status: false,
            reason: "KubeletNotReady",
            message: match not_ready_reasons {
                [one] => one.clone(),
                several => format!("[{}]", several.join(", ")),
            },
        },
    }
}

/// All conditions at `now`. Conditions in `known` that are not the kubelet's are kept. The node is ready if there are
/// no `not_ready_reasons`.
pub(super) fn conditions(
    known: &[NodeCondition],
    not_ready_reasons: &[String],
    pressure: NodePressure,
    now: Timestamp,
) -> Vec<NodeCondition> {
    // The API stores whole seconds; fractions would differ from the stored value each time.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut conditions = known.to_vec();
    for value in kubelet_conditions(not_ready_reasons, pressure) {
        let before = conditions.iter().position(|condition| condition.type_ == value.kind);
        let last = before.and_then(|index| conditions.get(index));
        let condition = with_times(value, last, now);
        match before.and_then(|index| conditions.get_mut(index)) {
            Some(slot) => *slot = condition,
            None => conditions.push(condition),
        }
    }
    conditions
}

fn with_times(
    value: ConditionValue,
    last: Option<&NodeCondition>,
    now: Timestamp,
) -> NodeCondition {
    let status = if value.status { "True" } else { "False" };
    let same = last.filter(|last| last.status == status);
    let since = same.and_then(|last| last.last_transition_time.clone());
    NodeCondition {
        type_: value.kind.to_owned(),
        status: status.to_owned(),
        reason: Some(value.reason.to_owned()),
        message: Some(value.message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: since.or(Some(Time(now))),
    }
}

/// The event reasons for the changes from `before` to `after`.
pub fn transition_reasons(before: &[NodeCondition], after: &[NodeCondition]) -> Vec<&'static str> {
    let changed = after.iter().filter(|condition| {
        let same = before
            .iter()
            .find(|known| known.type_ == condition.type_)
            .is_some_and(|known| known.status == condition.status);
        !same
    });
    let reasons = changed.filter_map(|condition| {
        Some(match (condition.type_.as_str(), condition.status.as_str()) {
            ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
            ("DiskPressure", "True") => "NodeHasDiskPressure",
            ("PIDPressure", "True") => "NodeHasInsufficientPID",
            ("MemoryPressure", "False") => "NodeHasSufficientMemory",
            ("DiskPressure", "False") => "NodeHasNoDiskPressure",
            ("PIDPressure", "False") => "NodeHasSufficientPID",
            (READY, "True") => "NodeReady",
            // A new node does not become not ready.
            (READY, "False") if before.iter().any(|known| known.type_ == READY) => "NodeNotReady",
            _ => return None,
        })
    });
    reasons.collect()
}
