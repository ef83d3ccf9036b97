//! Generates one container's status from the runtime's instances; what they lack is taken from the old status.

use super::states::{
    UNKNOWN_EXIT_CODE, exit_code, restarts_unless_completed, starts_next, terminated, termination,
    waiting,
};
use super::{StatusInputs, resources, restart_all, whole_seconds};
use crate::model::{self, Pod, PodExt, ProbeResult, as_container, is_sidecar, reasons};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus,
    ContainerUser, LinuxContainerUser,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::borrow::Cow;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Which of a pod's container lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerList {
    Init,
    Regular,
    Ephemeral,
}

impl ContainerList {
    fn containers(self, pod: &Pod) -> Cow<'_, [Container]> {
        match self {
            Self::Init => pod.init_containers().into(),
            Self::Regular => pod.containers().into(),
            Self::Ephemeral => {
                let ephemeral = pod.ephemeral_containers().iter();
                ephemeral.map(as_container).collect()
            }
        }
    }

    fn is_plain_init(self, container: &Container) -> bool {
        self == Self::Init && !is_sidecar(container)
    }
}

/// Statuses of one list: init containers in spec order, others by name.
pub(super) fn container_statuses(
    inputs: &StatusInputs<'_>,
    old: &[ContainerStatus],
    kind: ContainerList,
) -> Vec<ContainerStatus> {
    let mut statuses: Vec<_> = kind
        .containers(inputs.pod)
        .iter()
        .map(|container| {
            let old = old.iter().find(|status| status.name == container.name);
            container_status(inputs, container, kind, old)
        })
        .collect();
    if kind != ContainerList::Init {
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
    }
    statuses
}

fn container_status(
    inputs: &StatusInputs<'_>,
    container: &Container,
    kind: ContainerList,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut instances = inputs.runtime.instances(&container.name);
    let newest = instances.next();
    let mut status = match newest {
        Some(newest) => {
            let mut status = from_instance(inputs, container, newest, old);
            status.last_state = instances
                .next()
                .and_then(|earlier| ended_state(inputs, earlier, old))
                .or_else(|| last_state_before(&status, old));
            status
        }
        None => without_instance(inputs, container, kind, old),
    };
    if let Some(waiting) = why_waiting(inputs, container, kind, newest, &status) {
        if let Some(ended) = status.state.take().filter(|state| state.terminated.is_some()) {
            status.last_state = Some(ended);
        }
        status.state = Some(waiting);
    }
    mark_started_and_ready(inputs, container, kind, newest, old, &mut status);
    // Those of an instance stay as they were made, whatever the runtime supports after an update.
    let same_instance = old.filter(|old| old.container_id.is_some());
    let same_instance = same_instance.filter(|old| old.container_id == status.container_id);
    let made = same_instance.and_then(|old| old.volume_mounts.clone());
    status.volume_mounts =
        made.or_else(|| resources::mounts(container, inputs.recursive_read_only_mounts));
    if kind == ContainerList::Regular {
        status.allocated_resources_status = (inputs.device_health)(&container.name);
    }
    status.last_state.get_or_insert_default();
    status
}

/// The `lastState` by the old status: the end of the instance before, which may be gone from the runtime; for the same
/// instance, its published `lastState`.
fn last_state_before(
    status: &ContainerStatus,
    old: Option<&ContainerStatus>,
) -> Option<ContainerState> {
    let old = old?;
    let is_successor = old.container_id != status.container_id;
    let ended = old.state.as_ref().filter(|state| state.terminated.is_some());
    ended.filter(|_| is_successor).or(old.last_state.as_ref()).cloned()
}

/// How often the container was restarted: from the runtime, and at least the published count, because an earlier
/// instance may have been removed with its sandbox. As upstream's `convertToAPIContainerStatuses`.
fn restart_count(restarts: i32, is_running_successor: bool, old: Option<&ContainerStatus>) -> i32 {
    let Some(old) = old else {
        return restarts;
    };
    let has_ended = old.state.as_ref().is_some_and(|state| state.terminated.is_some());
    if is_running_successor && has_ended && old.restart_count >= restarts {
        return old.restart_count.saturating_add(1);
    }
    old.restart_count.max(restarts)
}

/// The terminated state of an earlier instance; `None` without one.
fn ended_state(
    inputs: &StatusInputs<'_>,
    earlier: &model::ContainerStatus,
    old: Option<&ContainerStatus>,
) -> Option<ContainerState> {
    let id = container_id(inputs.runtime_name, &earlier.id);
    let known = old.filter(|old| old.container_id.as_deref() == Some(&*id));
    Some(state_of(inputs, earlier, known)).filter(|state| state.terminated.is_some())
}

