//! How long stopping may take, and who waits for whom.
//!
//! All timing derives from one absolute deadline, at the last moment: hooks and CRI timeouts take
//! what is left until then, and the deadline only ever moves earlier.

use crate::{
    model::{
        ContainerId, ContainerState, ContainerStatus, Pod, PodExt, PodStatus, SandboxId,
        SandboxStatus, is_sidecar,
    },
    runtime::kuberuntime::{actions::KillReason, labels::OrphanRecord},
    state::pod_cache::ItemId,
};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Probe};
use std::time::Duration;
use tokio::time::Instant;

/// The least grace that is ever requested of the runtime, in seconds: the smallest StopContainer timeout, and
/// what containers get whose pod says nothing.
pub const MINIMUM_STOP_SECONDS: i64 = 2;

/// The same as a duration.
pub const MINIMUM_STOP: Duration = Duration::from_secs(2);

/// Longest grace that is taken seriously, in seconds (a century); keeps arithmetic on instants from
/// overflowing.
const MAXIMUM_SECONDS: i64 = 100 * 365 * 24 * 3600;

/// The deadline of a stop that begins at `now`; a negative grace means zero. Unlike the grace of
/// a whole pod (`GraceDeadline`), that of one container may be zero, and then there is no hook.
pub fn deadline_after(grace_seconds: i64, now: Instant) -> Instant {
    let seconds = grace_seconds.clamp(0, MAXIMUM_SECONDS).unsigned_abs();
    now + Duration::from_secs(seconds)
}

/// The timeout for StopContainer in seconds: what is left, rounded up, and at least
/// [`MINIMUM_STOP_SECONDS`].
pub fn stop_timeout(deadline: Instant, now: Instant) -> i64 {
    let left = deadline.saturating_duration_since(now);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    i64::try_from(seconds)
        .unwrap_or(MAXIMUM_SECONDS)
        .max(MINIMUM_STOP_SECONDS)
}

/// How long a preStop hook may run; `None` when there is no time for one.
pub fn pre_stop_budget(deadline: Instant, now: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(now);
    (!left.is_zero()).then_some(left)
}

/// Longest wait for the status of a pod that is to stop.
const MAX_STATUS_WAIT: Duration = Duration::from_secs(5);

/// How long a stop that has `left` of its grace may wait for something that the runtime says: hooks and
/// StopContainer need most of it.
pub fn status_timeout(left: Duration) -> Duration {
    (left / 4).min(MAX_STATUS_WAIT)
}

/// The status of a pod that is to stop, of which some items cannot be read: what a list says of those,
/// or, without a list, that they may run.
pub fn complete_from_list(read: &PodStatus, unread: &[ItemId], listed: Option<&PodStatus>) -> PodStatus {
    let mut status = read.clone();
    let Some(listed) = listed else {
        for item in unread {
            add_maybe_running(&mut status, item);
        }
        return status;
    };
    let is_unread = |id: &ItemId| unread.contains(id);
    let container = |id: &ContainerId| ItemId::Container(id.clone());
    let sandbox = |id: &SandboxId| ItemId::Sandbox(id.clone());
    status
        .containers
        .retain(|c| !is_unread(&container(&c.id)) || listed.container(&c.id).is_some());
    for found in &listed.containers {
        match status.containers.iter_mut().find(|c| c.id == found.id) {
            Some(known) if !is_unread(&container(&known.id)) => {}
            Some(known) if known.state == ContainerState::Exited => {}
            Some(known) => known.state = found.state,
            None => status.containers.push(found.clone()),
        }
    }
    let listed_sandbox = |id: &SandboxId| listed.sandboxes.iter().any(|s| s.id == *id);
    status
        .sandboxes
        .retain(|s| !is_unread(&sandbox(&s.id)) || listed_sandbox(&s.id));
    for found in &listed.sandboxes {
        match status.sandboxes.iter_mut().find(|s| s.id == found.id) {
            Some(known) if !is_unread(&sandbox(&known.id)) => {}
            Some(known) => known.ready &= found.ready,
            None => status.sandboxes.push(found.clone()),
        }
    }
    status.sort();
    status
}

/// Adds an item of which nothing but its id is known.
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

/// Grace in seconds for one container of a pod whose spec is known: the caller's own if it has one,
/// else the pod's, where a failed probe may bring its own as long as the pod is not being deleted.
pub fn container_grace_seconds(
    pod: &Pod,
    container: Option<&Container>,
    reason: Option<KillReason>,
    over: Option<i64>,
) -> i64 {
    let probe_grace = |probe: Option<&Probe>| probe?.termination_grace_period_seconds;
    let own = container.and_then(|c| match reason? {
        KillReason::LivenessProbe => probe_grace(c.liveness_probe.as_ref()),
        KillReason::StartupProbe => probe_grace(c.startup_probe.as_ref()),
        KillReason::DefinitionChanged | KillReason::UnknownState | KillReason::Resize => None,
    });
    let of_pod = || pod.spec()?.termination_grace_period_seconds;
    over.or(pod.metadata.deletion_grace_period_seconds)
        .or(own)
        .or_else(of_pod)
        .unwrap_or(MINIMUM_STOP_SECONDS)
        .max(0)
}

/// One container to stop as part of a whole pod. All of them run their hooks at once; after its hook
/// each waits for others, until the deadline at most, and is stopped then.
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

/// Everything that runs (or may run) of a pod, with who waits for whom: a sidecar waits for all
/// regular containers and for the sidecars after it, nothing else waits. Hooks come from the spec,
/// or from `record` for containers that the spec does not name; a container in unknown state gets
/// none.
pub fn stop_pod(
    pod: Option<&Pod>,
    status: &PodStatus,
    record: &dyn Fn(&ContainerId) -> Option<OrphanRecord>,
) -> Vec<ContainerStop> {
    let live: Vec<&ContainerStatus> = status.maybe_running().collect();
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
                pre_stop: pre_stop_of(pod, status, record),
            }
        })
        .collect()
}

fn pre_stop_of(
    pod: Option<&Pod>,
    status: &ContainerStatus,
    record: &dyn Fn(&ContainerId) -> Option<OrphanRecord>,
) -> Option<LifecycleHandler> {
    if status.state != ContainerState::Running {
        return None;
    }
    match pod.and_then(|pod| pod.container(&status.name)) {
        Some(container) => container.lifecycle.as_ref()?.pre_stop.clone(),
        None => record(&status.id)?.pre_stop,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
