//! The deadlines of stops, and the order in which the containers of a pod are stopped.
//!
//! There is one absolute deadline, which only ever moves earlier. A hook or a CRI call gets the time that is left until
//! the deadline when it begins.

use crate::base::clock::Instant;
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, PodExt, PodStatus, SandboxId, SandboxStatus,
    is_sidecar, positive_grace,
};
use crate::runtime::kuberuntime::actions::KillReason;
use crate::runtime::kuberuntime::labels::AnnotatedContainerInfo;
use crate::state::pod_cache::ItemId;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Probe};
use std::time::Duration;

/// The minimum timeout of StopContainer, in seconds, and the grace period of a pod without one (upstream's
/// `minimumGracePeriodInSeconds`).
pub const MINIMUM_STOP_SECONDS: i64 = 2;

/// The same as a duration.
pub const MINIMUM_STOP: Duration = Duration::from_secs(2);

/// Upper limit of grace periods in seconds, a century, so that arithmetic on instants does not overflow.
const MAXIMUM_SECONDS: i64 = 100 * 365 * 24 * 3600;

/// The deadline of a stop that begins at `now`; a negative grace period means zero. Unlike that of a whole pod
/// (`GraceDeadline`), the grace period of one container may be zero; then no hook runs.
pub fn deadline_after(grace_seconds: i64, now: Instant) -> Instant {
    let seconds = grace_seconds.clamp(0, MAXIMUM_SECONDS).unsigned_abs();
    now + Duration::from_secs(seconds)
}

/// The timeout for StopContainer in seconds: what is left, rounded up, and at least
/// [`MINIMUM_STOP_SECONDS`].
pub fn stop_timeout(deadline: Instant, now: Instant) -> i64 {
    let left = deadline.saturating_duration_since(now);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(MAXIMUM_SECONDS).max(MINIMUM_STOP_SECONDS)
}

/// How long a preStop hook may run; `None` if there is no time for one.
pub fn pre_stop_budget(deadline: Instant, now: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(now);
    (!left.is_zero()).then_some(left)
}

/// Upper limit of [`status_timeout`].
const MAX_STATUS_WAIT: Duration = Duration::from_secs(5);

/// How long a stop with `left` of its grace period may wait for a status or list of the runtime: at most a quarter, because
/// hooks and StopContainer need the rest.
pub fn status_timeout(left: Duration) -> Duration {
    (left / 4).min(MAX_STATUS_WAIT)
}

/// Completes the status of a pod that has to be stopped although some of its items cannot be read. Those have the state
/// of a list; without a list, they may run.
pub fn complete_from_list(
    read: &PodStatus,
    stale: &[ItemId],
    listed: Option<&PodStatus>,
) -> PodStatus {
    let mut status = read.clone();
    let Some(listed) = listed else {
        for item in stale {
            add_maybe_running(&mut status, item);
        }
        return status;
    };
    let is_stale = |id: &ItemId| stale.contains(id);
    let container = |id: &ContainerId| ItemId::Container(id.clone());
    let sandbox = |id: &SandboxId| ItemId::Sandbox(id.clone());
    status.containers.retain(|c| !is_stale(&container(&c.id)) || listed.container(&c.id).is_some());
    for found in &listed.containers {
        match status.containers.iter_mut().find(|c| c.id == found.id) {
            Some(known) if !is_stale(&container(&known.id)) => {}
            Some(known) if known.state == ContainerState::Exited => {}
            Some(known) => known.state = found.state,
            None => status.containers.push(found.clone()),
        }
    }
    let listed_sandbox = |id: &SandboxId| listed.sandboxes.iter().any(|s| s.id == *id);
    status.sandboxes.retain(|s| !is_stale(&sandbox(&s.id)) || listed_sandbox(&s.id));
    for found in &listed.sandboxes {
        match status.sandboxes.iter_mut().find(|s| s.id == found.id) {
            Some(known) if !is_stale(&sandbox(&known.id)) => {}
            Some(known) => known.ready &= found.ready,
            None => status.sandboxes.push(found.clone()),
        }
    }
    status.sort();
    status
}

