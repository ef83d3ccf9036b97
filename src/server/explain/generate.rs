//! Generates the explanation of a pod: why it is in its state, what it waits for, and what comes next. Pure.

use super::row::{row, terminated, waiting};
use super::timeline::timeline;
use super::{
    ConditionView, Doing, EventReport, ExplainedContainer, Explanation, HistoryReport, LastEnd,
    ProbeReport, Upcoming, Wait,
};
use crate::base::GoDuration;
use crate::base::clock::Instant;
use crate::model::{PendingVolume, Pod, PodExt, is_sidecar, is_terminal, reasons};
use crate::pods::pod_workers::{WorkerPhase, WorkerStatus};
use crate::state::pod_history::{PodHistoryRecord, RecordedDecision};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus,
};
use std::time::Duration;

/// Maximum number of events in an explanation.
const EVENTS: usize = 10;

/// Everything that the kubelet knows about a pod.
pub struct ExplainInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its status, if it has one.
    pub status: Option<&'a PodStatus>,
    /// The state of its pod worker, if it has one.
    pub worker: Option<&'a WorkerStatus>,
    /// Its pod history.
    pub record: &'a PodHistoryRecord,
    /// Containers in back-off: the whole delay, and when it ends.
    pub restarts: &'a [(String, Duration, Timestamp)],
    /// Its volumes that are not ready.
    pub volumes: &'a [PendingVolume],
    /// Its probes.
    pub probes: Vec<ProbeReport>,
    /// Events about it, oldest first.
    pub events: Vec<EventReport>,
    /// The current time, on both clocks.
    pub now: (Timestamp, Instant),
}

/// Explains the state of a pod.
pub fn explain(inputs: ExplainInputs<'_>) -> Explanation {
    let terminating =
        matches!(inputs.worker.map(|worker| &worker.phase), Some(WorkerPhase::Terminating { .. }));
    let pod = row(inputs.pod, inputs.status, terminating);
    let containers = containers(&inputs);
    let doing = doing(&inputs);
    let waits = waits(&inputs, &containers, doing.as_ref());
    let all_ready = pod.ready == pod.containers;
    let summary = match waits.first() {
        Some(wait) if wait.container.is_empty() => format!("{}: {}", pod.status, wait.what),
        Some(wait) => format!("{}: {} waits for {}", pod.status, wait.container, wait.what),
        None if all_ready => format!("{}: every container is ready", pod.status),
        None if !message(&inputs).is_empty() => format!("{}: {}", pod.status, message(&inputs)),
        None if pod.last_reason.is_empty() => pod.status.clone(),
        None => format!("{}: last state: {}", pod.status, pod.last_reason),
    };
    let next = next(&inputs);
    let timeline = timeline(inputs.pod, inputs.status, inputs.record, &inputs.events);
    let older = inputs.events.len().saturating_sub(EVENTS);
    Explanation {
        now: inputs.now.0,
        summary,
        doing,
        waits,
        next,
        timeline,
        containers,
        conditions: conditions(inputs.status),
        pod_history: inputs.record.entries().iter().map(history_entry).collect(),
        probes: inputs.probes,
        events: inputs.events.into_iter().skip(older).collect(),
        pod,
    }
}

impl ExplainInputs<'_> {
    fn wall(&self, at: Instant) -> Timestamp {
        let (wall, here) = self.now;
        match at.checked_duration_since(here) {
            Some(ahead) => wall.checked_add(ahead),
            None => wall.checked_sub(here.duration_since(at)),
        }
        .unwrap_or(wall)
    }
}

/// The reason and message in the pod's status.
fn message<'a>(inputs: &ExplainInputs<'a>) -> &'a str {
    let status = inputs.status.and_then(|status| status.message.as_deref());
    status.unwrap_or_default()
}

fn doing(inputs: &ExplainInputs<'_>) -> Option<Doing> {
    let (step, since) = inputs.record.current_step()?;
    Some(Doing { step: step.into(), since })
}

// -- waiting ----------------------------------------------------------------------------------------

