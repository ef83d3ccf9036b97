//! Evicts pods from a node that runs out of memory, disk or processes.
//!
//! * Owns: which thresholds are met, and since when.
//! * Woken by: a timer that is the shorter the nearer a threshold is (50 ms to 10 s).
//! * Publishes: the node's pressure; kills through the pod workers; events.
//! * Must never evict a static pod or one of the system, or a pod while those that terminate already free enough.
//! * Answers to upstream's `pkg/kubelet/eviction`.

pub mod thresholds;
pub mod decide;
pub mod rank;
pub mod terminating;
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
use observe::{Measured, Places};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use rank::{Candidate, Files, Layout};
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use terminating::TerminatingEvictions;
use thresholds::{Resource, Signal, Threshold};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// The grace of a pod that a hard threshold evicts, seconds.
const HARD_GRACE: i64 = 1;
/// How long a measurement may take.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than its grace a pod may take to be cleaned up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a disk is freed although a source has not delivered.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which pods with limits on local storage are measured.
const LOCAL_STORAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of measurements while evicted pods terminate or a disk is being freed.
const EVICTING_INTERVAL: Duration = Duration::from_millis(100);
/// Delay after an attempt that found nothing to reclaim and no pod to evict.
const RETRY_DELAY: Duration = Duration::from_secs(10);

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

/// The outcome of an attempt to reclaim a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimOutcome {
    /// Enough was freed, or a pod was evicted.
    Reclaimed,
    /// A disk is being freed, or pods that terminate will give back enough.
    InProgress,
    /// There was nothing to free, and no pod to evict.
    NothingToDo,
}

