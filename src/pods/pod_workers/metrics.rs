//! The metric families of the workers, named as upstream names them.

use super::{Phase, PodWorkers};
use crate::{
    base::metrics::{AtScrape, DEFAULT_BUCKETS, Metrics, Sample},
    model::{GraceDeadline, Pod, PodExt, PodStatus, PodUid, keys},
    pods::pod_sync::syncer::{PodSyncer, SyncTurn, TerminationReason, UpdateKind},
};
use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation_type: &'static str,
}

/// A syncer whose turns are timed.
pub struct Timed {
    syncer: Arc<dyn PodSyncer>,
    turns: Family<Operation, Histogram>,
    starts: Histogram,
}

impl Timed {
    /// Times what this syncer does; declares the families.
    pub fn new(syncer: Arc<dyn PodSyncer>, metrics: &Metrics) -> Self {
        Self {
            syncer,
            turns: metrics.register(
                "kubelet_pod_worker_duration_seconds",
                "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
                Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
            ),
            starts: metrics.register(
                "kubelet_pod_worker_start_duration_seconds",
                "Duration in seconds from kubelet seeing a pod to starting a worker.",
                Histogram::new(DEFAULT_BUCKETS),
            ),
        }
    }

    fn timed<'a, T: 'a>(
        &'a self,
        operation_type: &'static str,
        turn: BoxFuture<'a, T>,
    ) -> BoxFuture<'a, T> {
        let (begun, operation) = (Instant::now(), Operation { operation_type });
        let observe = move |ended| {
            let turns = self.turns.get_or_create_owned(&operation);
            turns.observe(begun.elapsed().as_secs_f64());
            ended
        };
        turn.map(observe).boxed()
    }
}

impl PodSyncer for Timed {
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        kind: UpdateKind,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, SyncTurn> {
        if kind == UpdateKind::Create
            && let Some(waited) = since_seen(&pod, Timestamp::now())
        {
            self.starts.observe(waited);
        }
        self.timed(kind.as_str(), self.syncer.sync_pod(pod, kind, cancel))
    }

    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        let turn = self.syncer.sync_terminating_pod(pod, grace, reason);
        self.timed("kill", turn)
    }

    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        let turn = self.syncer.sync_terminating_runtime_pod(running, grace);
        self.timed("kill", turn)
    }

    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        self.timed("kill", self.syncer.sync_terminated_pod(pod))
    }
}

/// Seconds since this kubelet first saw a pod.
fn since_seen(pod: &Pod, now: Timestamp) -> Option<f64> {
    let seen: Timestamp = pod.annotation(keys::CONFIG_SEEN)?.parse().ok()?;
    Some(now.duration_since(seen).as_secs_f64().max(0.0))
}

/// Declares the families that count workers. `wanted` is every pod that a source has.
pub fn count(
    workers: &PodWorkers,
    wanted: impl Fn() -> HashSet<PodUid> + Send + Sync + 'static,
    metrics: &Metrics,
) {
    let workers = workers.clone();
    metrics.register(
        "kubelet_working_pods",
        "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
        AtScrape::gauge(move || working(&workers, &wanted())),
    );
}

fn working(workers: &PodWorkers, wanted: &HashSet<PodUid>) -> Vec<Sample> {
    let mut counts: BTreeMap<(&str, &str, &str), f64> = BTreeMap::new();
    for pod in workers.known() {
        let lifecycle = match pod.phase {
            Phase::Waiting { .. } | Phase::Starting { .. } | Phase::Syncing => "sync",
            Phase::Terminating { .. } => "terminating",
            Phase::Terminated { .. } | Phase::Finished { .. } => "terminated",
        };
        let (config, is_static) = match (pod.has_spec, wanted.contains(&pod.uid)) {
            (false, _) => ("runtime_only", "unknown"),
            (true, true) => ("desired", of_static(pod.is_static)),
            (true, false) => ("orphan", of_static(pod.is_static)),
        };
        *counts.entry((config, lifecycle, is_static)).or_default() += 1.0;
    }
    let sample = |((config, lifecycle, is_static), count): ((&str, &str, &str), f64)| {
        let labels = [
            ("config", config),
            ("lifecycle", lifecycle),
            ("static", is_static),
        ];
        (
            labels
                .map(|(name, value)| (name, value.to_owned()))
                .to_vec(),
            count,
        )
    };
    counts.into_iter().map(sample).collect()
}

/// As upstream, a pod of which only the runtime knows is neither.
fn of_static(is_static: bool) -> &'static str {
    match is_static {
        true => "true",
        false => "false",
    }
}