fn waits(
    inputs: &ExplainInputs<'_>,
    containers: &[ExplainedContainer],
    doing: Option<&Doing>,
) -> Vec<Wait> {
    let of_pod = |what: String, until| Wait { container: String::new(), what, until };
    let mut waits = Vec::new();
    match inputs.worker.map(|worker| (&worker.phase, &worker.waits_for)) {
        Some((WorkerPhase::WaitingToStart { .. }, behind)) => {
            let uids: Vec<_> = behind.iter().map(ToString::to_string).collect();
            let uids = uids.join(", ");
            let what = format!("waiting for the previous pod with this name ({uids}) to terminate");
            return vec![of_pod(what, None)];
        }
        Some((WorkerPhase::Terminating { termination, grace }, _)) => {
            let until = grace.deadline().map(|grace| inputs.wall(grace.deadline));
            let what = format!("the pod is being stopped: {}", termination.reason);
            return vec![of_pod(what, until)];
        }
        Some((WorkerPhase::Terminated { .. } | WorkerPhase::Finished { .. }, _)) => return waits,
        Some((WorkerPhase::Starting { .. } | WorkerPhase::Syncing, _)) | None => {}
    }
    let problem = inputs.record.pending_problem("");
    if let Some(problem) = problem {
        let until = later(problem.until(), inputs);
        waits.push(of_pod(problem.why.to_string(), until));
    }
    // An error that is already shown as the reason is not repeated.
    let is_shown = |volume: &PendingVolume| {
        let error = volume.error.as_deref().zip(problem);
        error.is_some_and(|(error, problem)| error.starts_with(&*problem.why))
    };
    for volume in inputs.volumes.iter().filter(|volume| !is_shown(volume)) {
        let what = format!("volume {} {}", volume.name, volume.reason);
        waits.push(of_pod(what, None));
    }
    for container in containers {
        if let Some((what, until)) = what_it_waits_for(inputs, container) {
            waits.push(Wait { container: container.name.clone(), what, until });
        }
    }
    let idle = |container: &ExplainedContainer| container.state == "waiting";
    if let Some(doing) = doing
        && waits.is_empty()
        && containers.iter().any(idle)
    {
        waits.push(of_pod(doing.step.clone(), None));
    }
    waits
}

fn later(until: Option<Timestamp>, inputs: &ExplainInputs<'_>) -> Option<Timestamp> {
    until.filter(|until| *until > inputs.now.0)
}

fn what_it_waits_for(
    inputs: &ExplainInputs<'_>,
    container: &ExplainedContainer,
) -> Option<(String, Option<Timestamp>)> {
    let restart = inputs.restarts.iter();
    let mut restart = restart.filter(|(name, ..)| *name == container.name);
    if let Some((_, delay, at)) = restart.next() {
        let delay = GoDuration::from(*delay);
        return Some((format!("its restart back-off of {delay}"), Some(*at)));
    }
    let usual = [reasons::CONTAINER_CREATING, reasons::POD_INITIALIZING, ""];
    match container.state.as_str() {
        "waiting" if !usual.contains(&container.reason.as_str()) => {
            let until =
                inputs.record.pending_problem(&container.name).and_then(RecordedDecision::until);
            let (reason, message) = (&container.reason, &container.message);
            let what = if message.is_empty() {
                format!("a retry ({reason})")
            } else {
                format!("a retry ({reason}: {message})")
            };
            Some((what, later(until, inputs)))
        }
        "running" if container.kind == "init" => Some(("its completion".into(), None)),
        "running" if !container.ready => probe_it_waits_for(inputs, container),
        _ => None,
    }
}

fn probe_it_waits_for(
    inputs: &ExplainInputs<'_>,
    container: &ExplainedContainer,
) -> Option<(String, Option<Timestamp>)> {
    let kind = if container.started { "Readiness" } else { "Startup" };
    let of_it = |probe: &&ProbeReport| probe.container == container.name && probe.kind == kind;
    let probe = inputs.probes.iter().find(of_it)?;
    let so_far = match (&probe.last_result, probe.message.as_str()) {
        (None, _) => "it has not run yet".to_string(),
        (Some(result), "") => format!("{result} {}", times(probe.in_a_row)),
        (Some(result), said) => format!("{result} {}: {said}", times(probe.in_a_row)),
    };
    let kind = kind.to_lowercase();
    Some((format!("its {kind} probe ({so_far})"), probe.next))
}

fn times(count: u32) -> String {
    match count {
        0 | 1 => "once".into(),
        count => format!("{count} times in a row"),
    }
}

// -- what comes next --------------------------------------------------------------------------------

