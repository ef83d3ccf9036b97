//! The conditions of the node. Pure.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};

/// `type` of the condition that the scheduler and controllers act on.
pub const READY: &str = "Ready";

/// A condition before its times are known.
struct Claim {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

/// An event of the node that tells of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Its reason, which its message repeats.
    pub reason: &'static str,
}

/// The conditions that this kubelet owns, in upstream's order.
fn claims(problems: &[String]) -> [Claim; 4] {
    let fine = |kind, reason, message: &str| Claim {
        kind,
        status: false,
        reason,
        message: message.to_owned(),
    };
    [
        fine(
            "MemoryPressure",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        fine(
            "DiskPressure",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        fine(
            "PIDPressure",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
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

/// The conditions at `now`: those of others in `known` stay as they are. Why the node is not ready is in
/// `problems`.
pub(super) fn conditions(
    known: &[NodeCondition],
    problems: &[String],
    now: Timestamp,
) -> Vec<NodeCondition> {
    // The API server keeps whole seconds: more would be a difference each time.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut conditions = known.to_vec();
    for claim in claims(problems) {
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

/// The events that tell how `after` differs from `before`.
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
                ("MemoryPressure", "False") => "NodeHasSufficientMemory",
                ("DiskPressure", "False") => "NodeHasNoDiskPressure",
                ("PIDPressure", "False") => "NodeHasSufficientPID",
                (READY, "True") => "NodeReady",
                // A node that was never ready has not become unready.
                (READY, "False") if before.iter().any(|known| known.type_ == READY) => {
                    "NodeNotReady"
                }
                _ => return None,
            },
        )
    });
    reasons.map(|reason| Transition { reason }).collect()
}
