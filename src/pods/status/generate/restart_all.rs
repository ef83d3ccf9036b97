//! The status while all containers of a pod are restarted.

use super::states::{UNKNOWN_EXIT_CODE, terminated, waiting};
use super::{PodPhase, StatusInputs};
use crate::model::may_restart_all;
use crate::model::reasons::RESTARTING_ALL_CONTAINERS;
use crate::runtime::kuberuntime::RestartAllStage;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};

const MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// The status of a container that was removed for `RestartAllContainers`: Waiting, with a terminated last state. `None`
/// for a container that had not left Waiting.
pub(super) fn removed(
    inputs: &StatusInputs<'_>,
    old: Option<&ContainerStatus>,
) -> Option<RemovedContainerStatus> {
    if inputs.restart_all == RestartAllStage::None || inputs.pod_is_terminal {
        return None;
    }
    let old = old?;
    let is_waiting = |state: &ContainerState| state.waiting.is_some();
    let is_restarting = |state: &Option<ContainerState>| state.as_ref().is_some_and(is_restarting);
    let known =
        is_restarting(&old.state) || (old.container_id.is_none() && is_restarting(&old.last_state));
    let restarts = if !old.state.as_ref().is_none_or(is_waiting) {
        old.restart_count.saturating_add(1)
    } else if known {
        old.restart_count
    } else {
        return None;
    };
    Some(RemovedContainerStatus {
        restarts,
        state: waiting(Some(RESTARTING_ALL_CONTAINERS.into()), Some(MESSAGE.into())),
        last_state: terminated(ContainerStateTerminated {
            exit_code: UNKNOWN_EXIT_CODE,
            reason: Some(RESTARTING_ALL_CONTAINERS.into()),
            message: Some(MESSAGE.into()),
            ..ContainerStateTerminated::default()
        }),
    })
}

/// The status of a removed container.
pub(super) struct RemovedContainerStatus {
    pub(super) restarts: i32,
    pub(super) state: ContainerState,
    pub(super) last_state: ContainerState,
}

/// Whether a state, waiting or ended, is due to a restart of all.
fn is_restarting(state: &ContainerState) -> bool {
    let waits = state.waiting.as_ref().and_then(|w| w.reason.as_deref());
    let ended = state.terminated.as_ref().and_then(|t| t.reason.as_deref());
    [waits, ended].contains(&Some(RESTARTING_ALL_CONTAINERS))
}

/// Whether the condition `AllContainersRestarting` holds, with its reason and message; `None` for a pod
/// that has no such rule.
pub(super) fn condition(
    inputs: &StatusInputs<'_>,
    phase: PodPhase,
) -> Option<(bool, Option<&'static str>, Option<&'static str>)> {
    may_restart_all(inputs.pod).then_some(match (phase, inputs.restart_all) {
        (PodPhase::Succeeded, _) => (false, Some("PodCompleted"), None),
        (PodPhase::Failed, _) => (false, Some("PodFailed"), None),
        (_, RestartAllStage::Removing) => (
            true,
            Some("RestartAllContainersStarted"),
            Some("container exited with restart policy rule"),
        ),
        (_, RestartAllStage::None | RestartAllStage::Removed) => (false, None, None),
    })
}
