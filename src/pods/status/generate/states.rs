//! States of containers, as the API has them, and whether one that ended will be started again. Pure.

use crate::model::{
    ContainerState as InstanceState, ContainerStatus, Pod, PodExt, container_should_restart,
    is_sidecar,
};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting,
};

/// The exit code when the real one is unknown.
pub(super) const UNKNOWN_EXIT_CODE: i32 = 137;

pub(super) fn waiting(reason: Option<String>, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason, message }),
        ..ContainerState::default()
    }
}

pub(super) fn terminated(end: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(end), ..ContainerState::default() }
}

pub(super) fn termination(state: &Option<ContainerState>) -> Option<&ContainerStateTerminated> {
    state.as_ref()?.terminated.as_ref()
}

pub(super) fn exit_code(state: &Option<ContainerState>) -> Option<i32> {
    termination(state).map(|end| end.exit_code)
}

/// Whether the container is restarted after an exit with this code, by its rules, its policy or the pod's policy. An init
/// container that is not a sidecar has completed once it succeeded.
pub(super) fn restarts_unless_completed(
    pod: &Pod,
    container: &Container,
    init: bool,
    exit_code: i32,
) -> bool {
    let done = init && !is_sidecar(container) && exit_code == 0;
    !done && container_should_restart(pod, container, exit_code)
}

/// Whether the next sync would start the container, by its newest instance.
pub(super) fn starts_next(
    pod: &Pod,
    container: &Container,
    init: bool,
    newest: Option<&ContainerStatus>,
) -> bool {
    if pod.is_being_deleted() {
        return false;
    }
    match newest {
        None => true,
        Some(instance) => match instance.state {
            InstanceState::Running => false,
            InstanceState::Created | InstanceState::Unknown => true,
            InstanceState::Exited => {
                restarts_unless_completed(pod, container, init, instance.exit_code)
            }
        },
    }
}
