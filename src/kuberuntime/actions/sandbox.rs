//! Is the newest sandbox good, and what becomes of the pod when it is not?

use super::{
    ContainerStart, KillPodReason, PodActions, SandboxChange, StartReason,
    view::{Seen, View},
};
use crate::model::{NetworkMode, PodExt, RestartPolicy};
use k8s_openapi::api::core::v1::Container;

/// The sandbox check. `sandbox` and `attempt` of the result are those to use, or the one to replace
/// and the number of its successor.
pub(super) fn check(view: &View<'_>) -> PodActions {
    let status = view.inputs.status;
    let Some(newest) = status.newest_sandbox() else {
        return PodActions {
            sandbox_change: Some(SandboxChange::NoneKnown),
            ..PodActions::default()
        };
    };
    let network = match view.inputs.pod.host_network() {
        true => NetworkMode::Node,
        false => NetworkMode::Pod,
    };
    let lost_ip = network == NetworkMode::Pod
        && newest.has_network_status
        && newest.ips.first().is_none_or(String::is_empty);
    let change = if view.is_stale(newest) {
        Some(SandboxChange::SpecChanged)
    } else if status.ready_sandboxes().count() > 1 {
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
pub(super) fn replace(view: &View<'_>, change: SandboxChange, actions: &mut PodActions) {
    let afresh = change == SandboxChange::SpecChanged;
    let pod = view.inputs.pod;
    actions.kill_pod = Some(KillPodReason::SandboxLost(change));
    let never_again = pod.restart_policy() == RestartPolicy::Never
        && actions.attempt != 0
        && view.any_container();
    if pod.is_being_deleted() || (never_again && !afresh) {
        return;
    }
    let candidates: Vec<ContainerStart> = pod
        .containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| afresh || !is_done(view, container))
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

/// Succeeded under OnFailure, or exited under a Never of its own: not a candidate for the new
/// sandbox.
fn is_done(view: &View<'_>, container: &Container) -> bool {
    let (exited, succeeded) = match view.regular(&container.name) {
        Seen::Never => return false,
        Seen::Gone(code) => (true, code == 0),
        Seen::Instance(status) => (
            status.state == crate::model::ContainerState::Exited,
            status.succeeded(),
        ),
    };
    match view.restart_policy(container) {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => succeeded,
        RestartPolicy::Never => exited && container.restart_policy.is_some(),
    }
}
