//! Takes pods off a node that runs out of memory, disk or processes.
//!
//! * Owns: which thresholds are passed, and since when.
//! * Woken by: a timer that is the shorter the nearer a threshold is (50 ms to 10 s).
//! * Publishes: the node's pressure; kills through the pod workers; events.
//! * Must never evict a static pod or one of the system, or a pod while those that leave already give back enough.
//! * Answers to upstream's `pkg/kubelet/eviction`.

pub mod thresholds;
pub mod decide;
pub mod rank;
pub mod leaving;
pub mod local_storage;
pub mod observe;

use crate::{
    base::{chain, metrics::Metrics},
    model::{Pod, PodExt, PodUid, reasons::event},
    node::active_pods::active_pods,
    node::reclaim::Reclaim,
    node::stats::{Stats, api::PodStats},
    pods::pod_config::SourcesReadyReader,
    pods::pod_sync::syncer::TerminationReason,
    pods::pod_workers::{PodWorkers, UpdateOptions},
    state::events::{EventRecorder, ObjectRef},
    state::node_pressure::NodePressureWriter,
    state::pod_manager::PodManager,
};
use decide::{EvictionState, Observations};
use leaving::LeavingPods;
use observe::{Measured, Places, measure};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use rank::{Candidate, Files, Layout};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use thresholds::{Resource, Signal, Threshold};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The grace of a pod that a hard threshold evicts, seconds.
const HARD_GRACE: i64 = 1;
/// How long a measurement may take.
const MEASURE: Duration = Duration::from_secs(5);
/// How much longer than its grace a pod may take to be gone.
const STOP: Duration = Duration::from_secs(30);
/// After so long a disk is freed although a source has not delivered.
const SOURCES: Duration = Duration::from_secs(300);
/// How often pods with limits on the disk are measured.
const LOCAL_STORAGE: Duration = Duration::from_secs(10);
/// How often it is measured whether the pods that leave give back enough.
const WHILE_LEAVING: Duration = Duration::from_millis(100);
/// The time until the next attempt when there was nothing to do about a threshold.
const NOTHING_TO_EVICT: Duration = Duration::from_secs(10);

/// The configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name.
    pub node_name: String,
    /// What to watch.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays.
    pub transition: Duration,
    /// The longest grace of a pod that a soft threshold evicts, seconds.
    pub max_grace: i64,
    /// Whether limits on the disk are watched.
    pub local_storage: bool,
}

/// What the manager works with.
pub struct Deps {
    /// The kubelet's directory.
    pub root: PathBuf,
    /// Cgroups are of version 2.
    pub cgroup_v2: bool,
    /// The cgroup of all pods, where they have one.
    pub pods_cgroup: Option<String>,
    /// Frees disk space without touching pods.
    pub reclaim: Arc<Reclaim>,
    /// What pods use.
    pub stats: Stats,
    /// Whether all desired pods are known.
    pub sources: SourcesReadyReader,
    /// The desired pods.
    pub pods: PodManager,
    /// Stops them.
    pub workers: PodWorkers,
    /// Events.
    pub events: EventRecorder,
    /// The node's pressure.
    pub pressure: NodePressureWriter,
}

/// What was done about a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relief {
    /// Something was freed, or a pod evicted.
    Acted,
    /// Pods that are being stopped give back enough.
    Waits,
    /// There is nothing to free, and no pod to evict.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySignal {
    eviction_signal: &'static str,
}

/// Evicts pods.
pub struct EvictionManager {
    settings: Settings,
    deps: Deps,
    state: EvictionState,
    places: Places,
    evictions: Family<BySignal, Counter>,
    leaving: LeavingPods,
    /// Until when nothing is tried about a signal.
    in_vain: HashMap<Signal, Instant>,
    local_storage_due: Instant,
    started: Instant,
}

impl EvictionManager {
    /// A manager that has measured nothing yet.
    pub fn new(settings: Settings, deps: Deps, metrics: &Metrics) -> Self {
        let evictions = metrics.register(
            "kubelet_evictions",
            "Cumulative number of pod evictions by eviction signal",
            Family::default(),
        );
        let places = Places {
            root: deps.root.clone(),
            images: None,
            cgroup_v2: deps.cgroup_v2,
            pods: deps.pods_cgroup.clone(),
        };
        Self {
            settings,
            deps,
            places,
            state: EvictionState::default(),
            evictions,
            leaving: LeavingPods::default(),
            in_vain: HashMap::new(),
            local_storage_due: Instant::now() + LOCAL_STORAGE,
            started: Instant::now(),
        }
    }

