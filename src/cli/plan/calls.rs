//! The calls on the runtime that would change something, in order. Pure.

use super::steps::Inputs;
use crate::{
    images::PullPolicy,
    model::{PodExt, PodStatus, is_sidecar},
    runtime::kuberuntime::preview::KnownImages,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use serde::Serialize;

/// One call.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Call {
    /// Name of the RPC.
    pub(super) call: &'static str,
    /// What it is about: a container's name, an image, an id.
    pub(super) about: String,
    /// On which condition; empty when it would be made at once.
    pub(super) when: String,
    /// From when on, where it has to wait.
    pub(super) at: Option<Timestamp>,
}

fn call(call: &'static str, about: impl Into<String>, when: &str) -> Call {
    Call {
        call,
        about: about.into(),
        when: when.into(),
        at: None,
    }
}

/// All calls. `read`: it is known which images are there.
pub(super) fn calls(inputs: &Inputs<'_>, images: &KnownImages, read: bool) -> Vec<Call> {
    let actions = inputs.actions;
    let mut calls: Vec<Call> = inputs.others.iter().flat_map(stop_pod).collect();
    if actions.kill_pod.is_some() {
        calls.extend(stop_pod(inputs.status));
    } else {
        let kills = actions.containers_to_kill.iter();
        calls.extend(kills.map(|kill| call("StopContainer", &kill.name, "")));
        let resets = actions.reset.iter().flat_map(|reset| &reset.groups);
        for one in resets.flatten() {
            calls.extend(one.stop.then(|| call("StopContainer", &one.name, "")));
            calls.push(call("RemoveContainer", &one.name, ""));
        }
    }
    if actions.create_sandbox {
        calls.push(call("RunPodSandbox", inputs.pod.name(), ""));
    }
    if actions.kill_pod.is_some() && !actions.create_sandbox {
        return calls;
    }
    let mut before: Option<&Container> = None;
    for container in inputs.pod.init_containers() {
        let starts = &actions.init_containers_to_start;
        let now = starts.iter().any(|start| start.name == container.name);
        calls.extend(start(inputs, container, now, before, images, read));
        before = Some(container);
    }
    for container in inputs.pod.containers() {
        let starts = &actions.containers_to_start;
        let now = starts.iter().any(|start| start.name == container.name);
        calls.extend(start(inputs, container, now, before, images, read));
    }
    calls
}

fn stop_pod(status: &PodStatus) -> Vec<Call> {
    let running = status.maybe_running();
    let stops = running.map(|container| call("StopContainer", &*container.name, ""));
    let sandboxes = status.ready_sandboxes();
    let sandboxes = sandboxes.map(|sandbox| call("StopPodSandbox", sandbox.id.as_str(), ""));
    stops.chain(sandboxes).collect()
}

