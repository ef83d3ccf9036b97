//! Which instance of a container has the requested log. Pure.

use crate::model::ContainerId;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

/// Why there is no log to show; upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

/// The instance whose log answers a request: the running one, else the one that ended last; with
/// `previous` the one before the current. `status` is the status of the pod as it is shown.
///
/// # Errors
/// The pod has no such container, or it has no instance with a log yet (any more).
pub fn container_for_logs(
    pod: &str,
    status: &PodStatus,
    container: &str,
    previous: bool,
) -> Result<ContainerId, Unavailable> {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let Some(found) = all.find(|known| known.name == container) else {
        return Err(Unavailable(format!(
            "container {container:?} in pod {pod:?} is not available"
        )));
    };
    let last = ended_id(found.last_state.as_ref());
    if previous {
        return last.ok_or_else(|| {
            Unavailable(format!(
                "previous terminated container {container:?} in pod {pod:?} not found"
            ))
        });
    }
    current(found).or(last).ok_or_else(|| not_started(pod, container, found))
}

fn current(status: &ContainerStatus) -> Option<ContainerId> {
    let state = status.state.as_ref()?;
    match state.running {
        Some(_) => ContainerId::of_status(status.container_id.as_deref()?),
        None => ended_id(Some(state)),
    }
}

fn ended_id(state: Option<&ContainerState>) -> Option<ContainerId> {
    ContainerId::of_status(state?.terminated.as_ref()?.container_id.as_deref()?)
}

fn not_started(pod: &str, container: &str, status: &ContainerStatus) -> Unavailable {
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    let terminated = state.is_some_and(|state| state.terminated.is_some());
    let subject = format!("container {container:?} in pod {pod:?} is");
    Unavailable(match reason {
        _ if terminated => format!("{subject} terminated"),
        Some("ErrImagePull") => format!("{subject} waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => {
            format!("{subject} waiting to start: trying and failing to pull image")
        }
        Some(reason) => format!("{subject} waiting to start: {reason}"),
        None => format!("{subject} waiting to start - no logs yet"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn choose(container: Value, previous: bool) -> Result<String, String> {
        let status: PodStatus =
            serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
        container_for_logs("web", &status, "main", previous)
            .map(|id| id.to_string())
            .map_err(|error| error.to_string())
    }

    fn shown(state: Value, last: Value) -> Value {
        json!({
            "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "containerd://now", "state": state, "lastState": last,
        })
    }

    fn ended(id: &str) -> Value {
        json!({"terminated": {"exitCode": 0, "containerID": id}})
    }

    #[test]
    fn the_instance_is_chosen_row_by_row() {
        let running = json!({"running": {}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let none = json!({});
        let rows = [
            (&running, &none, Ok("now")),
            (&running, &ended("containerd://old"), Ok("now")),
            (&ended("containerd://gone"), &ended("containerd://old"), Ok("gone")),
            (&ended(""), &ended("containerd://old"), Ok("old")),
            (&ended(""), &none, Err("container \"main\" in pod \"web\" is terminated")),
            (&waiting("CrashLoopBackOff"), &ended("containerd://old"), Ok("old")),
            (
                &waiting("ErrImagePull"),
                &none,
                Err("container \"main\" in pod \"web\" is waiting to start: image can't be pulled"),
            ),
            (
                &waiting("ImagePullBackOff"),
                &none,
                Err(
                    "container \"main\" in pod \"web\" is waiting to start: trying and failing to pull image",
                ),
            ),
            (
                &waiting("ContainerCreating"),
                &none,
                Err("container \"main\" in pod \"web\" is waiting to start: ContainerCreating"),
            ),
            (
                &none,
                &none,
                Err("container \"main\" in pod \"web\" is waiting to start - no logs yet"),
            ),
        ];
        for (state, last, chosen) in rows {
            let found = choose(shown(state.clone(), last.clone()), false);
            assert_eq!(found.as_deref().map_err(String::as_str), chosen);
        }
    }

    #[test]
    fn the_previous_instance_is_the_one_that_ended_before_this() {
        let running = json!({"running": {}});
        let found = choose(shown(running.clone(), ended("containerd://old")), true);
        assert_eq!(found.as_deref(), Ok("old"));
        for last in [json!({}), ended(""), ended("bare")] {
            assert_eq!(
                choose(shown(running.clone(), last), true).unwrap_err(),
                "previous terminated container \"main\" in pod \"web\" not found"
            );
        }
    }

    #[test]
    fn containers_of_every_kind_are_found_and_others_are_not() {
        for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
            let status: PodStatus =
                serde_json::from_value(json!({list: [shown(json!({"running": {}}), json!({}))]}))
                    .unwrap();
            assert!(container_for_logs("web", &status, "main", false).is_ok());
            assert_eq!(
                container_for_logs("web", &status, "other", false).unwrap_err().to_string(),
                "container \"other\" in pod \"web\" is not available"
            );
        }
    }
}
