//! Whether a container that ended will be started again, as the status has to show it.

use crate::model::{ContainerState, ContainerStatus, Pod, PodExt, is_sidecar, runs_again};
use k8s_openapi::api::core::v1::Container;

/// What the container's own rules and policy, else the pod's, mean after an exit with this code. An
/// init container that is not a sidecar is done once it succeeded.
pub(super) fn restarts_after(pod: &Pod, container: &Container, init: bool, exit_code: i32) -> bool {
    let done = init && !is_sidecar(container) && exit_code == 0;
    !done && runs_again(pod, container, exit_code)
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
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => restarts_after(pod, container, init, instance.exit_code),
        },
    }
}