fn from_instance(
    inputs: &StatusInputs<'_>,
    container: &Container,
    instance: &model::ContainerStatus,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let state = state_of(inputs, instance, old);
    let restarts = i32::try_from(instance.restart_count).unwrap_or(i32::MAX);
    let is_synthesized =
        is_status_unknown(&state) && instance.state != model::ContainerState::Exited;
    let id = container_id(inputs.runtime_name, &instance.id);
    let known = old.filter(|old| old.container_id.as_deref() == Some(&*id));
    let lifecycle = container.lifecycle.as_ref();
    let has_stop_signal = lifecycle.is_some_and(|hooks| hooks.stop_signal.is_some());
    let actuated = inputs.actuated_pod;
    let actuated = actuated.and_then(|pod| pod.container(&container.name));
    ContainerStatus {
        resources: Some(resources::of_container(container, instance, actuated, known)),
        allocated_resources: resources::allocated_requests(container),
        name: instance.name.to_string(),
        restart_count: match old.filter(|_| is_synthesized) {
            Some(old) if is_running(old) => old.restart_count.saturating_add(1),
            Some(old) => old.restart_count,
            None => {
                let is_running_successor = known.is_none() && state.running.is_some();
                restart_count(restarts, is_running_successor, old)
            }
        },
        image: instance.image.to_string(),
        image_id: instance.image_ref.to_string(),
        container_id: Some(id),
        state: Some(state),
        user: instance.user.as_deref().map(user),
        stop_signal: instance.stop_signal.filter(|_| has_stop_signal).map(str::to_string),
        ..ContainerStatus::default()
    }
}

fn user(reported: &model::ContainerUser) -> ContainerUser {
    let groups = &reported.supplemental_groups;
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: reported.uid,
            gid: reported.gid,
            supplemental_groups: (!groups.is_empty()).then(|| groups.clone()),
        }),
    }
}

/// The state of one instance. One of unknown state that was running is reported as terminated from then on: "ran and
/// failed" must not become "never ran".
fn state_of(
    inputs: &StatusInputs<'_>,
    instance: &model::ContainerStatus,
    old: Option<&ContainerStatus>,
) -> ContainerState {
    let id = container_id(inputs.runtime_name, &instance.id);
    match instance.state {
        model::ContainerState::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(instance.started_at) }),
            ..ContainerState::default()
        },
        model::ContainerState::Exited => terminated(ContainerStateTerminated {
            exit_code: instance.exit_code,
            reason: non_empty(&instance.reason),
            message: non_empty(&instance.message),
            started_at: time(instance.started_at),
            finished_at: time(instance.finished_at),
            container_id: Some(id),
            signal: None,
        }),
        model::ContainerState::Created => waiting(None, None),
        model::ContainerState::Unknown => match old {
            Some(old) if is_running(old) => unknown_exit(CONTAINER_LOST),
            Some(old) if old.container_id.as_deref() == Some(&*id) => [&old.state, &old.last_state]
                .into_iter()
                .flatten()
                .find(|state| is_status_unknown(state))
                .cloned()
                .unwrap_or_else(|| waiting(None, None)),
            _ => waiting(None, None),
        },
    }
}

/// The status of a container of which the runtime has no instance.
fn without_instance(
    inputs: &StatusInputs<'_>,
    container: &Container,
    kind: ContainerList,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let reason = if inputs.pod.init_containers().is_empty() {
        reasons::CONTAINER_CREATING
    } else {
        reasons::POD_INITIALIZING
    };
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting(Some(reason.into()), None)),
        ..ContainerStatus::default()
    };
    if let Some(removed) = restart_all::removed(inputs, old) {
        status.restart_count = removed.restarts;
        status.state = Some(removed.state);
        status.last_state = Some(removed.last_state);
        return status;
    }
    let ended = old.filter(|old| termination(&old.state).is_some());
    if kind.is_plain_init(container) && pod_was_initialized(inputs) {
        match ended.filter(|old| exit_code(&old.state) == Some(0)) {
            Some(old) => return old.clone(),
            None => {
                status.restart_count = old.map_or(0, |old| old.restart_count);
                status.last_state = old.and_then(|old| old.last_state.clone());
                status.state = Some(completed_without_instance());
                return status;
            }
        }
    }
    if let Some(old) = ended {
        return old.clone();
    }
    if let Some(old) = old {
        status.restart_count = old.restart_count;
        status.last_state.clone_from(&old.last_state);
        if is_running(old) {
            status.last_state = Some(unknown_exit(
                "The container could not be located when the pod was deleted.  \
                 The container used to be Running",
            ));
            // As upstream: a pod that is not deleted starts it again, so the count grows.
            if !inputs.pod.is_being_deleted() && !inputs.pod_is_terminal {
                status.restart_count = old.restart_count.saturating_add(1);
            }
        }
    }
    status
}

/// Regular containers are only created once every plain init container has succeeded.
fn pod_was_initialized(inputs: &StatusInputs<'_>) -> bool {
    let mut regular = inputs.pod.containers().iter();
    regular.any(|container| inputs.runtime.newest(&container.name).is_some())
}