/// The calls that start a container: now, or once the one before it lets it. None for one that has
/// been started already.
fn start(
    inputs: &Inputs<'_>,
    container: &Container,
    now: bool,
    before: Option<&Container>,
    images: &KnownImages,
    read: bool,
) -> Vec<Call> {
    let started = inputs.status.newest(&container.name).is_some();
    let started = started && inputs.actions.reset.is_none();
    if !now && started && !inputs.actions.create_sandbox {
        return Vec::new();
    }
    let when = match before.filter(|_| !now) {
        Some(before) if is_sidecar(before) => format!("once {} has started", before.name),
        Some(before) => format!("once {} has ended well", before.name),
        None => String::new(),
    };
    let held = (inputs.held)(&container.name).filter(|_| now);
    let image = container.image.as_deref().unwrap_or_default();
    let policy = PullPolicy::of(container.image_pull_policy.as_deref());
    let pull = match (policy, images.contains_key(image)) {
        (PullPolicy::Never, _) | (PullPolicy::IfNotPresent, true) => None,
        (PullPolicy::IfNotPresent, false) if !read => Some("if the image is not there"),
        (PullPolicy::IfNotPresent | PullPolicy::Always, _) => Some(""),
    };
    let pull = pull.map(|condition| {
        let all: Vec<&str> = [when.as_str(), condition]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        call("PullImage", image, &all.join(", "))
    });
    let own = ["CreateContainer", "StartContainer"];
    let own = own.map(|name| call(name, &container.name, &when));
    let calls = pull.into_iter().chain(own);
    calls
        .map(|call| Call {
            at: held.map(|(_, at)| at),
            ..call
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::{computed, pod, runtime};
    use super::*;
    use crate::{
        images::ReadyImage,
        model::{ContainerState, Pod},
    };
    use serde_json::json;
    use std::time::Duration;

    fn told(
        pod: &Pod,
        status: &PodStatus,
        others: &[PodStatus],
        here: Option<&[&str]>,
    ) -> Vec<String> {
        let held = |name: &str| {
            let over = Timestamp::from_second(40).unwrap();
            (name == "slow").then_some((Duration::from_secs(20), over))
        };
        let image = |name: &&str| {
            let image = ReadyImage {
                reference: "sha256:1".into(),
                uid: None,
                username: String::new(),
            };
            (name.to_string(), image)
        };
        let images = here.unwrap_or_default().iter().map(image).collect();
        let inputs = Inputs {
            pod,
            status,
            others,
            actions: &computed(pod, status),
            held: &held,
        };
        let line = |call: Call| {
            let at = call.at.map(|at| format!(" at {}", at.as_second()));
            let text = format!(
                "{} {} {}{}",
                call.call,
                call.about,
                call.when,
                at.unwrap_or_default()
            );
            text.trim_end().to_string()
        };
        calls(&inputs, &images, here.is_some())
            .into_iter()
            .map(line)
            .collect()
    }

    #[test]
    fn a_start_from_nothing_goes_through_all_containers_in_order() {
        let pod = pod(json!({
            "initContainers": [
                {"name": "i", "image": "x", "imagePullPolicy": "IfNotPresent"},
                {"name": "s", "image": "y", "imagePullPolicy": "Never", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "c", "image": "z", "imagePullPolicy": "Always"}],
        }));
        let nothing = PodStatus::default();
        assert_eq!(
            told(&pod, &nothing, &[], None),
            [
                "RunPodSandbox web-n1",
                "PullImage x if the image is not there",
                "CreateContainer i",
                "StartContainer i",
                "CreateContainer s once i has ended well",
                "StartContainer s once i has ended well",
                "PullImage z once s has started",
                "CreateContainer c once s has started",
                "StartContainer c once s has started",
            ]
        );
        let known = told(&pod, &nothing, &[], Some(&["x", "z"]));
        assert_eq!(known[1], "CreateContainer i", "it is here");
        assert!(
            known.contains(&"PullImage z once s has started".into()),
            "always"
        );
    }

    #[test]
    fn a_satisfied_pod_needs_no_call_and_a_back_off_names_its_end() {
        let pod = pod(json!({"containers": [
            {"name": "a", "image": "x", "imagePullPolicy": "Never"},
            {"name": "slow", "image": "x", "imagePullPolicy": "Never"},
        ]}));
        let running = |state| {
            runtime(
                &pod,
                &[("a", ContainerState::Running, 0), ("slow", state, 1)],
            )
        };
        let told = |status| told(&pod, &status, &[], Some(&[]));
        assert!(told(running(ContainerState::Running)).is_empty());
        assert_eq!(
            told(running(ContainerState::Exited)),
            ["CreateContainer slow  at 40", "StartContainer slow  at 40"]
        );
    }

    #[test]
    fn what_runs_is_stopped_before_it_is_replaced() {
        let pod =
            pod(json!({"containers": [{"name": "a", "image": "x", "imagePullPolicy": "Never"}]}));
        let old = runtime(&pod, &[("a", ContainerState::Running, 0)]);
        assert_eq!(
            told(&pod, &PodStatus::default(), &[old], Some(&[])),
            [
                "StopContainer a",
                "StopPodSandbox sandbox-1234567890",
                "RunPodSandbox web-n1",
                "CreateContainer a",
                "StartContainer a",
            ]
        );
    }
}
