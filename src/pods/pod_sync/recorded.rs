//! What is known of a pod's status after a restart. Pure.

use crate::state::pod_state_store::{ConditionSince, PodRecord};
use k8s_openapi::{api::core::v1 as api, apimachinery::pkg::apis::meta::v1::Time};

/// What an earlier kubelet recorded of a pod's status: all of it if the pod had ended, else its phase and
/// start, and its conditions with their transition times.
pub(super) fn remembered(record: &PodRecord) -> Option<api::PodStatus> {
    if let Some(terminal) = &record.terminal {
        return serde_json::from_value(terminal.status.clone()).ok();
    }
    let condition = |(name, known): (&String, &ConditionSince)| api::PodCondition {
        type_: name.clone(),
        status: if known.status { "True" } else { "False" }.into(),
        last_transition_time: Some(Time(known.since)),
        ..api::PodCondition::default()
    };
    let known = !record.conditions.is_empty() || record.started.is_some();
    known.then(|| api::PodStatus {
        phase: record.phase.clone(),
        conditions: Some(record.conditions.iter().map(condition).collect()),
        start_time: record.started.map(Time),
        ..api::PodStatus::default()
    })
}

/// What an earlier kubelet recorded, with what only the API server has of it: container statuses, and the
/// conditions as they were explained.
pub(super) fn with_remote(
    mut recorded: api::PodStatus,
    remote: Option<&api::PodStatus>,
) -> api::PodStatus {
    let Some(remote) = remote.filter(|_| recorded.container_statuses.is_none()) else {
        return recorded;
    };
    let mut status = remote.clone();
    status.start_time = recorded.start_time.or(status.start_time);
    status.phase = recorded.phase.or(status.phase);
    let recorded = recorded.conditions.take().unwrap_or_default();
    let conditions = status.conditions.get_or_insert_default();
    for condition in recorded {
        match conditions.iter_mut().find(|c| c.type_ == condition.type_) {
            Some(known) if known.status == condition.status => {
                known.last_transition_time = condition.last_transition_time;
            }
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn condition(kind: &str, status: &str, since: i64, message: Option<&str>) -> api::PodCondition {
        api::PodCondition {
            type_: kind.into(),
            status: status.into(),
            message: message.map(Into::into),
            last_transition_time: Timestamp::from_second(since).ok().map(Time),
            ..api::PodCondition::default()
        }
    }

    #[test]
    fn what_was_recorded_does_not_hide_what_only_the_api_server_has() {
        let recorded = api::PodStatus {
            phase: Some("Running".into()),
            start_time: Timestamp::from_second(5).ok().map(Time),
            conditions: Some(vec![
                condition("Ready", "True", 9, None),
                condition("Initialized", "True", 7, None),
            ]),
            ..api::PodStatus::default()
        };
        let containers = Some(vec![api::ContainerStatus {
            restart_count: 3,
            ..api::ContainerStatus::default()
        }]);
        let remote = api::PodStatus {
            phase: Some("Pending".into()),
            conditions: Some(vec![
                condition("Ready", "False", 6, Some("older")),
                condition("Initialized", "True", 1, Some("why")),
                condition("example.com/gate", "True", 2, None),
            ]),
            container_statuses: containers.clone(),
            ..api::PodStatus::default()
        };
        let status = with_remote(recorded.clone(), Some(&remote));
        let expected = api::PodStatus {
            container_statuses: containers,
            conditions: Some(vec![
                condition("Ready", "True", 9, None),
                condition("Initialized", "True", 7, Some("why")),
                condition("example.com/gate", "True", 2, None),
            ]),
            ..recorded.clone()
        };
        assert_eq!(status, expected);
        assert_eq!(with_remote(recorded.clone(), None), recorded);
        assert_eq!(
            with_remote(expected.clone(), Some(&remote)),
            expected,
            "recorded whole"
        );
    }
}
