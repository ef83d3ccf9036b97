//! The conditions of the node. Pure.

use crate::state::node_pressure::NodePressure;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};

/// Type of the condition that the scheduler and controllers act on.
pub const READY: &str = "Ready";

/// A condition without its timestamps.
struct Claim {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

/// An event about a changed condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The reason, which is also part of the message.
    pub reason: &'static str,
}

/// The conditions that the kubelet sets, in upstream's order.
fn claims(problems: &[String], pressure: NodePressure) -> [Claim; 4] {
    let claim = |kind, status, (reason, message): (&'static str, &str)| Claim {
        kind,
        status,
        reason,
        message: message.to_owned(),
    };
    let memory = if pressure.memory {
        (
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
        )
    } else {
        (
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        )
    };
    let disk = if pressure.disk {
        ("KubeletHasDiskPressure", "kubelet has disk pressure")
    } else {
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    };
    let pid = if pressure.pid {
        (
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
        )
    } else {
        (
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        )
    };
    [
        claim("MemoryPressure", pressure.memory, memory),
        claim("DiskPressure", pressure.disk, disk),
        claim("PIDPressure", pressure.pid, pid),
        ready(problems),
    ]
}

fn ready(problems: &[String]) -> Claim {
    match problems {
        [] => Claim {
            kind: READY,
            status: true,
            reason: "KubeletReady",
            message: "kubelet is posting ready status".to_owned(),
        },
        problems => Claim {
            kind: READY,
            status: false,
            reason: "KubeletNotReady",
            message: match problems {
                [one] => one.clone(),
                several => format!("[{}]", several.join(", ")),
            },
        },
    }
}

/// All conditions at `now`. Conditions in `known` that are not the kubelet's are kept. `problems` are the reasons for
/// which the node is not ready.
pub(super) fn conditions(
    known: &[NodeCondition],
    problems: &[String],
    pressure: NodePressure,
    now: Timestamp,
) -> Vec<NodeCondition> {
    // The API stores whole seconds; fractions would differ from the stored value each time.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut conditions = known.to_vec();
    for claim in claims(problems, pressure) {
        let before = conditions
            .iter()
            .position(|condition| condition.type_ == claim.kind);
        let last = before.and_then(|index| conditions.get(index));
        let condition = with_times(claim, last, now);
        match before.and_then(|index| conditions.get_mut(index)) {
            Some(place) => *place = condition,
            None => conditions.push(condition),
        }
    }
    conditions
}

fn with_times(claim: Claim, last: Option<&NodeCondition>, now: Timestamp) -> NodeCondition {
    let status = if claim.status { "True" } else { "False" };
    let same = last.filter(|last| last.status == status);
    let since = same.and_then(|last| last.last_transition_time.clone());
    NodeCondition {
        type_: claim.kind.to_owned(),
        status: status.to_owned(),
        reason: Some(claim.reason.to_owned()),
        message: Some(claim.message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: since.or(Some(Time(now))),
    }
}

/// The events for the changes from `before` to `after`.
pub fn transitions(before: &[NodeCondition], after: &[NodeCondition]) -> Vec<Transition> {
    let changed = after.iter().filter(|condition| {
        let same = before
            .iter()
            .find(|known| known.type_ == condition.type_)
            .is_some_and(|known| known.status == condition.status);
        !same
    });
    let reasons = changed.filter_map(|condition| {
        Some(
            match (condition.type_.as_str(), condition.status.as_str()) {
                ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
                ("DiskPressure", "True") => "NodeHasDiskPressure",
                ("PIDPressure", "True") => "NodeHasInsufficientPID",
                ("MemoryPressure", "False") => "NodeHasSufficientMemory",
                ("DiskPressure", "False") => "NodeHasNoDiskPressure",
                ("PIDPressure", "False") => "NodeHasSufficientPID",
                (READY, "True") => "NodeReady",
                // A new node does not become not ready.
                (READY, "False") if before.iter().any(|known| known.type_ == READY) => {
                    "NodeNotReady"
                }
                _ => return None,
            },
        )
    });
    reasons.map(|reason| Transition { reason }).collect()
}