fn next(inputs: &ExplainInputs<'_>) -> Vec<Upcoming> {
    let mut next = Vec::new();
    let mut push = |at: Option<Timestamp>, what: String| {
        next.extend(at.map(|at| Upcoming { at, what }));
    };
    for (name, _, at) in inputs.restarts {
        push(Some(*at), format!("{name} may be restarted"));
    }
    let restarts = |name: &str| inputs.restarts.iter().any(|(known, ..)| known == name);
    let containers = inputs.pod.init_containers().iter();
    for container in containers.chain(inputs.pod.containers()) {
        let until =
            inputs.record.pending_problem(&container.name).and_then(RecordedDecision::until);
        let until = later(until.filter(|_| !restarts(&container.name)), inputs);
        push(until, format!("{} is tried again", container.name));
    }
    for probe in &inputs.probes {
        let kind = probe.kind.to_lowercase();
        push(probe.next, format!("{kind} probe of {}", probe.container));
    }
    push(pod_deadline(inputs), "activeDeadlineSeconds exceeded; the pod fails".into());
    if let Some(worker) = inputs.worker {
        if let WorkerPhase::Terminating { grace, .. } = &worker.phase {
            let at = grace.deadline().map(|grace| inputs.wall(grace.deadline));
            push(at, "remaining containers are killed".into());
        }
        let due = worker.next_sync.map(|due| inputs.wall(due));
        push(due, "next periodic sync".into());
    }
    next.sort_by_key(|upcoming| upcoming.at);
    next
}

/// When `activeDeadlineSeconds` is exceeded, unless the pod has terminated.
fn pod_deadline(inputs: &ExplainInputs<'_>) -> Option<Timestamp> {
    let seconds = inputs.pod.spec()?.active_deadline_seconds?;
    let status = inputs.status?;
    if is_terminal(status) {
        return None;
    }
    let seconds = Duration::from_secs(u64::try_from(seconds).ok()?);
    status.start_time.as_ref()?.0.checked_add(seconds).ok()
}

// -- the current state -------------------------------------------------------------------------------

fn containers(inputs: &ExplainInputs<'_>) -> Vec<ExplainedContainer> {
    let status = inputs.status.or(inputs.pod.status.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_deref());
    let regular = status.and_then(|status| status.container_statuses.as_deref());
    let kind = |container: &Container| {
        if is_sidecar(container) { "sidecar" } else { "init" }
    };
    let inits = inputs.pod.init_containers().iter();
    let inits = inits.map(|container| container_view(container, kind(container), init));
    let regulars = inputs.pod.containers().iter();
    let regulars = regulars.map(|container| container_view(container, "container", regular));
    inits.chain(regulars).collect()
}

fn container_view(
    container: &Container,
    kind: &str,
    statuses: Option<&[ContainerStatus]>,
) -> ExplainedContainer {
    let mut view = ExplainedContainer {
        name: container.name.clone(),
        kind: kind.into(),
        image: container.image.clone().unwrap_or_default(),
        state: "unknown".into(),
        ..ExplainedContainer::default()
    };
    let mut statuses = statuses.unwrap_or_default().iter();
    let Some(status) = statuses.find(|status| status.name == container.name) else {
        return view;
    };
    view.ready = status.ready;
    view.started = status.started == Some(true);
    view.restarts = status.restart_count;
    view.last = terminated(status.last_state.as_ref()).map(last_end);
    match status.state.as_ref() {
        Some(ContainerState { running: Some(running), .. }) => {
            view.state = "running".into();
            view.since = running.started_at.as_ref().map(|time| time.0);
        }
        Some(ContainerState { terminated: Some(ended), .. }) => {
            let end = last_end(ended);
            view.state = "terminated".into();
            (view.reason, view.message) = (end.reason, end.message);
            (view.since, view.exit_code) = (end.at, Some(end.exit_code));
        }
        Some(ContainerState { waiting: Some(why), .. }) => {
            view.state = "waiting".into();
            view.reason = waiting(status).into();
            view.message = why.message.clone().unwrap_or_default();
        }
        _ => {}
    }
    view
}

fn last_end(ended: &ContainerStateTerminated) -> LastEnd {
    LastEnd {
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone().unwrap_or_default(),
        exit_code: ended.exit_code,
        at: ended.finished_at.as_ref().map(|time| time.0),
    }
}

fn conditions(status: Option<&PodStatus>) -> Vec<ConditionView> {
    let all = status.and_then(|status| status.conditions.as_deref());
    let broken = all.unwrap_or_default().iter();
    broken
        .filter(|condition| condition.status != "True")
        .map(|condition| ConditionView {
            kind: condition.type_.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
        })
        .collect()
}

fn history_entry(noted: &RecordedDecision) -> HistoryReport {
    HistoryReport {
        kind: noted.kind,
        container: noted.container.to_string(),
        why: noted.why.to_string(),
        until: noted.until(),
        count: noted.count,
        first: noted.first(),
        last: noted.last(),
    }
}

#[cfg(test)]
#[path = "generate_tests.rs"]
mod tests;
