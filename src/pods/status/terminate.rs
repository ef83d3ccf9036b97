//! The last status of a pod: every container that may have run is terminated.

use super::generate::{CONTAINER_LOST, PodPhase, unknown_exit};
use crate::model::{Pod, PodExt, is_sidecar};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

/// Sets a terminated state with an unknown exit for every container that may have run and has none. A pod still
/// Pending or Running becomes Failed, unless it is static.
pub(super) fn terminated_status(pod: &Pod, mut status: PodStatus) -> PodStatus {
    let initialized = was_initialized(pod, &status);
    let regular = status.container_statuses.as_deref_mut().unwrap_or_default();
    if initialized {
        regular.iter_mut().for_each(terminate);
    }
    let init = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let started = started_count(init);
    init.iter_mut().take(started).for_each(terminate);
    let phase = status.phase.as_deref().and_then(PodPhase::parse);
    if !pod.is_static() && !phase.is_some_and(PodPhase::is_terminal) {
        status.phase = Some(PodPhase::Failed.as_str().into());
    }
    status
}

fn terminate(status: &mut ContainerStatus) {
    if !has_ended(&status.state) {
        status.state = Some(unknown_exit(CONTAINER_LOST));
        status.started = Some(false);
        status.ready = false;
    }
}

/// Whether the pod was initialized: it has no init containers, a regular container has left Waiting at least once,
/// or the last init container completed (a sidecar: started).
fn was_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let Some(last) = pod.init_containers().last() else {
        return true;
    };
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    if regular.iter().any(has_started) {
        return true;
    }
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    init.iter().find(|status| status.name == last.name).is_some_and(|status| {
        if is_sidecar(last) {
            is_running(&status.state) && status.started == Some(true)
        } else {
            exited_with_zero(&status.state) || exited_with_zero(&status.last_state)
        }
    })
}

/// Number of init containers that may have run: up to the last one that has left Waiting, at least one.
fn started_count(init: &[ContainerStatus]) -> usize {
    init.iter().rposition(has_started).map_or(1, |index| index + 1)
}

fn has_started(status: &ContainerStatus) -> bool {
    let is_waiting = matches!(&status.state, Some(state) if state.waiting.is_some());
    has_ended(&status.last_state) || !is_waiting
}

fn has_ended(state: &Option<ContainerState>) -> bool {
    matches!(state, Some(state) if state.terminated.is_some())
}

fn is_running(state: &Option<ContainerState>) -> bool {
    matches!(state, Some(state) if state.running.is_some())
}

fn exited_with_zero(state: &Option<ContainerState>) -> bool {
    let end = state.as_ref().and_then(|state| state.terminated.as_ref());
    end.is_some_and(|end| end.exit_code == 0)
}
