//! Init containers and sidecars in a sandbox that is kept.

use super::view::{definition_changed, failed};
use super::{
    ContainerKill, ContainerStart, KillPodReason, KillReason, PodActionInputs, PodActions,
    StartReason, resize,
};
use crate::model::{
    ContainerState, ContainerStatus, PodExt, ProbeResult, RestartPolicy, container_should_restart,
    is_sidecar,
};
use k8s_openapi::api::core::v1::Container;

/// The consequence of the newest instance of one init container.
#[derive(Default)]
struct InitContainerActions {
    /// It has completed, or is a sidecar that has started: the next one may start.
    initialized: bool,
    /// Start it (again); with [`StartReason::Killed`], after killing the instance.
    start: Option<StartReason>,
    /// It failed and must not be restarted.
    failed: bool,
}

impl InitContainerActions {
    fn start(reason: StartReason) -> Self {
        Self { start: Some(reason), ..Self::default() }
    }
}

/// Adds the actions of init containers and sidecars, and returns whether those of regular containers may be added. Goes
/// from the last one to the first, because the instances of earlier ones may have been removed (upstream's
/// `computeInitContainerActions`).
pub(super) fn compute(inputs: &PodActionInputs<'_>, actions: &mut PodActions) -> bool {
    let containers = inputs.pod.init_containers();
    let mut initialized = containers.is_empty() || inputs.is_initialized();
    // Whether a later container has an instance: then the containers before it have completed once.
    let mut reached_started = initialized;
    for (index, container) in containers.iter().enumerate().rev() {
        let status = inputs.newest_in_sandbox(&container.name);
        let found = match (status, is_sidecar(container)) {
            (None, true) if reached_started => InitContainerActions::start(StartReason::NoInstance),
            (None, _) => InitContainerActions::default(),
            (Some(_), false) if reached_started => InitContainerActions::default(),
            (Some(status), false) => classify_plain(inputs, container, status),
            (Some(status), true) => classify_sidecar(inputs, container, status),
        };
        if found.failed {
            actions.kill_pod = Some(KillPodReason::InitFailed(container.name.clone()));
            return false;
        }
        if found.initialized {
            match containers.get(index + 1) {
                None => initialized = true,
                Some(next) if !reached_started => actions.init_containers_to_start.push(
                    ContainerStart::new(index + 1, &next.name, StartReason::PreviousInitialized),
                ),
                Some(_) => {}
            }
        }
        if let Some(reason) = found.start {
            apply_start(index, container, status, reason, actions);
        }
        reached_started |= status.is_some();
    }
    if let (false, Some(first)) = (reached_started, containers.first()) {
        let start = ContainerStart::new(0, &first.name, StartReason::NoInstance);
        actions.init_containers_to_start.push(start);
    }
    actions.init_containers_to_start.sort_by_key(|start| start.index);
    initialized
}

fn apply_start(
    index: usize,
    container: &Container,
    status: Option<&ContainerStatus>,
    reason: StartReason,
    actions: &mut PodActions,
) {
    if let (StartReason::Killed(reason), Some(status)) = (reason, status) {
        actions.containers_to_kill.push(ContainerKill {
            id: status.id.clone(),
            name: container.name.clone(),
            reason,
            init: true,
            restart: true,
        });
    }
    let start = ContainerStart::new(index, &container.name, reason);
    actions.init_containers_to_start.push(start);
}

fn classify_plain(
    inputs: &PodActionInputs<'_>,
    container: &Container,
    status: &ContainerStatus,
) -> InitContainerActions {
    let again = |restartable, reason| {
        if restartable {
            InitContainerActions::start(reason)
        } else {
            InitContainerActions { failed: true, ..InitContainerActions::default() }
        }
    };
    match status.state {
        ContainerState::Created => InitContainerActions::start(StartReason::NeverStarted),
        ContainerState::Running => InitContainerActions::default(),
        ContainerState::Exited if failed(status) => {
            let code = status.exit_code;
            // An OOM-killed container with exit code 0 has failed, too, but its rules and `OnFailure` would not restart it.
            let policy = inputs.restart_policy(container) != RestartPolicy::Never;
            let restartable =
                container_should_restart(inputs.pod, container, code) || (code == 0 && policy);
            again(restartable, StartReason::Exited(code))
        }
        ContainerState::Exited => {
            InitContainerActions { initialized: true, ..InitContainerActions::default() }
        }
        // It may still run, so there is no exit code for its restart rules.
        ContainerState::Unknown => again(
            inputs.restart_policy(container) != RestartPolicy::Never,
            StartReason::Killed(KillReason::UnknownState),
        ),
    }
}

fn classify_sidecar(
    inputs: &PodActionInputs<'_>,
    container: &Container,
    status: &ContainerStatus,
) -> InitContainerActions {
    match status.state {
        ContainerState::Created => InitContainerActions::start(StartReason::NeverStarted),
        ContainerState::Running => classify_running_sidecar(inputs, container, status),
        ContainerState::Exited => {
            InitContainerActions::start(StartReason::Exited(status.exit_code))
        }
        ContainerState::Unknown => {
            InitContainerActions::start(StartReason::Killed(KillReason::UnknownState))
        }
    }
}

fn classify_running_sidecar(
    inputs: &PodActionInputs<'_>,
    container: &Container,
    status: &ContainerStatus,
) -> InitContainerActions {
    let probe_results = (inputs.probe_results)(&status.id);
    if container.startup_probe.is_some() {
        match probe_results.startup {
            Some(ProbeResult::Success) => {}
            Some(ProbeResult::Failure) => {
                return InitContainerActions::start(StartReason::Killed(KillReason::StartupProbe));
            }
            Some(ProbeResult::Unknown) | None => return InitContainerActions::default(),
        }
    }
    let lives =
        container.liveness_probe.is_none() || probe_results.liveness != Some(ProbeResult::Failure);
    let kill = if definition_changed(container, status) {
        Some(KillReason::DefinitionChanged)
    } else if !lives {
        Some(KillReason::LivenessProbe)
    } else if resize::needs_restart(inputs, container) {
        Some(KillReason::Resize)
    } else {
        None
    };
    InitContainerActions { initialized: true, start: kill.map(StartReason::Killed), failed: false }
}