    /// Works until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let work = async {
            loop {
                let again = self.step().await;
                sleep(again).await;
            }
        };
        shutdown.run_until_cancelled(work).await;
        Ok(())
    }

    /// Measures, and evicts one pod at the most; when to do it again.
    async fn step(&mut self) -> Duration {
        if self.places.images.is_none() {
            self.places.images = self.deps.reclaim.collector.mounts().await.ok();
        }
        // Before: what a pod that ends meanwhile gives back is not in the measurement.
        self.forget_ended();
        let Some(measured) = self.measure().await else {
            return NOTHING_TO_EVICT;
        };
        let (thresholds, transition) = (&self.settings.thresholds, self.settings.transition);
        let observed = &measured.observations;
        let found = self
            .state
            .observe(thresholds, observed, transition, Instant::now());
        self.deps.pressure.send_if_modified(|known| {
            let changed = *known != found.pressure;
            *known = found.pressure;
            changed
        });
        if self.local_storage_due <= Instant::now() {
            self.local_storage_due = Instant::now() + LOCAL_STORAGE;
            self.enforce_limits().await;
        }
        // Which images no pod needs is known once all pods are.
        let known = self.deps.sources.all_ready().is_some() || self.started.elapsed() > SOURCES;
        let mut again = found.again;
        for threshold in &found.act_on {
            if !known && threshold.signal.resource().is_on_disk() || self.is_in_vain(threshold) {
                continue;
            }
            match self.relieve(threshold, &measured).await {
                Relief::Acted => return WHILE_LEAVING,
                Relief::Waits => again = WHILE_LEAVING,
                Relief::Nothing => {
                    let until = Instant::now() + NOTHING_TO_EVICT;
                    self.in_vain.insert(threshold.signal, until);
                }
            }
        }
        again
    }

    /// There was nothing to do about a threshold a short time ago.
    fn is_in_vain(&self, threshold: &Threshold) -> bool {
        let until = self.in_vain.get(&threshold.signal);
        until.is_some_and(|until| Instant::now() < *until)
    }

    fn forget_ended(&mut self) {
        let workers = &self.deps.workers;
        let ended = |pod: &Pod| workers.should_pod_be_finished(&pod.uid());
        for pod in self.leaving.forget(Instant::now(), ended) {
            tracing::warn!(pod = %pod.full_name(), podUID = %pod.uid(), "Eviction manager: the pod takes long to stop");
        }
    }

    async fn measure(&self) -> Option<Measured> {
        let places = self.places.clone();
        let measuring = tokio::task::spawn_blocking(move || measure(&places));
        match timeout(MEASURE, measuring).await {
            Ok(measured) => measured.ok(),
            Err(_) => {
                tracing::warn!("The node's disks do not answer, no pod is evicted");
                None
            }
        }
    }

    /// Does something about a threshold that is passed.
    async fn relieve(&mut self, threshold: &Threshold, measured: &Measured) -> Relief {
        let resource = threshold.signal.resource();
        let files = Files::of(threshold.signal, measured.layout);
        let mut candidates = Vec::new();
        if !self.leaving.is_empty() {
            candidates = self.candidates(resource).await;
            let expected = self.leaving.expected(resource, Instant::now());
            if !decide::is_met_with(threshold, &measured.observations, expected) {
                return Relief::Waits;
            }
        }
        tracing::info!(resourceName = resource.as_str(), "Attempting to reclaim");
        let node = ObjectRef::node(&self.settings.node_name);
        let text = format!("Attempting to reclaim {}", resource.as_str());
        self.deps
            .events
            .warning(&node, "EvictionThresholdMet", text);
        if self.reclaim_from_node(threshold, measured).await {
            return Relief::Acted;
        }
        if candidates.is_empty() {
            candidates = self.candidates(resource).await;
        }
        rank::rank(&mut candidates, threshold.signal, files);
        for candidate in candidates {
            if candidate.pod.is_critical() {
                tracing::error!(pod = %candidate.pod.full_name(), "Eviction manager: cannot evict a critical pod");
                continue;
            }
            let observed = measured.observations.get(&threshold.signal).copied();
            let message = rank::message(&candidate, threshold, observed);
            let grace = match threshold.grace {
                None => HARD_GRACE,
                Some(_) => self.settings.max_grace,
            };
            let signal = threshold.signal.as_str();
            self.evict(&candidate.pod, grace, message, true, signal);
            let seconds = u64::try_from(grace).unwrap_or(0);
            let until = Instant::now() + Duration::from_secs(seconds) + STOP;
            self.leaving.add(candidate, until);
            return Relief::Acted;
        }
        tracing::info!("Eviction manager: unable to evict any pods from the node");
        Relief::Nothing
    }

    /// Whether it was enough to remove what no pod needs.
    async fn reclaim_from_node(&self, threshold: &Threshold, measured: &Measured) -> bool {
        let on_disk = threshold.signal.resource().is_on_disk();
        let of_images = matches!(
            threshold.signal,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree
        );
        let is_elsewhere = measured.layout == Layout::DedicatedImages && !of_images;
        if !on_disk || is_elsewhere {
            return false;
        }
        if let Err(error) = self.deps.reclaim.free_disk().await {
            tracing::warn!(err = %chain(error.as_ref()), "Eviction manager: unexpected error when attempting to reduce resource pressure");
        }
        let now = self.measure().await;
        let still = |observed: &Observations| decide::is_met(threshold, observed, true);
        now.is_some_and(|now| !still(&now.observations))
    }

    /// Pods that run and do not leave, and what they use; none if that cannot be read: any of them might be the wrong
    /// one.
    async fn candidates(&mut self, resource: Resource) -> Vec<Candidate> {
        // A pod that fills the memory has much more of it than a moment ago.
        self.deps.stats.outdate();
        let Some(summary) = self.deps.stats.summary(!resource.is_on_disk()).await else {
            tracing::warn!("Eviction manager: failed to get summary stats");
            return Vec::new();
        };
        let usage = summary.pods.into_iter();
        let mut usage: HashMap<PodUid, PodStats> = usage
            .map(|pod| (PodUid::from(pod.pod_ref.uid.as_str()), pod))
            .collect();
        self.leaving.update(&usage, Instant::now());
        let pods = self.active_pods().into_iter();
        let candidates = pods.map(|pod| Candidate {
            usage: usage.remove(&pod.uid()),
            pod,
        });
        candidates.collect()
    }

    fn active_pods(&self) -> Vec<Arc<Pod>> {
        active_pods(&self.deps.pods, &self.deps.workers)
    }

    /// Evicts the pods that use more of the disk than they may.
    async fn enforce_limits(&mut self) {
        let limited = |pod: &Arc<Pod>| !pod.is_critical() && local_storage::has_limits(pod);
        if !self.settings.local_storage || !self.active_pods().iter().any(limited) {
            return;
        }
        for candidate in self.candidates(Resource::Disk).await {
            if let Some(message) =
                local_storage::excess(&candidate).filter(|_| limited(&candidate.pod))
            {
                let signal = "ephemeralpodfs.limit";
                self.evict(&candidate.pod, HARD_GRACE, message, false, signal);
            }
        }
    }

    /// Stops a pod for good.
    fn evict(
        &self,
        pod: &Arc<Pod>,
        grace: i64,
        message: String,
        disruption: bool,
        signal: &'static str,
    ) {
        let own = pod.termination_grace_seconds();
        let grace = grace.clamp(0, own.max(HARD_GRACE));
        tracing::info!(pod = %pod.full_name(), podUID = %pod.uid(), reason = message, "Eviction manager: evicting pod");
        self.deps
            .events
            .warning(&ObjectRef::pod(pod), event::EVICTED, message.as_str());
        let by = BySignal {
            eviction_signal: signal,
        };
        self.evictions.get_or_create(&by).inc();
        let reason = TerminationReason::Evicted {
            reason: event::EVICTED.to_owned(),
            message,
            disruption,
        };
        let kill = UpdateOptions::kill(pod.clone(), reason).within(grace);
        self.deps.workers.update_pod(kill);
    }
}
