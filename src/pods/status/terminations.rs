//! The metric of containers that have ended.

use crate::base::metrics::metric_set;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

metric_set! {
    /// How containers ended.
    #[derive(Debug)]
    pub(super) struct Terminations {
        containers: Counter["container_type", "exit_code", "reason"] =
            "kubelet_terminated_containers_total", "Cumulative number of terminated containers.";
    }
}

impl Terminations {
    /// Counts the containers that have ended in `new` and had not in `old`, the published status before. Of a pod without
    /// one nothing is counted: its containers may have ended under an earlier kubelet, which counted them.
    pub(super) fn count(&self, old: &PodStatus, new: &PodStatus) {
        for (kind, old, new) in [
            ("init_container", &old.init_container_statuses, &new.init_container_statuses),
            ("container", &old.container_statuses, &new.container_statuses),
            (
                "ephemeral_container",
                &old.ephemeral_container_statuses,
                &new.ephemeral_container_statuses,
            ),
        ] {
            for end in ends(old.as_deref(), new.as_deref()) {
                let reason = end.reason.as_deref().unwrap_or_default();
                self.containers.with([kind, &end.exit_code.to_string(), reason]).inc();
            }
        }
    }
}

/// A container that is restarted at once shows its end only as its last state.
fn ends<'a>(
    old: Option<&'a [ContainerStatus]>,
    new: Option<&'a [ContainerStatus]>,
) -> impl Iterator<Item = &'a ContainerStateTerminated> {
    let known = move |end: &ContainerStateTerminated, name: &str| {
        let mut old = old.unwrap_or_default().iter();
        let before = old.find(|status| status.name == name);
        before.is_some_and(|before| {
            [&before.state, &before.last_state]
                .into_iter()
                .filter_map(|state| state.as_ref()?.terminated.as_ref())
                .any(|old| old.container_id == end.container_id)
        })
    };
    new.unwrap_or_default().iter().filter_map(move |status| {
        let newest = [&status.state, &status.last_state]
            .into_iter()
            .find_map(|state| state.as_ref()?.terminated.as_ref())?;
        // Without an ID nothing ran.
        let ran = newest.container_id.as_ref().is_some_and(|id| !id.is_empty());
        (ran && !known(newest, &status.name)).then_some(newest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::metrics::Metrics;
    use serde_json::{Value, json};

    fn status(state: &Value, last: &Value) -> PodStatus {
        let container = json!({"name": "c", "state": state, "lastState": last, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        serde_json::from_value(json!({"containerStatuses": [container]})).unwrap()
    }

    #[test]
    fn each_end_is_counted_once_also_when_the_container_runs_again() {
        let ended = |id: &str, code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "containerID": id}});
        let (running, none) = (json!({"running": {}}), json!({}));
        let metrics = Metrics::new();
        let terminations = Terminations::register(&metrics);
        for (old, new) in [
            (status(&running, &none), status(&ended("a", 1), &none)),
            (status(&ended("a", 1), &none), status(&ended("a", 1), &none)),
            (status(&ended("a", 1), &none), status(&running, &ended("a", 1))),
            (status(&running, &ended("a", 1)), status(&running, &ended("b", 1))),
            (status(&none, &none), status(&ended("", 137), &none)),
        ] {
            terminations.count(&old, &new);
        }
        let text = metrics.text();
        let line = "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"1\",reason=\"Error\"} 2";
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, [line]);
    }
}
