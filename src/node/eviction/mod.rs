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
use decide::EvictionState;
use leaving::LeavingPods;
use observe::{Measured, Places};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use rank::{Candidate, Files, Layout};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use thresholds::{Resource, Signal, Threshold};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
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
    /// A measurement of the disks that has not ended: one that hangs is not joined by others.
    measuring_disks: Option<JoinHandle<Measured>>,
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
            measuring_disks: None,
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
            let mounts = timeout(MEASURE, self.deps.reclaim.collector.mounts()).await;
            self.places.images = mounts.ok().and_then(Result::ok);
        }
        // Before: what a pod that ends meanwhile gives back is not in the measurement.
        self.forget_ended();
        let measured = self.measure().await;
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
            if self.enforce_limits().await {
                return WHILE_LEAVING;
            }
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

    /// Measures memory, processes, and the disks if they answer in time.
    async fn measure(&mut self) -> Measured {
        let places = self.places.clone();
        let other = tokio::task::spawn_blocking(move || observe::memory_and_pids(&places));
        let places = self.places.clone();
        let running = self.measuring_disks.take();
        let mut disks =
            running.unwrap_or_else(|| tokio::task::spawn_blocking(move || observe::disks(&places)));
        let mut measured = match timeout(MEASURE, &mut disks).await {
            Ok(measured) => measured.unwrap_or_default(),
            Err(_) => {
                tracing::warn!("The node's disks do not answer, no pod is evicted because of them");
                self.measuring_disks = Some(disks);
                Measured::default()
            }
        };
        measured
            .observations
            .extend(other.await.unwrap_or_default());
        measured
    }

    /// Does something about a threshold that is passed.
    async fn relieve(&mut self, threshold: &Threshold, measured: &Measured) -> Relief {
        let resource = threshold.signal.resource();
        let files = Files::of(threshold.signal, measured.layout);
        let mut candidates = Vec::new();
        if !self.leaving.is_empty() {
            // What a pod has on a disk is measured too rarely: there all of it has to be gone.
            if resource.is_on_disk() {
                return Relief::Waits;
            }
            // Before the measurement: what is given back between the two counts twice, and not never.
            candidates = self.candidates(resource).await;
            let expected = self.leaving.expected(resource);
            let now = self.measure().await.observations;
            if !decide::is_met_with(threshold, &now, expected) {
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
            self.is_stopped_within(candidate, grace);
            return Relief::Acted;
        }
        tracing::info!("Eviction manager: unable to evict any pods from the node");
        Relief::Nothing
    }

    /// Whether it was enough to remove what no pod needs.
    async fn reclaim_from_node(&mut self, threshold: &Threshold, measured: &Measured) -> bool {
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
        let now = self.measure().await.observations;
        now.contains_key(&threshold.signal) && !decide::is_met(threshold, &now, true)
    }

    /// Pods that run and were not evicted, with their usage; none if that cannot be read, because a rank without usage
    /// could evict the wrong pod.
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
        self.leaving.update(&usage);
        let pods = active_pods(&self.deps.pods, &self.deps.workers).into_iter();
        let pods = pods.filter(|pod| !self.leaving.contains(&pod.uid()));
        let candidates = pods.map(|pod| Candidate {
            usage: usage.remove(&pod.uid()),
            pod,
        });
        candidates.collect()
    }

    /// Evicts the pods that use more of the disk than they may. Whether there were any: what they give back may be
    /// enough for the thresholds, too.
    async fn enforce_limits(&mut self) -> bool {
        let workers = self.deps.workers.clone();
        let limited = |pod: &Arc<Pod>| {
            let is_stopping = workers.is_pod_termination_requested(&pod.uid());
            !is_stopping && !pod.is_critical() && local_storage::has_limits(pod)
        };
        let pods = active_pods(&self.deps.pods, &self.deps.workers);
        if !self.settings.local_storage || !pods.iter().any(limited) {
            return false;
        }
        let mut any = false;
        for candidate in self.candidates(Resource::Disk).await {
            if let Some(message) =
                local_storage::excess(&candidate).filter(|_| limited(&candidate.pod))
            {
                let signal = "ephemeralpodfs.limit";
                self.evict(&candidate.pod, HARD_GRACE, message, false, signal);
                self.is_stopped_within(candidate, HARD_GRACE);
                any = true;
            }
        }
        any
    }

    /// What an evicted pod uses is expected back soon after its grace, seconds.
    fn is_stopped_within(&mut self, candidate: Candidate, grace: i64) {
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        self.leaving.add(candidate, Instant::now() + grace + STOP);
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