/// What freeing a disk without touching pods came to.
enum DiskOutcome {
    /// It is above the threshold again.
    Enough,
    /// It has not ended.
    InProgress,
    /// Pods have to be evicted.
    NotEnough,
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
    /// The removal of containers and images, until it has ended. It may take minutes.
    freeing_disk: Option<AbortOnDropHandle<anyhow::Result<()>>>,
    evictions: Family<BySignal, Counter>,
    terminating: TerminatingEvictions,
    /// When the next attempt is made for a signal, after one that found nothing to do.
    retry_after: HashMap<Signal, Instant>,
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
            freeing_disk: None,
            state: EvictionState::default(),
            evictions,
            terminating: TerminatingEvictions::default(),
            retry_after: HashMap::new(),
            local_storage_due: Instant::now() + LOCAL_STORAGE_INTERVAL,
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
            let mounts = timeout(MEASURE_TIMEOUT, self.deps.reclaim.collector.mounts()).await;
            self.places.images = mounts.ok().and_then(Result::ok);
        }
        // Before: what a pod that ends meanwhile gives back is not in the measurement.
        self.forget_ended();
        let mut measured = self.measure().await;
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
            self.local_storage_due = Instant::now() + LOCAL_STORAGE_INTERVAL;
            if self.enforce_limits(measured.layout).await {
                return EVICTING_INTERVAL;
            }
        }
        // Which images no pod needs is known once all pods are.
        let known =
            self.deps.sources.all_ready().is_some() || self.started.elapsed() > SOURCES_TIMEOUT;
        let mut again = found.again;
        for threshold in &found.act_on {
            if !known && threshold.signal.resource().is_on_disk() || self.is_backing_off(threshold)
            {
                continue;
            }
            match self.reclaim(threshold, &mut measured).await {
                ReclaimOutcome::Reclaimed => return EVICTING_INTERVAL,
                ReclaimOutcome::InProgress => again = EVICTING_INTERVAL,
                ReclaimOutcome::NothingToDo => {
                    let next = Instant::now() + RETRY_DELAY;
                    self.retry_after.insert(threshold.signal, next);
                }
            }
        }
        again
    }

    /// Whether the latest attempt for the threshold found nothing to do, a short time ago.
    fn is_backing_off(&self, threshold: &Threshold) -> bool {
        let next = self.retry_after.get(&threshold.signal);
        next.is_some_and(|next| Instant::now() < *next)
    }

    fn forget_ended(&mut self) {
        let workers = &self.deps.workers;
        let ended = |pod: &Pod| workers.should_pod_be_finished(&pod.uid());
        for pod in self.terminating.forget(Instant::now(), ended) {
            tracing::warn!(pod = %pod.full_name(), podUID = %pod.uid(), "Eviction manager: timed out waiting for pods to be cleaned up");
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
        let mut measured = match timeout(MEASURE_TIMEOUT, &mut disks).await {
            Ok(measured) => measured.unwrap_or_default(),
            Err(_) => {
                tracing::warn!(
                    "Measuring the node's disks timed out; no pod is evicted because of them"
                );
                self.measuring_disks = Some(disks);
                Measured::default()
            }
        };
        measured
            .observations
            .extend(other.await.unwrap_or_default());
        measured
    }

    /// Frees a disk or evicts a pod, because a threshold is met. After a disk was freed, `measured` is replaced.
    async fn reclaim(&mut self, threshold: &Threshold, measured: &mut Measured) -> ReclaimOutcome {
        let resource = threshold.signal.resource();
        let files = Files::of(threshold.signal, measured.layout);
        let mut candidates = Vec::new();
        if !self.terminating.is_empty() {
            // What a pod has on a disk is measured too rarely: there all of it has to be gone.
            if resource.is_on_disk() {
                return ReclaimOutcome::InProgress;
            }
            // Before the measurement: what is given back between the two counts twice, and not never.
            candidates = self.candidates(resource).await;
            let expected = self.terminating.expected(resource);
            let now = self.measure().await.observations;
            if !decide::is_met_with(threshold, &now, expected) {
                return ReclaimOutcome::InProgress;
            }
        }
        if self.freeing_disk.is_none() || !resource.is_on_disk() {
            self.report_attempt(resource);
        }
        match self.free_disk(threshold, measured).await {
            DiskOutcome::Enough => return ReclaimOutcome::Reclaimed,
            DiskOutcome::InProgress => return ReclaimOutcome::InProgress,
            DiskOutcome::NotEnough => {}
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
            return ReclaimOutcome::Reclaimed;
        }
        tracing::info!("Eviction manager: unable to evict any pods from the node");
        ReclaimOutcome::NothingToDo
    }

    fn report_attempt(&self, resource: Resource) {
        tracing::info!(resourceName = resource.as_str(), "Attempting to reclaim");
        let node = ObjectRef::node(&self.settings.node_name);
        let text = format!("Attempting to reclaim {}", resource.as_str());
        let events = &self.deps.events;
        events.warning(&node, "EvictionThresholdMet", text);
    }

    /// Removes containers and images that no pod needs, in a task, so that other thresholds are not kept waiting.
    async fn free_disk(&mut self, threshold: &Threshold, measured: &mut Measured) -> DiskOutcome {
        let on_disk = threshold.signal.resource().is_on_disk();
        let of_images = matches!(
            threshold.signal,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree
        );
        let is_elsewhere = measured.layout == Layout::DedicatedImages && !of_images;
        if !on_disk || is_elsewhere {
            return DiskOutcome::NotEnough;
        }
        let mut freeing = self.freeing_disk.take().unwrap_or_else(|| {
            let reclaim = self.deps.reclaim.clone();
            AbortOnDropHandle::new(tokio::spawn(async move { reclaim.free_disk().await }))
        });
        let Ok(ended) = timeout(EVICTING_INTERVAL, &mut freeing).await else {
            self.freeing_disk = Some(freeing);
            return DiskOutcome::InProgress;
        };
        let freed = ended.map_err(anyhow::Error::from);
        if let Err(error) = freed.and_then(|freed| freed) {
            tracing::warn!(err = %chain(error.as_ref()), "Eviction manager: unexpected error when attempting to reduce resource pressure");
        }
        *measured = self.measure().await;
        let now = &measured.observations;
        if now.contains_key(&threshold.signal) && !decide::is_met(threshold, now, true) {
            DiskOutcome::Enough
        } else {
            DiskOutcome::NotEnough
        }
    }

    /// Pods that run and were not evicted, with their usage; none if that cannot be read, because a rank without usage
    /// could evict the wrong pod.
    async fn candidates(&mut self, resource: Resource) -> Vec<Candidate> {
        // A pod that fills the memory has much more of it than a moment ago.
        self.deps.stats.invalidate();
        let Some(summary) = self.deps.stats.summary(!resource.is_on_disk()).await else {
            tracing::warn!("Eviction manager: failed to get summary stats");
            return Vec::new();
        };
        let usage = summary.pods.into_iter();
        let mut usage: HashMap<PodUid, PodStats> = usage
            .map(|pod| (PodUid::from(pod.pod_ref.uid.as_str()), pod))
            .collect();
        self.terminating.update(&usage);
        let pods = active_pods(&self.deps.pods, &self.deps.workers).into_iter();
        let pods = pods.filter(|pod| !self.terminating.contains(&pod.uid()));
        let candidates = pods.map(|pod| Candidate {
            usage: usage.remove(&pod.uid()),
            pod,
        });
        candidates.collect()
    }

    /// Evicts the pods that use more of the disk than they may. Whether there were any: what they give back may be
    /// enough for the thresholds, too.
    async fn enforce_limits(&mut self, layout: Layout) -> bool {
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
                local_storage::excess(&candidate, layout).filter(|_| limited(&candidate.pod))
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
        let until = Instant::now() + grace + CLEANUP_TIMEOUT;
        self.terminating.add(candidate, until);
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