/// Adds an item of which only the id is known, as possibly running.
fn add_maybe_running(status: &mut PodStatus, item: &ItemId) {
    match item {
        ItemId::Container(id) if status.container(id).is_none() => {
            status.containers.push(ContainerStatus {
                id: id.clone(),
                name: id.as_str().into(),
                state: ContainerState::Unknown,
                ..ContainerStatus::default()
            });
        }
        ItemId::Sandbox(id) if !status.sandboxes.iter().any(|s| s.id == *id) => {
            status.sandboxes.push(SandboxStatus {
                id: id.clone(),
                ready: true,
                ..SandboxStatus::default()
            });
        }
        _ => {}
    }
}

/// The grace period in seconds of one container of a pod with a spec: the caller's override, else that of the deletion,
/// else that of the failed probe, else that of the spec.
pub fn container_grace_seconds(
    pod: &Pod,
    container: Option<&Container>,
    reason: Option<KillReason>,
    grace_override: Option<i64>,
) -> i64 {
    let probe_grace = |probe: Option<&Probe>| probe?.termination_grace_period_seconds;
    let of_probe = container.and_then(|c| match reason? {
        KillReason::LivenessProbe => probe_grace(c.liveness_probe.as_ref()),
        KillReason::StartupProbe => probe_grace(c.startup_probe.as_ref()),
        KillReason::DefinitionChanged | KillReason::UnknownState | KillReason::Resize => None,
    });
    let of_pod = || pod.spec()?.termination_grace_period_seconds.map(positive_grace);
    grace_override
        .or(pod.metadata.deletion_grace_period_seconds)
        .or(of_probe)
        .or_else(of_pod)
        .unwrap_or(MINIMUM_STOP_SECONDS)
        .max(0)
}

/// One container to stop as part of a whole pod. The hooks of all containers run concurrently. After its hook, a container
/// waits for those in `waits_for`, until the deadline at most, and is stopped then.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStop {
    /// The instance.
    pub id: ContainerId,
    /// Name of its container.
    pub name: String,
    /// Instances that should have exited before this one is stopped.
    pub waits_for: Vec<ContainerId>,
    /// Its preStop hook.
    pub pre_stop: Option<LifecycleHandler>,
}

/// The stops of all containers of a pod that run or may run. A sidecar waits for all regular containers and for the
/// sidecars after it (upstream's `terminationOrdering`). Hooks are those of the spec, or of `annotated_info` for
/// containers that are not in the spec; a container in unknown state gets none.
pub fn container_stops(
    pod: Option<&Pod>,
    status: &PodStatus,
    annotated_info: &dyn Fn(&ContainerId) -> Option<AnnotatedContainerInfo>,
) -> Vec<ContainerStop> {
    let live: Vec<&ContainerStatus> = status.maybe_running_containers().collect();
    let ids_of = |containers: &[Container]| -> Vec<ContainerId> {
        live.iter()
            .filter(|status| containers.iter().any(|c| c.name == *status.name))
            .map(|status| status.id.clone())
            .collect()
    };
    let sidecars: Vec<Container> = pod
        .map(PodExt::init_containers)
        .unwrap_or_default()
        .iter()
        .filter(|c| is_sidecar(c))
        .cloned()
        .collect();
    let regular = ids_of(pod.map(PodExt::containers).unwrap_or_default());
    live.iter()
        .map(|status| {
            let position = sidecars.iter().position(|c| c.name == *status.name);
            let waits_for = position.map(|position| {
                let later = sidecars.get(position + 1..).unwrap_or_default();
                [regular.clone(), ids_of(later)].concat()
            });
            ContainerStop {
                id: status.id.clone(),
                name: status.name.to_string(),
                waits_for: waits_for.unwrap_or_default(),
                pre_stop: pre_stop_of(pod, status, annotated_info),
            }
        })
        .collect()
}

fn pre_stop_of(
    pod: Option<&Pod>,
    status: &ContainerStatus,
    annotated_info: &dyn Fn(&ContainerId) -> Option<AnnotatedContainerInfo>,
) -> Option<LifecycleHandler> {
    if status.state != ContainerState::Running {
        return None;
    }
    match pod.and_then(|pod| pod.container(&status.name)) {
        Some(container) => container.lifecycle.as_ref()?.pre_stop.clone(),
        None => annotated_info(&status.id)?.pre_stop,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
