//! Explains pods to clients, with data from the stores.

use super::explanations::{Explanations, OverviewVersion};
use crate::base::clock::{self, Instant};
use crate::model::{Pod, PodExt, ProbeResult};
use crate::pods::pod_sync::PodWithStatus;
use crate::pods::pod_workers::WorkerStatus;
use crate::pods::prober::ProbeView;
use crate::pods::status::Statuses;
use crate::pods::{PodsHandles, PodsReader};
use crate::server::explain::generate::ExplainInputs;
use crate::server::explain::{EventReport, Explanation, Overview, ProbeReport, explain, row};
use crate::server::streaming::{PodName, lookup};
use crate::state::Stores;
use crate::state::events::EventRecord;
use crate::state::pod_history::PodHistory;
use crate::volumes::VolumeManager;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use std::sync::Arc;
use std::time::Duration;

/// Explains pods with data from the stores; cheap to clone.
#[derive(Clone)]
pub(in crate::server) struct PodExplainer {
    stores: Stores,
    pods: PodsReader,
    volumes: VolumeManager,
    node_name: Arc<str>,
    endpoint: String,
    overview_version: OverviewVersion,
}

impl PodExplainer {
    /// Reads these stores. `endpoint` is the runtime's; `started` identifies this process.
    pub(in crate::server) fn new(
        stores: Stores,
        pods: PodsReader,
        volumes: VolumeManager,
        node_name: Arc<str>,
        endpoint: String,
        started: Timestamp,
    ) -> Self {
        let (statuses, history) = (pods.statuses.clone(), stores.pod_history.clone());
        Self {
            overview_version: overview_version(statuses, history, started),
            stores,
            pods,
            volumes,
            node_name,
            endpoint,
        }
    }

    /// The handlers of `/explain` and the pages; `version` is this program's.
    pub(in crate::server) fn explanations(self, version: &'static str) -> Explanations {
        let (overview, explain) = (self.clone(), self.clone());
        Explanations {
            overview: Arc::new(move || overview.overview()),
            explain: Arc::new(move |name| explain.explain(name)),
            overview_version: self.overview_version,
            version,
        }
    }

    fn overview(&self) -> Overview {
        // Read before the stores, so that a concurrent change is not missed.
        let (version, _) = (self.overview_version)();
        let handles = self.pods.handles.borrow().clone();
        let terminating = handles.as_ref().map(PodsHandles::terminating).unwrap_or_default();
        let pods = self.pods.lister.list();
        let line = |(pod, status): &PodWithStatus| {
            row(pod, status.as_deref(), terminating.contains(&pod.uid()))
        };
        let mut pods: Vec<_> = pods.iter().map(line).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        let waiting_for_runtime = || {
            let endpoint = &self.endpoint;
            vec![format!("waiting for the container runtime at {endpoint}")]
        };
        Overview {
            version,
            node: self.node_name.to_string(),
            warnings: handles.map_or_else(waiting_for_runtime, |handles| handles.warnings()),
            pods,
        }
    }

    /// Of several pods of this name, a desired one takes precedence over one that is terminating.
    fn explain(&self, name: &PodName) -> Option<Explanation> {
        let (pod, status) = lookup::pod(self.pods.lister.list(), name).ok()?;
        let handles = self.pods.handles.borrow().clone()?;
        Some(self.explain_pod(&handles, &pod, status.as_deref()))
    }

    fn explain_pod(
        &self,
        handles: &PodsHandles,
        pod: &Arc<Pod>,
        status: Option<&PodStatus>,
    ) -> Explanation {
        let uid = pod.uid();
        let now = (clock::timestamp(), clock::instant());
        let worker: Option<WorkerStatus> = handles.workers.worker_status(&uid);
        let record = self.stores.pod_history.of(&uid);
        let runtime_status = self.stores.pod_cache.latest(&uid);
        let restart = |name: &String| {
            let back_off = handles.runtime.restart_back_off(pod, name, &runtime_status, now.0);
            back_off.map(|(delay, at)| (name.clone(), delay, at))
        };
        let containers = pod.init_containers().iter().chain(pod.containers());
        let restarts: Vec<(String, Duration, Timestamp)> =
            containers.filter_map(|container| restart(&container.name)).collect();
        let probe = |view: ProbeView| {
            let newest = runtime_status.newest(&view.container);
            let probe_result =
                newest.and_then(|seen| self.stores.probe_results.get(&seen.id).get(view.kind));
            probe_report(view, probe_result, now)
        };
        let probes = handles.probes.views(&uid).into_iter().map(probe).collect();
        let mut events = self.stores.events.recent();
        events.retain(|event| event.object.uid == uid);
        explain(ExplainInputs {
            pod,
            status,
            worker: worker.as_ref(),
            record: &record,
            restarts: &restarts,
            volumes: &self.volumes.pending(&uid),
            probes,
            events: events.iter().map(|e| event_report(e)).collect(),
            now,
        })
    }
}

/// The version of the overview, which changes with every status and every entry of the pod history. It identifies
/// this process, so that clients notice a restart.
fn overview_version(
    statuses: Statuses,
    pod_history: PodHistory,
    started: Timestamp,
) -> OverviewVersion {
    let started = started.as_millisecond();
    Arc::new(move || {
        let (mut statuses, mut pod_history) = (statuses.subscribe(), pod_history.subscribe());
        let (status_version, history_version) =
            (*statuses.borrow_and_update(), *pod_history.borrow_and_update());
        let changed = async move {
            tokio::select! {
                _ = statuses.changed() => {}
                _ = pod_history.changed() => {}
            }
        };
        let version = format!("{started}-{status_version}-{history_version}");
        (version, Box::pin(changed))
    })
}

fn probe_report(
    view: ProbeView,
    probe_result: Option<ProbeResult>,
    (wall_now, now): (Timestamp, Instant),
) -> ProbeReport {
    let text = |probe_result| {
        match probe_result {
            ProbeResult::Success => "success",
            ProbeResult::Failure => "failure",
            ProbeResult::Unknown => "unknown",
        }
        .to_string()
    };
    let due = view.due.map(|due| due.saturating_duration_since(now));
    let mut report = ProbeReport {
        container: view.container.to_string(),
        kind: view.kind.to_string(),
        probe_result: text(probe_result.unwrap_or(ProbeResult::Unknown)),
        next: due.and_then(|due| wall_now.checked_add(due).ok()),
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

fn event_report(event: &EventRecord) -> EventReport {
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
