//! Is the newest sandbox good, and what becomes of the pod when it is not?

use super::{
    ContainerStart, KillPodReason, PodActions, SandboxChange, StartReason,
    view::{PlanView, SeenContainer},
};
use crate::model::{ContainerState, NetworkMode, PodExt, RestartPolicy, runs_again};
use k8s_openapi::api::core::v1::Container;

/// The sandbox check. `sandbox` and `attempt` of the result are those to use, or the one to replace
/// and the number of its successor.
pub(super) fn check(view: &PlanView<'_>) -> PodActions {
    let status = view.inputs.status;
    let Some(newest) = status.newest_sandbox() else {
        return PodActions {
            sandbox_change: Some(SandboxChange::NoneKnown),
            ..PodActions::default()
        };
    };
    let network = if view.inputs.pod.host_network() {
        NetworkMode::Node
    } else {
        NetworkMode::Pod
    };
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
        // Upstream passes no id in this one case, and so emits no SandboxChanged event.
        sandbox: (change != Some(SandboxChange::NetworkModeDiffers)).then(|| newest.id.clone()),
        attempt: match change {
            Some(_) => newest.attempt.saturating_add(1),
            None => newest.attempt,
        },
        sandbox_change: change,
        ..PodActions::default()
    }
}

/// Everything is stopped; what is started again in a new sandbox, if anything may be.
pub(super) fn replace(view: &PlanView<'_>, change: SandboxChange, actions: &mut PodActions) {
    let pod = view.inputs.pod;
    actions.kill_pod = Some(KillPodReason::SandboxLost(change));
    // A container with a policy of its own may come back although the pod's policy is Never.
    let mut of_their_own = pod
        .containers()
        .iter()
        .filter(|c| c.restart_policy.is_some());
    let never_again = pod.restart_policy() == RestartPolicy::Never
        && actions.attempt != 0
        && view.any_container()
        && !of_their_own.any(|container| comes_back(view, container));
    if pod.is_being_deleted() || never_again {
        return;
    }
    let candidates: Vec<ContainerStart> = pod
        .containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| comes_back(view, container))
        .map(|(index, c)| ContainerStart::new(index, &c.name, StartReason::NewSandbox))
        .collect();
    if candidates.is_empty() && view.any_regular_container() {
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

/// Whether a container that runs, or has run, in the lost sandbox runs again in the next one.
fn comes_back(view: &PlanView<'_>, container: &Container) -> bool {
    let policy = view.restart_policy(container);
    let after = |code| runs_again(view.inputs.pod, container, code);
    match view.regular(&container.name) {
        SeenContainer::Never => true,
        SeenContainer::Gone(code) => after(code),
        SeenContainer::Instance(status) => match status.state {
            ContainerState::Created => true,
            // What runs is about to be killed; its rules have no exit code to match.
            ContainerState::Running | ContainerState::Unknown => policy != RestartPolicy::Never,
            ContainerState::Exited => {
                let killed_for_memory = status.exit_code == 0 && !status.succeeded();
                after(status.exit_code) || (killed_for_memory && policy != RestartPolicy::Never)
            }
        },
    }
}
