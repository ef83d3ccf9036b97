//! What would be done at this moment, in words. Pure.

use crate::{
    base::GoDuration,
    model::{ContainerState, Pod, PodExt, PodStatus},
    runtime::kuberuntime::actions::{KillPodReason, PodActions},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use serde::Serialize;
use std::time::Duration;

/// One thing that would be done, or left as it is.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Step {
    /// The sandbox, a container by its name, or another pod by its UID.
    pub(super) what: String,
    /// `keep`, `start`, `restart`, `stop`, `wait`, `leave` or `later`.
    pub(super) action: &'static str,
    /// Why.
    pub(super) why: String,
    /// From when on, where it has to wait.
    pub(super) at: Option<Timestamp>,
}

/// What the steps depend on.
pub(super) struct Inputs<'a> {
    pub(super) pod: &'a Pod,
    pub(super) status: &'a PodStatus,
    pub(super) others: &'a [PodStatus],
    pub(super) actions: &'a PodActions,
    /// The restart back-off of a container, and when it is over, if it is held back.
    pub(super) held: &'a dyn Fn(&str) -> Option<(Duration, Timestamp)>,
}

/// All steps, in order.
pub(super) fn steps(inputs: &Inputs<'_>) -> Vec<Step> {
    let mut steps: Vec<Step> = inputs.others.iter().map(other).collect();
    steps.push(sandbox(inputs));
    let inits = inputs.pod.init_containers().iter();
    steps.extend(
        inits
            .chain(inputs.pod.containers())
            .map(|c| container(inputs, c)),
    );
    steps
}

fn step(what: impl Into<String>, action: &'static str, why: impl Into<String>) -> Step {
    Step {
        what: what.into(),
        action,
        why: why.into(),
        at: None,
    }
}

fn other(status: &PodStatus) -> Step {
    let why = "another version of the pod runs; it is stopped first";
    step(format!("pod {}", status.uid), "stop", why)
}

fn sandbox(inputs: &Inputs<'_>) -> Step {
    let actions = inputs.actions;
    let newest = inputs.status.newest_sandbox();
    let id = newest.map(|sandbox| sandbox.id.as_str().to_string());
    let name = match &id {
        Some(id) => format!("sandbox {}", id.get(..13).unwrap_or(id)),
        None => "sandbox".into(),
    };
    match (&actions.kill_pod, actions.create_sandbox) {
        (Some(reason), true) if id.is_some() => step(name, "restart", reason.to_string()),
        (Some(KillPodReason::SandboxReplaced(change)), true) => {
            step(name, "start", change.to_string())
        }
        (_, true) => step(name, "start", "the pod has no sandbox"),
        (Some(reason), false) => step(name, "stop", reason.to_string()),
        (None, false) => step(name, "keep", "it is as it should be"),
    }
}

