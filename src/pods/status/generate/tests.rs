mod conditions;
mod containers;
mod invariants;
mod mounts;
mod phases;
mod resources;
mod restart_all;
mod whole;

use super::*;
use crate::model::{ContainerState as Cri, SandboxStatus, fixture, keys};
use k8s_openapi::api::core::v1::{Container, ContainerState, Probe};

const NO_RESIZE: ResizeConditions =
    ResizeConditions { pending: None, in_progress: None, undecided: false };

impl<'a> StatusInputs<'a> {
    /// Inputs about a pod of which only the runtime status is known; the caller sets the other inputs.
    pub(super) fn new(pod: &'a Pod, runtime: &'a model::PodStatus, now: Timestamp) -> Self {
        Self {
            pod,
            runtime,
            runtime_name: "containerd",
            qos_class: "BestEffort",
            probe_results: &|_| ContainerProbeResults::default(),
            start_failure: &|_| None,
            back_off: &|_| None,
            old: None,
            api_status: None,
            needs_new_sandbox: false,
            restart_all: RestartAllStage::None,
            pod_is_terminal: false,
            host_ips: &[],
            pod_failure: None,
            resize: &NO_RESIZE,
            actuated_pod: None,
            device_health: &|_| None,
            recursive_read_only_mounts: false,
            now,
        }
    }
}

/// 2026-01-01T00:00:00Z and a bit.
const NOW: i64 = 1_767_225_600;

pub(super) fn now() -> Timestamp {
    Timestamp::from_nanosecond(i128::from(NOW) * 1_000_000_000 + 123_456_789).unwrap()
}

pub(super) fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// A file pod with restart policy and containers; `init` names ending in `*` are sidecars.
pub(super) fn pod(policy: &str, init: &[&str], regular: &[&str]) -> Pod {
    let container = |name: &&str| {
        let restart = name.ends_with('*').then_some("Always");
        serde_json::json!({"name": name.trim_end_matches('*'), "image": "img:1", "restartPolicy": restart})
    };
    let [init, regular] =
        [init, regular].map(|list| list.iter().map(container).collect::<Vec<_>>());
    let spec =
        serde_json::json!({"restartPolicy": policy, "initContainers": init, "containers": regular});
    let pod = fixture::pod("default/web-node/u1", spec);
    let status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
    Pod { status, ..fixture::annotated(pod, [(keys::CONFIG_SOURCE, "file")]) }
}

/// The same pod as an API server would deliver it.
pub(super) fn from_api(mut pod: Pod) -> Pod {
    let annotations = pod.metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::CONFIG_SOURCE.into(), "api".into());
    pod
}

pub(super) fn edit(pod: &mut Pod, name: &str, change: impl FnOnce(&mut Container)) {
    let spec = pod.spec.as_mut().unwrap();
    let init = spec.init_containers.as_mut().unwrap().iter_mut();
    change(init.chain(&mut spec.containers).find(|c| c.name == name).unwrap());
}

pub(super) fn running(name: &str, id: &str) -> model::ContainerStatus {
    instance(name, id, Cri::Running, 0)
}

pub(super) fn exited(name: &str, id: &str, code: i32) -> model::ContainerStatus {
    let reason = if code == 0 { "Completed" } else { "Error" };
    model::ContainerStatus {
        finished_at: (NOW - 1) * 1_000_000_000,
        exit_code: code,
        reason: reason.into(),
        ..instance(name, id, Cri::Exited, 0)
    }
}

pub(super) fn instance(name: &str, id: &str, state: Cri, restarts: u32) -> model::ContainerStatus {
    model::ContainerStatus {
        id: id.into(),
        name: name.into(),
        state,
        restart_count: restarts,
        created_at: (NOW - 10) * 1_000_000_000 + i64::from(restarts),
        started_at: (NOW - 9) * 1_000_000_000 + 5,
        image: "docker.io/library/img:1".into(),
        image_ref: "sha256:abc".into(),
        ..model::ContainerStatus::default()
    }
}

/// A runtime status with one ready sandbox and these instances, newest first.
pub(super) fn runtime_status(containers: &[model::ContainerStatus]) -> model::PodStatus {
    model::PodStatus {
        uid: "u1".into(),
        sandboxes: vec![SandboxStatus {
            id: "s1".into(),
            ready: true,
            has_network_status: true,
            ips: vec!["10.88.0.5".into(), "fd00::5".into()],
            ..SandboxStatus::default()
        }],
        containers: containers.to_vec(),
        ..model::PodStatus::default()
    }
}

pub(super) fn generate(pod: &Pod, containers: &[model::ContainerStatus]) -> PodStatus {
    after(pod, containers, None)
}

pub(super) fn after(
    pod: &Pod,
    containers: &[model::ContainerStatus],
    old: Option<&PodStatus>,
) -> PodStatus {
    let runtime_status = runtime_status(containers);
    let inputs = StatusInputs {
        old,
        api_status: pod.status.as_ref(),
        ..StatusInputs::new(pod, &runtime_status, now())
    };
    generate_api_pod_status(&inputs).unwrap()
}

pub(super) fn of<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let init = list(&status.init_container_statuses).iter();
    let mut all = init.chain(list(&status.container_statuses));
    all.find(|s| s.name == name).unwrap()
}

pub(super) fn reason_waiting(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

/// `running`, `waiting:<reason>` or `terminated:<reason>:<code>`.
pub(super) fn state_text(state: &Option<ContainerState>) -> String {
    let Some(state) = state else {
        return "none".into();
    };
    if state.running.is_some() {
        return "running".into();
    }
    if let Some(waiting) = &state.waiting {
        return format!("waiting:{}", waiting.reason.as_deref().unwrap_or_default());
    }
    let end = state.terminated.as_ref().unwrap();
    let reason = end.reason.as_deref().unwrap_or_default();
    format!("terminated:{reason}:{}", end.exit_code)
}

pub(super) fn probe() -> Option<Probe> {
    Some(Probe::default())
}
