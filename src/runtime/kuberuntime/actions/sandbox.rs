//! Whether the newest sandbox can be kept, and the actions if it cannot.

use super::view::LastInstance;
use super::{
    ContainerStart, KillPodReason, PodActionInputs, PodActions, SandboxChange, StartReason,
};
use crate::model::{ContainerState, NetworkMode, PodExt, RestartPolicy, container_should_restart};
use k8s_openapi::api::core::v1::Container;

/// Checks the sandbox. `sandbox` and `attempt` of the result are those to use, or the sandbox to replace and the attempt
/// number of the new one.
pub(super) fn check(inputs: &PodActionInputs<'_>) -> PodActions {
    let status = inputs.status;
    let Some(newest) = status.newest_sandbox() else {
        return PodActions {
            sandbox_change: Some(SandboxChange::NoSandbox),
            ..PodActions::default()
        };
    };
    let network = if inputs.pod.host_network() { NetworkMode::Node } else { NetworkMode::Pod };
    let lost_ip = network == NetworkMode::Pod
        && newest.has_network_status
        && newest.ips.first().is_none_or(String::is_empty);
    let change = if status.ready_sandboxes().count() > 1 {
        Some(SandboxChange::SeveralReady)
    } else if !newest.ready {
        Some(SandboxChange::NotReady)
    } else if newest.network != network {
        Some(SandboxChange::NetworkModeDiffers)
    } else if lost_ip {
        Some(SandboxChange::LostIp)
    } else {
        None
    };
    PodActions {
        // Upstream returns no id in this case, and therefore emits no SandboxChanged event.
        sandbox: (change != Some(SandboxChange::NetworkModeDiffers)).then(|| newest.id.clone()),
        attempt: match change {
            Some(_) => newest.attempt.saturating_add(1),
            None => newest.attempt,
        },
        sandbox_change: change,
        ..PodActions::default()
    }
}

/// Adds the actions that stop everything, and that start the containers that may run again in a new sandbox.
pub(super) fn replace(
    inputs: &PodActionInputs<'_>,
    change: SandboxChange,
    actions: &mut PodActions,
) {
    let pod = inputs.pod;
    actions.kill_pod = Some(KillPodReason::SandboxLost(change));
    // A container with its own restart policy may run again although the pod's policy is Never, and one that was killed to
    // be restarted.
    let mut exceptions = pod
        .containers()
        .iter()
        .filter(|c| c.restart_policy.is_some() || inputs.was_killed_to_restart(&c.name));
    let never_again = pod.restart_policy() == RestartPolicy::Never
        && actions.attempt != 0
        && inputs.any_container()
        && !exceptions.any(|container| restarts_in_new_sandbox(inputs, container));
    if pod.is_being_deleted() || never_again {
        return;
    }
    let candidates: Vec<ContainerStart> = pod
        .containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| restarts_in_new_sandbox(inputs, container))
        .map(|(index, c)| ContainerStart::new(index, &c.name, StartReason::NewSandbox))
        .collect();
    if candidates.is_empty() && inputs.any_regular_container() {
        return;
    }
    actions.kill_pod = Some(KillPodReason::SandboxReplaced(change));
    actions.create_sandbox = true;
    match pod.init_containers().first() {
        Some(first) => actions.init_containers_to_start.push(ContainerStart::new(
            0,
            &first.name,
            StartReason::NewSandbox,
        )),
        None => actions.containers_to_start = candidates,
    }
}

/// Whether a container of the old sandbox runs again in the new one.
fn restarts_in_new_sandbox(inputs: &PodActionInputs<'_>, container: &Container) -> bool {
    let policy = inputs.restart_policy(container);
    let after = |code| container_should_restart(inputs.pod, container, code);
    match inputs.last_instance(&container.name) {
        LastInstance::NeverCreated => true,
        LastInstance::Removed(code) => after(code),
        LastInstance::Present(status) => match status.state {
            ContainerState::Created => true,
            // It is about to be killed, so there is no exit code for its restart rules.
            ContainerState::Running | ContainerState::Unknown => policy != RestartPolicy::Never,
            ContainerState::Exited => {
                inputs.was_killed_to_restart(&container.name) || after(status.exit_code)
            }
        },
    }
}
