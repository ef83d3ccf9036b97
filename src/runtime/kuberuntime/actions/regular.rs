//! Regular and ephemeral containers in a sandbox that is kept.

use super::view::{LastInstance, definition_changed};
use super::{
    ContainerKill, ContainerStart, KillPodReason, KillReason, PodActionInputs, PodActions,
    StartReason, resize,
};
use crate::model::{
    ContainerState, ContainerStatus, PodExt, ProbeResult, RestartPolicy, container_should_restart,
};
use k8s_openapi::api::core::v1::Container;

/// The action for one regular container.
#[derive(Clone, Copy)]
enum ContainerAction {
    Keep,
    NoRestart,
    Start(StartReason),
    /// Stop it, and start it again if `restart` is set.
    Kill {
        reason: KillReason,
        restart: bool,
    },
}

/// Adds the ephemeral containers to start, which are started once and never restarted.
pub(super) fn compute_ephemeral(inputs: &PodActionInputs<'_>, actions: &mut PodActions) {
    let containers = inputs.pod.ephemeral_containers().iter();
    actions.ephemeral_containers_to_start = containers
        .enumerate()
        .filter(|(_, c)| matches!(inputs.last_instance(&c.name), LastInstance::NeverCreated))
        .map(|(index, c)| ContainerStart::new(index, &c.name, StartReason::NoInstance))
        .collect();
}

/// Adds the actions of regular containers. If none is kept and none is started, the pod is killed, with its sidecars.
pub(super) fn compute(inputs: &PodActionInputs<'_>, actions: &mut PodActions) {
    let may_start = !inputs.pod.is_being_deleted();
    let mut kept = false;
    for (index, container) in inputs.pod.containers().iter().enumerate() {
        let last = inputs.last_instance(&container.name);
        match action_for(inputs, container, &last) {
            ContainerAction::Keep => kept = true,
            ContainerAction::NoRestart => {}
            ContainerAction::Start(reason) => {
                if may_start {
                    let start = ContainerStart::new(index, &container.name, reason);
                    actions.containers_to_start.push(start);
                }
            }
            ContainerAction::Kill { reason, restart } => {
                let restart = restart && may_start;
                if let LastInstance::Present(status) = last {
                    actions.containers_to_kill.push(ContainerKill {
                        id: status.id.clone(),
                        name: container.name.clone(),
                        reason,
                        init: false,
                        restart,
                    });
                }
                if restart {
                    actions.containers_to_start.push(ContainerStart::new(
                        index,
                        &container.name,
                        StartReason::Killed(reason),
                    ));
                }
            }
        }
    }
    if !kept && actions.containers_to_start.is_empty() {
        actions.kill_pod = Some(KillPodReason::NothingToRun);
    }
}

fn action_for(
    inputs: &PodActionInputs<'_>,
    container: &Container,
    last: &LastInstance<'_>,
) -> ContainerAction {
    let after_exit = |code| {
        if container_should_restart(inputs.pod, container, code) {
            ContainerAction::Start(StartReason::Exited(code))
        } else {
            ContainerAction::NoRestart
        }
    };
    match last {
        LastInstance::NeverCreated => ContainerAction::Start(StartReason::NoInstance),
        LastInstance::Removed(code) => after_exit(*code),
        LastInstance::Present(status) => match status.state {
            ContainerState::Created => ContainerAction::Start(StartReason::NeverStarted),
            ContainerState::Unknown => kill(KillReason::UnknownState, true),
            ContainerState::Exited if inputs.was_killed_to_restart(&container.name) => {
                ContainerAction::Start(StartReason::KilledToRestart)
            }
            ContainerState::Exited => after_exit(status.exit_code),
            ContainerState::Running => action_for_running(inputs, container, status),
        },
    }
}

fn kill(reason: KillReason, restart: bool) -> ContainerAction {
    ContainerAction::Kill { reason, restart }
}

fn action_for_running(
    inputs: &PodActionInputs<'_>,
    container: &Container,
    status: &ContainerStatus,
) -> ContainerAction {
    if definition_changed(container, status) {
        return kill(KillReason::DefinitionChanged, true);
    }
    let restart = inputs.restart_policy(container) != RestartPolicy::Never;
    let probe_results = (inputs.probe_results)(&status.id);
    if probe_results.liveness == Some(ProbeResult::Failure) {
        kill(KillReason::LivenessProbe, restart)
    } else if probe_results.startup == Some(ProbeResult::Failure) {
        kill(KillReason::StartupProbe, restart)
    } else if resize::needs_restart(inputs, container) {
        kill(KillReason::Resize, true)
    } else {
        ContainerAction::Keep
    }
}