fn container(inputs: &Inputs<'_>, container: &Container) -> Step {
    let (name, actions) = (&container.name, inputs.actions);
    let mut starts = [
        &actions.init_containers_to_start,
        &actions.containers_to_start,
    ]
    .into_iter()
    .flatten();
    let newest = inputs.status.newest(name);
    if let Some(kill) = actions.containers_to_kill.iter().find(|k| k.name == *name) {
        let action = if kill.restart { "restart" } else { "stop" };
        return step(name, action, kill.reason.to_string());
    }
    if let Some(reset) = &actions.reset {
        return step(name, "restart", reset.to_string());
    }
    if let Some(start) = starts.find(|start| start.name == *name) {
        let action = if newest.is_some() { "restart" } else { "start" };
        return match (inputs.held)(name) {
            None => step(name, action, start.reason.to_string()),
            Some((delay, at)) => Step {
                at: Some(at),
                ..step(
                    name,
                    "wait",
                    format!(
                        "{}; its back-off is {}",
                        start.reason,
                        GoDuration::from(delay)
                    ),
                )
            },
        };
    }
    match (newest.map(|seen| seen.state), &actions.kill_pod) {
        (Some(ContainerState::Running | ContainerState::Unknown), Some(reason)) => {
            step(name, "stop", reason.to_string())
        }
        (Some(ContainerState::Running), None) => step(name, "keep", "it runs"),
        (Some(_), _) => {
            let code = newest.map_or(0, |seen| seen.exit_code);
            step(name, "leave", format!("it has ended with {code}"))
        }
        (None, Some(_)) if !actions.create_sandbox => {
            step(name, "leave", "nothing of the pod is started any more")
        }
        (None, _) => step(name, "later", "the containers before it come first"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        model::{ContainerStatus, SandboxStatus, container_hash},
        runtime::kuberuntime::actions::{self, Facts, compute_pod_actions},
        state::probe_results::ContainerProbeResults,
    };
    use serde_json::{Value, json};

    pub(in crate::cli::plan) fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-n1", "namespace": "shop", "uid": "u"},
            "spec": spec,
        }))
        .unwrap()
    }

    /// A ready sandbox with these containers in it.
    pub(in crate::cli::plan) fn runtime(
        pod: &Pod,
        containers: &[(&str, ContainerState, i32)],
    ) -> PodStatus {
        let container = |(name, state, exit_code): &(&str, ContainerState, i32)| ContainerStatus {
            id: format!("id-{name}").into(),
            name: (*name).into(),
            sandbox: "sandbox-1234567890".into(),
            state: *state,
            exit_code: *exit_code,
            hash: container_hash(pod.container(name).unwrap()).into(),
            ..ContainerStatus::default()
        };
        PodStatus {
            uid: "u".into(),
            sandboxes: vec![SandboxStatus {
                id: "sandbox-1234567890".into(),
                ready: true,
                ..SandboxStatus::default()
            }],
            containers: containers.iter().map(container).collect(),
            ..PodStatus::default()
        }
    }

    pub(in crate::cli::plan) fn computed(pod: &Pod, status: &PodStatus) -> PodActions {
        compute_pod_actions(&actions::Inputs {
            pod,
            status,
            probe_results: &|_| ContainerProbeResults::default(),
            facts: &Facts::default(),
        })
    }

    fn told(pod: &Pod, status: &PodStatus, others: &[PodStatus]) -> Vec<String> {
        let held = |name: &str| {
            let over = Timestamp::from_second(40).unwrap();
            (name == "slow").then_some((Duration::from_secs(20), over))
        };
        let steps = steps(&Inputs {
            pod,
            status,
            others,
            actions: &computed(pod, status),
            held: &held,
        });
        let line = |step: &Step| format!("{}: {} ({})", step.what, step.action, step.why);
        steps.iter().map(line).collect()
    }

    use ContainerState::{Exited, Running};

    #[test]
    fn a_pod_that_the_runtime_has_nothing_of_is_started() {
        let pod = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}));
        assert_eq!(
            told(&pod, &PodStatus::default(), &[]),
            [
                "sandbox: start (the pod has no sandbox)",
                "i: start (the sandbox is new)",
                "c: later (the containers before it come first)",
            ]
        );
    }

    #[test]
    fn what_runs_is_kept_what_ended_is_restarted_and_who_has_to_wait_waits() {
        let pod = pod(json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "slow"}]}));
        let status = runtime(
            &pod,
            &[("a", Running, 0), ("b", Exited, 3), ("slow", Exited, 1)],
        );
        assert_eq!(
            told(&pod, &status, &[]),
            [
                "sandbox sandbox-12345: keep (it is as it should be)",
                "a: keep (it runs)",
                "b: restart (exited with code 3)",
                "slow: wait (exited with code 1; its back-off is 20s)",
            ]
        );
    }

    #[test]
    fn a_changed_image_restarts_its_container() {
        let mut pod = pod(json!({"containers": [{"name": "a", "image": "x:1"}]}));
        let status = runtime(&pod, &[("a", Running, 0)]);
        pod.spec.as_mut().unwrap().containers[0].image = Some("x:2".into());
        assert_eq!(
            told(&pod, &status, &[])[1],
            "a: restart (definition changed)"
        );
    }

    #[test]
    fn a_pod_that_is_over_is_stopped_and_left() {
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
        let pod = pod(spec);
        let status = runtime(&pod, &[("a", Exited, 0)]);
        let told = told(&pod, &status, &[]);
        assert_eq!(
            told[0],
            "sandbox sandbox-12345: stop (no container is left to run)"
        );
        assert_eq!(told[1], "a: leave (it has ended with 0)");
    }

    #[test]
    fn another_version_is_stopped_first() {
        let pod = pod(json!({"containers": [{"name": "a"}]}));
        let mut other = runtime(&pod, &[("a", Running, 0)]);
        other.uid = "old".into();
        let told = told(&pod, &PodStatus::default(), &[other]);
        assert_eq!(
            told[0],
            "pod old: stop (another version of the pod runs; it is stopped first)"
        );
    }
}
