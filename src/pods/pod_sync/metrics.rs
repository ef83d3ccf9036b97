//! How long pods take to start: the families that upstream's `pod_startup_latency_tracker.go` writes.

use crate::base::clock;
use crate::base::metrics::metric_set;
use crate::model::{Pod, PodExt, keys};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as api;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Upper bounds, seconds; upstream's.
const BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// How far the start of a pod has come, by its published status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StartProgress {
    /// This kubelet did not see it start, or its start was measured.
    #[default]
    NotTracked,
    Pending,
    /// Something of it runs.
    Running,
}

/// What is to be measured now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DueMeasurement {
    ran: bool,
    started: bool,
}

metric_set! {
    /// Handles to the metrics.
    pub struct PodStartMetrics {
        running: Histogram(BUCKETS) = "kubelet_pod_start_duration_seconds",
            "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
        total: Histogram(BUCKETS) = "kubelet_pod_start_total_duration_seconds",
            "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
        without_pulls: Histogram(BUCKETS) = "kubelet_pod_start_sli_duration_seconds",
            "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
        first: SecondsGauge = "kubelet_first_network_pod_start_sli_duration_seconds",
            "Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
        rejections: Counter["reason"] = "kubelet_admission_rejections_total",
            "Cumulative number pod admission rejections by the Kubelet.";
    } and {
        first_measured: Arc<AtomicBool>;
    }
}

impl PodStartMetrics {
    /// Counts a pod that the node rejects.
    pub(super) fn rejected(&self, reason: Cow<'static, str>) {
        let label = match reason {
            Cow::Borrowed(reason) => reason,
            Cow::Owned(reason) => reason_label(&reason),
        };
        self.rejections.with([label]).inc();
    }

    /// This status of a pod was published. `pulling` returns for how long its images were pulled.
    pub(super) fn published(
        &self,
        start: &mut StartProgress,
        pod: &Pod,
        status: &api::PodStatus,
        pulling: impl FnOnce() -> Duration,
    ) {
        let due = advance(start, status);
        let now = clock::timestamp();
        let since = |at: Timestamp| now.duration_since(at).as_secs_f64().max(0.0);
        let seen = pod.annotation(keys::CONFIG_SEEN);
        let seen: Option<Timestamp> = seen.and_then(|seen| seen.parse().ok());
        if due.ran
            && let Some(seen) = seen
        {
            self.running.observe(since(seen));
        }
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let Some(created) = created.or(seen).filter(|_| due.started) else {
            return;
        };
        let total = since(created);
        self.total.observe(total);
        if is_stateful(pod) {
            return;
        }
        let sli = (total - pulling().as_secs_f64() - init_seconds(status)).max(0.0);
        self.without_pulls.observe(sli);
        if !pod.host_network() && !self.first_measured.swap(true, Ordering::Relaxed) {
            self.first.set(sli);
        }
    }
}

/// All extended resources share one label, as upstream.
pub(in crate::pods) fn reason_label(reason: &str) -> &'static str {
    let resources = ["cpu", "memory", "ephemeral-storage", "pods"];
    let index = resources.iter().position(|name| reason.strip_prefix("OutOf") == Some(name));
    let labels = ["OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods"];
    let label = index.and_then(|index| labels.get(index));
    label.copied().unwrap_or("OutOfExtendedResources")
}

/// Advances `start`. Each transition is measured once, and only if this kubelet saw the phase before it.
fn advance(start: &mut StartProgress, status: &api::PodStatus) -> DueMeasurement {
    let phase = status.phase.as_deref().unwrap_or_default();
    let mut due = DueMeasurement::default();
    match (phase, *start) {
        ("Pending", StartProgress::NotTracked) => *start = StartProgress::Pending,
        ("Running", StartProgress::Pending) => {
            due.ran = true;
            *start = StartProgress::Running;
        }
        ("Failed" | "Succeeded", _) => *start = StartProgress::NotTracked,
        _ => {}
    }
    if *start == StartProgress::Running && all_started(status) {
        due.started = true;
        *start = StartProgress::NotTracked;
    }
    due
}

fn all_started(status: &api::PodStatus) -> bool {
    let runs = |container: &api::ContainerStatus| {
        let state = container.state.as_ref();
        let running = state.and_then(|state| state.running.as_ref());
        running.is_some_and(|running| running.started_at.is_some())
    };
    status.container_statuses.iter().flatten().all(runs)
}

/// Seconds that init containers ran; sidecars have not ended.
fn init_seconds(status: &api::PodStatus) -> f64 {
    let ran = |container: &api::ContainerStatus| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let (from, to) = (ended.started_at.as_ref()?.0, ended.finished_at.as_ref()?.0);
        Some(to.duration_since(from).as_secs_f64().max(0.0))
    };
    let containers = status.init_container_statuses.iter().flatten();
    containers.filter_map(ran).sum()
}

/// The start SLO covers only stateless pods (upstream's `isStatefulPod`).
fn is_stateful(pod: &Pod) -> bool {
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| {
        volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.downward_api.is_none()
            && volume.empty_dir.is_none()
            && volume.projected.is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(phase: &str, running: &[bool]) -> api::PodStatus {
        let container = |running: &bool| {
            if *running {
                json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
            } else {
                json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {}}})
            }
        };
        let containers: Vec<_> = running.iter().map(container).collect();
        serde_json::from_value(json!({"phase": phase, "containerStatuses": containers})).unwrap()
    }

    #[test]
    fn a_start_is_measured_once_and_only_if_its_beginning_was_seen() {
        let none = DueMeasurement::default();
        let ran = DueMeasurement { ran: true, ..none };
        let both = DueMeasurement { ran: true, started: true };
        let started = DueMeasurement { started: true, ..none };
        let table: &[&[(&str, &[bool], DueMeasurement)]] = &[
            &[
                ("Pending", &[false], none),
                ("Running", &[true], both),
                ("Running", &[false], none),
                ("Running", &[true], none),
            ],
            &[
                ("Pending", &[false, false], none),
                ("Running", &[true, false], ran),
                ("Running", &[true, true], started),
            ],
            // A kubelet that comes to running pods measures nothing.
            &[("Running", &[true], none), ("Running", &[true], none)],
            &[("Pending", &[false], none), ("Failed", &[false], none), ("Running", &[true], none)],
        ];
        for history in table {
            let mut start = StartProgress::default();
            for (phase, running, due) in *history {
                assert_eq!(advance(&mut start, &status(phase, running)), *due, "{history:?}");
            }
        }
    }

    #[test]
    fn attached_volumes_make_a_pod_stateful_and_the_time_of_init_containers_is_left_out() {
        let pod = |volume| -> Pod {
            let spec = json!({"containers": [], "volumes": [volume]});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        assert!(!is_stateful(&pod(json!({"name": "v", "emptyDir": {}}))));
        assert!(is_stateful(&pod(json!({"name": "v", "hostPath": {"path": "/"}}))));
        let ended = json!({"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:03Z"}}});
        let status = json!({"initContainerStatuses": [ended, ended]});
        assert_eq!(init_seconds(&serde_json::from_value(status).unwrap()), 6.0);
    }
}
