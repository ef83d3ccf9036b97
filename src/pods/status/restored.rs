//! Restores the stored status of a static pod after a restart of the kubelet. Pure.
//!
//! Two fields follow upstream, which stores no status of static pods, because clients (and upstream's node e2e suite)
//! recognise a restart by them: `startTime` is reset, and an init container without an instance has the message
//! [`INIT_CONTAINER_LOST`]. Everything else is kept.

use super::generate::INIT_CONTAINER_LOST;
use crate::model::{Pod, PodExt};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// The stored status as the old status after a restart. A pod with `activeDeadlineSeconds` keeps its `startTime`.
pub fn restored(pod: &Pod, stored: &PodStatus) -> PodStatus {
    let mut status = stored.clone();
    if !keeps_start(pod) {
        status.start_time = None;
    }
    let init = status.init_container_statuses.iter_mut().flatten();
    init.for_each(mark_lost);
    status
}

/// Whether two statuses of a pod differ only in a start time that is reset after a restart of the kubelet.
pub fn differs_only_in_ignored_start_time(
    pod: &Pod,
    stored: &PodStatus,
    status: &PodStatus,
) -> bool {
    let ignored = pod.is_static() && !keeps_start(pod);
    let with_its_start = || PodStatus { start_time: status.start_time.clone(), ..stored.clone() };
    ignored && stored.start_time != status.start_time && with_its_start() == *status
}

/// Whether a stored status lacks the container statuses that the API server has: it was stored only in part.
pub fn lacks_container_statuses(stored: &PodStatus, api_status: Option<&PodStatus>) -> bool {
    let has_containers = |status: &PodStatus| status.container_statuses.is_some();
    !has_containers(stored) && api_status.is_some_and(has_containers)
}

fn keeps_start(pod: &Pod) -> bool {
    pod.spec().is_some_and(|spec| spec.active_deadline_seconds.is_some())
}

/// This state is shown only where the runtime has no instance of the container.
fn mark_lost(status: &mut ContainerStatus) {
    let state = status.state.as_mut();
    let ended = state.and_then(|state| state.terminated.as_mut());
    if let Some(ended) = ended.filter(|ended| ended.exit_code == 0) {
        ended.message.get_or_insert(INIT_CONTAINER_LOST.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored() -> PodStatus {
        let ended = |code: i32, message: Option<&str>| json!({"terminated": {"exitCode": code, "message": message, "reason": "Completed"}});
        let container = |name: &str, state| json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
        serde_json::from_value(json!({
            "startTime": "2026-01-02T03:04:05Z",
            "initContainerStatuses": [
                container("done", ended(0, None)),
                container("with-message", ended(0, Some("42 rows"))),
                container("failed", ended(1, None)),
            ],
            "containerStatuses": [container("main", ended(0, None))],
        }))
        .unwrap()
    }

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn a_pod_starts_with_its_kubelet_unless_it_has_a_deadline() {
        let plain = pod(json!({"containers": []}));
        assert_eq!(restored(&plain, &stored()).start_time, None);
        let limited = pod(json!({"containers": [], "activeDeadlineSeconds": 60}));
        let start = restored(&limited, &stored()).start_time;
        assert_eq!(start, stored().start_time);
    }

    #[test]
    fn an_init_container_that_ended_well_says_that_it_may_be_lost() {
        let status = restored(&pod(json!({"containers": []})), &stored());
        let messages = |statuses: Option<Vec<ContainerStatus>>| {
            let ends = statuses.unwrap().into_iter();
            ends.map(|status| status.state.unwrap().terminated.unwrap().message).collect::<Vec<_>>()
        };
        assert_eq!(
            messages(status.init_container_statuses),
            [Some(INIT_CONTAINER_LOST.into()), Some("42 rows".into()), None]
        );
        assert_eq!(messages(status.container_statuses), [None]);
    }

    #[test]
    fn a_later_kubelet_ignores_the_start_of_a_static_pod_without_a_deadline() {
        let file = json!({"kubernetes.io/config.source": "file"});
        let pod = |annotations: &serde_json::Value, deadline: Option<i64>| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"annotations": annotations},
                "spec": {"containers": [], "activeDeadlineSeconds": deadline},
            }))
            .unwrap()
        };
        let later = PodStatus {
            start_time: Some(serde_json::from_value(json!("2026-01-02T03:04:06Z")).unwrap()),
            ..stored()
        };
        let other = PodStatus { phase: Some("Failed".into()), ..later.clone() };
        for (pod, status, expected) in [
            (pod(&file, None), &later, true),
            (pod(&file, None), &other, false),
            (pod(&file, Some(60)), &later, false),
            (pod(&json!({}), None), &later, false),
        ] {
            assert_eq!(differs_only_in_ignored_start_time(&pod, &stored(), status), expected);
        }
    }

    #[test]
    fn a_status_stored_in_part_does_not_hide_the_containers_that_the_api_server_has() {
        let part = PodStatus::default();
        let whole = PodStatus {
            container_statuses: Some(vec![ContainerStatus::default()]),
            ..PodStatus::default()
        };
        for (stored, api_status, expected) in [
            (&part, Some(&whole), true),
            (&part, Some(&part), false),
            (&part, None, false),
            (&whole, Some(&whole), false),
        ] {
            assert_eq!(lacks_container_statuses(stored, api_status), expected);
        }
    }
}
