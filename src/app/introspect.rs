//! Introspection for the debug endpoints: the components that exist once the runtime has answered.

use crate::{
    model::{Pod, PodExt, PodUid, ProbeResult},
    pods::pleg::RuntimeStateReader,
    pods::pod_sync::StatusPublisher,
    pods::pod_workers::{PodWorkers, WorkerPhase, WorkerStatus},
    pods::prober::{ProbeManager, ProbeView},
    runtime::kuberuntime::KubeGenericRuntimeManager,
    server::explain::{
        EventReport, Explanation, ProbeReport, explain,
        generate::{ExplainInputs, PendingVolume},
    },
    state::events::{EventRecorder, KeptEvent},
    state::pod_cache::PodCache,
    state::pod_history::PodHistory,
    state::probe_results::ProbeResults,
    volumes::{VolumeManager, state::VolumeState},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::time::Instant;

/// These components.
pub(super) struct LiveComponents {
    pub(super) workers: PodWorkers,
    pub(super) runtime: KubeGenericRuntimeManager,
    pub(super) probes: ProbeManager,
    pub(super) results: ProbeResults,
    pub(super) cache: PodCache,
    pub(super) state: RuntimeStateReader,
    pub(super) pod_history: PodHistory,
    pub(super) events: EventRecorder,
    pub(super) statuses: Arc<StatusPublisher>,
    pub(super) volumes: VolumeManager,
}

impl LiveComponents {
    /// Pods that are terminating.
    pub(super) fn terminating(&self) -> HashSet<PodUid> {
        let known = self.workers.known().into_iter();
        known
            .filter(|pod| matches!(pod.phase, WorkerPhase::Terminating { .. }))
            .map(|pod| pod.uid)
            .collect()
    }

    /// Numbers of entries about pods, by store.
    pub(super) fn kept(&self) -> Vec<(&'static str, usize)> {
        let mut kept = vec![
            ("pod_history", self.pod_history.len()),
            ("probed_pods", self.probes.len()),
            ("probe_results", self.results.len()),
            ("status_notes", self.statuses.len()),
            ("prepared_volumes", self.volumes.len()),
        ];
        kept.extend(self.workers.kept());
        kept.extend(self.runtime.kept());
        kept
    }

    /// Errors of the runtime and its network.
    pub(super) fn remarks(&self) -> Vec<String> {
        let state = self.state.borrow();
        [state.runtime_error(Instant::now()), state.network_error()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Why a pod is as it is.
    pub(super) fn explain(&self, pod: &Arc<Pod>, status: Option<&PodStatus>) -> Explanation {
        let uid = pod.uid();
        let now = (Timestamp::now(), Instant::now());
        let worker: Option<WorkerStatus> = self.workers.worker_status(&uid);
        let record = self.pod_history.of(&uid);
        let runtime_status = self.cache.latest(&uid);
        let restart = |name: &String| {
            let back_off = self
                .runtime
                .restart_back_off(pod, name, &runtime_status, now.0);
            back_off.map(|(delay, at)| (name.clone(), delay, at))
        };
        let containers = pod.init_containers().iter().chain(pod.containers());
        let restarts: Vec<(String, Duration, Timestamp)> = containers
            .filter_map(|container| restart(&container.name))
            .collect();
        let probe = |view: ProbeView| {
            let newest = runtime_status.newest(&view.container);
            let probe_result = newest.and_then(|seen| self.results.get(&seen.id).get(view.kind));
            probe_report(view, probe_result, now)
        };
        let probes = self.probes.views(&uid).into_iter().map(probe).collect();
        let pending = |(name, state): (String, VolumeState)| {
            Some(PendingVolume {
                reason: state.reason()?,
                error: state.last_error.filter(|_| state.waits_for.is_none()),
                name,
            })
        };
        let volumes = self.volumes.states(&uid).into_iter();
        let volumes: Vec<_> = volumes.filter_map(pending).collect();
        let mut events = self.events.recent();
        events.retain(|event| event.object.uid == uid);
        explain(ExplainInputs {
            pod,
            status,
            worker: worker.as_ref(),
            record: &record,
            restarts: &restarts,
            volumes: &volumes,
            probes,
            events: events.iter().map(|e| event_report(e)).collect(),
            now,
        })
    }
}

fn probe_report(
    view: ProbeView,
    probe_result: Option<ProbeResult>,
    (wall, here): (Timestamp, Instant),
) -> ProbeReport {
    let text = |probe_result| {
        match probe_result {
            ProbeResult::Success => "success",
            ProbeResult::Failure => "failure",
            ProbeResult::Unknown => "unknown",
        }
        .to_string()
    };
    let due = view.due.map(|due| due.saturating_duration_since(here));
    let mut report = ProbeReport {
        container: view.container.to_string(),
        kind: view.kind.to_string(),
        probe_result: text(probe_result.unwrap_or(ProbeResult::Unknown)),
        next: due.and_then(|due| wall.checked_add(due).ok()),
        ..ProbeReport::default()
    };
    if let Some(last) = view.last {
        report.last_result = Some(text(last.result));
        report.last_at = Some(last.at);
        report.in_a_row = last.in_a_row;
        report.message = last.message.into();
    }
    report
}

fn event_report(event: &KeptEvent) -> EventReport {
    EventReport {
        kind: event.kind.as_str().into(),
        reason: event.reason.clone().into(),
        container: event.object.container_name().into(),
        message: event.message.clone(),
        count: event.count,
        first: event.first_seen,
        last: event.last_seen,
    }
}