/// The waiting state of a container that is to be started and is held back, by a failed start or by
/// its back-off.
fn why_waiting(
    inputs: &StatusInputs<'_>,
    container: &Container,
    kind: ContainerList,
    newest: Option<&model::ContainerStatus>,
    status: &ContainerStatus,
) -> Option<ContainerState> {
    let init = kind == ContainerList::Init;
    // An ephemeral container is started once.
    if kind == ContainerList::Ephemeral && newest.is_some() {
        return None;
    }
    if inputs.pod_is_terminal || !starts_next(inputs.pod, container, init, newest) {
        return None;
    }
    let done = |code| !restarts_unless_completed(inputs.pod, container, init, code);
    if newest.is_none() && exit_code(&status.state).is_some_and(done) {
        return None;
    }
    use model::ContainerState::{Created, Exited};
    let ended = newest.is_none_or(|newest| matches!(newest.state, Exited | Created));
    let (reason, message) = (inputs.start_failure)(&container.name).or_else(|| {
        let message = (inputs.back_off)(&container.name).filter(|_| ended)?;
        Some((reasons::CRASH_LOOP_BACK_OFF.to_string(), message))
    })?;
    Some(waiting(Some(reason), Some(message)))
}

/// Sets `started` and `ready`. Those of the same instance are kept until its next probe result: neither a restart of the
/// kubelet nor the end of the probes makes a pod unready.
fn mark_started_and_ready(
    inputs: &StatusInputs<'_>,
    container: &Container,
    kind: ContainerList,
    newest: Option<&model::ContainerStatus>,
    old: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
) {
    if kind == ContainerList::Ephemeral {
        // It is not probed, and the pod's readiness does not depend on it.
        (status.started, status.ready) = (None, false);
        return;
    }
    let running = newest.filter(|newest| newest.state == model::ContainerState::Running);
    let Some(instance) = running else {
        status.started = Some(false);
        status.ready = kind.is_plain_init(container) && exit_code(&status.state) == Some(0);
        return;
    };
    let same = old.filter(|old| old.container_id == status.container_id);
    let was_started = same.is_some_and(|old| old.started == Some(true));
    let was_ready = same.is_some_and(|old| old.ready);
    let probe_results = (inputs.probe_results)(&instance.id);
    let started = match probe_results.startup {
        Some(ProbeResult::Success) => true,
        Some(ProbeResult::Failure) => false,
        Some(ProbeResult::Unknown) => was_started,
        None => container.startup_probe.is_none() || was_started,
    };
    let ready = match probe_results.readiness {
        Some(probe_result) => probe_result == ProbeResult::Success,
        None => container.readiness_probe.is_none() || was_ready,
    };
    status.started = Some(started);
    status.ready = started && ready && !kind.is_plain_init(container);
}

/// `<runtime>://<id>`, as the API shows container ids.
fn container_id(runtime_name: &str, id: &model::ContainerId) -> String {
    format!("{runtime_name}://{id}")
}

/// The API's time of a runtime's nanoseconds; `None` for 0, "not reached".
pub(super) fn time(nanos: i64) -> Option<Time> {
    let at = Timestamp::from_second(nanos.div_euclid(NANOS_PER_SECOND)).ok()?;
    (nanos != 0).then(|| Time(whole_seconds(at)))
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_string())
}

/// Terminated state for a container that disappeared without an exit code.
pub(in crate::pods::status) fn unknown_exit(message: &str) -> ContainerState {
    terminated(ContainerStateTerminated {
        exit_code: UNKNOWN_EXIT_CODE,
        reason: Some(reasons::CONTAINER_STATUS_UNKNOWN.into()),
        message: Some(message.into()),
        ..ContainerStateTerminated::default()
    })
}

/// Upstream's message for a container that may have run and whose end is not known.
pub(in crate::pods::status) const CONTAINER_LOST: &str =
    "The container could not be located when the pod was terminated";

/// Upstream's message for an init container without an instance in the runtime, in a pod that was initialized.
pub(in crate::pods::status) const INIT_CONTAINER_LOST: &str = "Unable to get init container status from container \
     runtime and pod has been initialized, treat it as exited normally";

fn completed_without_instance() -> ContainerState {
    terminated(ContainerStateTerminated {
        exit_code: 0,
        reason: Some(reasons::COMPLETED.into()),
        message: Some(INIT_CONTAINER_LOST.into()),
        ..ContainerStateTerminated::default()
    })
}

fn is_status_unknown(state: &ContainerState) -> bool {
    let end = state.terminated.as_ref();
    end.is_some_and(|end| end.reason.as_deref() == Some(reasons::CONTAINER_STATUS_UNKNOWN))
}

fn is_running(status: &ContainerStatus) -> bool {
    matches!(&status.state, Some(state) if state.running.is_some())
}
