//! The eviction manager: evicts pods from a node that runs out of memory, disk or processes.
//!
//! * Owns: which thresholds are met, and since when.
//! * Woken by: a timer with an interval from 50 ms, near a threshold, to 10 s.
//! * Publishes: the node's pressure; kills through the pod workers; events.
//! * Must never evict a critical pod, nor a pod while evicted pods that still terminate will free enough; nor wait for
//!   a disk or the runtime, because memory has to be measured meanwhile.
//! * Upstream: `pkg/kubelet/eviction`.

pub mod thresholds;
pub mod decide;
pub mod rank;
pub mod terminating;
pub mod local_storage;
pub mod observe;
mod measurements;
mod disk;
mod reclaim_disk;

use crate::base::clock::{self, Instant};
use crate::base::metrics::{Metrics, metric_set};
use crate::base::panics::PanicScope;
use crate::base::{ScopedTask, error_chain, spawn_scoped};
use crate::images::gc::ImageFilesystems;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, PodUid};
use crate::node::active_pods::active_pods;
use crate::node::reclaim::Reclaim;
use crate::node::stats::Stats;
use crate::node::stats::api::PodStats;
use crate::pods::pod_config::SourcesReadyReader;
use crate::pods::pod_sync::syncer::TerminationReason;
use crate::pods::pod_workers::{PodWorkers, UpdatePodOptions};
use crate::state::events::{Annotations, EventRecorder, EventType, ObjectRef};
use crate::state::node_pressure::NodePressureWriter;
use crate::state::pod_manager::PodManager;
use decide::{EvictionState, HARD_GRACE};
use measurements::{Measurements, take_ended};
use observe::{MeasuredPaths, MeasuredSignals};
use rank::{Candidate, DiskLayout, FilesOnDisk};
use reclaim_disk::DiskReclaim;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use terminating::TerminatingEvictions;
use thresholds::{EvictionResource, EvictionSignal, EvictionThreshold};
use tokio::time::sleep;

/// How long after its grace period an evicted pod may take to be cleaned up (upstream's `podCleanupTimeout`).
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after the start at which disk space is reclaimed although a source has not delivered.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which pods with limits on local storage are measured.
const LOCAL_STORAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum interval of measurements while evicted pods terminate, a disk is being freed or usage is being read.
const MAX_EVICTING_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum interval of measurements while a disk does not respond.
const MAX_DISK_HANGS_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after an attempt that found nothing to reclaim and no pod to evict, and after a failed request for the
/// runtime's image directories.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// The configuration.
#[derive(Clone, Debug)]
pub struct EvictionSettings {
    /// The node's name.
    pub node_name: String,
    /// `evictionHard` and `evictionSoft`.
    pub thresholds: Vec<EvictionThreshold>,
    /// `evictionPressureTransitionPeriod`.
    pub transition: Duration,
    /// The longest grace period in a soft eviction, seconds; `None` for that of each pod.
    pub max_grace: Option<i64>,
    /// Whether ephemeral-storage and emptyDir limits are enforced.
    pub local_storage: bool,
}

/// The dependencies of the eviction manager.
pub struct EvictionDeps {
    /// The kubelet's directory.
    pub root: PathBuf,
    /// Whether cgroup v2 is used.
    pub cgroup_v2: bool,
    /// The cgroup of all pods, where they have one.
    pub pods_cgroup: Option<String>,
    /// Removes dead containers and unused images.
    pub reclaim: Arc<Reclaim>,
    /// The resource usage of pods.
    pub stats: Stats,
    /// Whether all desired pods are known.
    pub sources: SourcesReadyReader,
    /// The desired pods.
    pub pod_manager: PodManager,
    /// Stops evicted pods.
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
    /// Disk space is being reclaimed, or terminating pods will free enough.
    InProgress,
    /// There was nothing to reclaim and no pod to evict.
    NothingToDo,
}

/// A running measurement of the disk usage of pods.
type DiskUsage = ScopedTask<Option<PodUsage>>;

/// The resource usage of pods.
struct PodUsage {
    /// The pods that were active before the measurement, and whether each ran: the usage of a pod that started since is
    /// unknown, and a pod with unknown usage is evicted first.
    pods: Vec<(Arc<Pod>, bool)>,
    stats: Vec<PodStats>,
}

/// Evicts pods.
pub struct EvictionManager {
    settings: EvictionSettings,
    deps: EvictionDeps,
    state: EvictionState,
    measurements: Measurements,
    disk: DiskReclaim,
    metrics: EvictionMetrics,
    terminating: TerminatingEvictions,
    /// When to retry for a signal, after an attempt that found nothing to do.
    retry_after: HashMap<EvictionSignal, Instant>,
    local_storage_due: Instant,
    /// The running measurement for limits on local storage.
    local_storage_usage: Option<DiskUsage>,
    started: Instant,
}

metric_set! {
    struct EvictionMetrics {
        evictions: Counter["eviction_signal"] = "kubelet_evictions",
            "Cumulative number of pod evictions by eviction signal";
    }
}

impl EvictionManager {
    /// A manager that has measured nothing yet. It starts a task, so it needs an async runtime.
    pub fn new(settings: EvictionSettings, deps: EvictionDeps, metrics: &Metrics) -> Self {
        let paths = MeasuredPaths {
            root: deps.root.clone(),
            images: None,
            cgroup_v2: deps.cgroup_v2,
            pods: deps.pods_cgroup.clone(),
        };
        Self {
            measurements: Measurements::new(
                paths,
                image_filesystems(deps.reclaim.clone()),
                observe::disks,
            ),
            disk: DiskReclaim::default(),
            settings,
            deps,
            state: EvictionState::default(),
            metrics: EvictionMetrics::register(metrics),
            terminating: TerminatingEvictions::default(),
            retry_after: HashMap::new(),
            local_storage_due: clock::instant() + LOCAL_STORAGE_INTERVAL,
            local_storage_usage: None,
            started: clock::instant(),
        }
    }

    /// Works without an end.
    pub async fn run(mut self) {
        loop {
            let delay = self.step().await;
            sleep(delay).await;
        }
    }

    /// Measures, and evicts at most one pod (upstream's `synchronize`). Returns the delay until the next call.
    async fn step(&mut self) -> Duration {
        // Before the measurement: the usage of a pod that ends after this is not subtracted from it yet.
        self.remove_terminated();
        let measured = self.measurements.measure().await;
        let (thresholds, transition) = (&self.settings.thresholds, self.settings.transition);
        let observed = &measured.observations;
        let found = self.state.observe(thresholds, observed, transition, clock::instant());
        self.deps.pressure.send_if_modified(|known| {
            let changed = *known != found.pressure;
            *known = found.pressure;
            changed
        });
        self.disk.observe(observed, &found.act_on);
        if self.evict_over_limits(measured.layout) {
            return found.next_in.min(MAX_EVICTING_INTERVAL);
        }
        let mut next_in = found.next_in.min(self.longest_interval());
        for threshold in &found.act_on {
            let on_disk = threshold.signal.resource().is_on_disk();
            if on_disk && !self.may_free_disks() || self.is_backing_off(threshold) {
                continue;
            }
            let outcome = if on_disk {
                self.reclaim_disk(threshold, &found.act_on, &measured)
            } else {
                self.reclaim(threshold, &measured).await
            };
            match outcome {
                ReclaimOutcome::Reclaimed => return next_in.min(MAX_EVICTING_INTERVAL),
                ReclaimOutcome::InProgress => next_in = next_in.min(MAX_EVICTING_INTERVAL),
                ReclaimOutcome::NothingToDo => {
                    let next = clock::instant() + RETRY_DELAY;
                    self.retry_after.insert(threshold.signal, next);
                }
            }
        }
        next_in
    }

    /// Upper limit of the interval while the end of a background measurement has to be noticed.
    fn longest_interval(&self) -> Duration {
        if self.local_storage_usage.is_some() || !self.measurements.paths_are_known() {
            MAX_EVICTING_INTERVAL
        } else if self.measurements.waits_for_disks() {
            MAX_DISK_HANGS_INTERVAL
        } else {
            Duration::MAX
        }
    }

    /// Whether disk space may be reclaimed: unused images are known only once all desired pods are.
    fn may_free_disks(&self) -> bool {
        let pods_are_known =
            self.deps.sources.all_delivered() || clock::since(self.started) > SOURCES_TIMEOUT;
        pods_are_known && self.measurements.paths_are_known()
    }

    /// Whether the last attempt for this threshold found nothing to do and the retry is not due yet.
    fn is_backing_off(&self, threshold: &EvictionThreshold) -> bool {
        let next = self.retry_after.get(&threshold.signal);
        next.is_some_and(|next| clock::instant() < *next)
    }

    fn remove_terminated(&mut self) {
        let workers = &self.deps.workers;
        let ended = |pod: &Pod| workers.should_pod_be_finished(&pod.uid());
        for pod in self.terminating.update_deadlines(clock::instant(), ended) {
            tracing::warn!(pod = %pod.log_name(), podUID = %pod.uid(), "Eviction manager: timed out waiting for pods to be cleaned up");
        }
    }

    /// Reclaims memory or processes: evicts a pod.
    async fn reclaim(
        &mut self,
        threshold: &EvictionThreshold,
        measured: &MeasuredSignals,
    ) -> ReclaimOutcome {
        let resource = threshold.signal.resource();
        // Bypasses the cache, because the pod that uses up the memory may grow fast.
        let pods = self.pods_to_measure();
        let stats = self.deps.stats.read_pod_usage().await;
        let usage = stats.map(|stats| PodUsage { pods, stats });
        let Some(candidates) = self.candidates(usage, resource) else {
            return ReclaimOutcome::InProgress;
        };
        if !self.terminating.is_empty() {
            self.shorten_grace(threshold);
            // The node is measured after the usage of terminating pods. Memory that they free in between counts twice,
            // which only delays an eviction; in the other order it would not count at all, and one pod too many would
            // be evicted.
            let expected = self.terminating.expected_to_free(resource);
            let now = self.measurements.memory_and_pids().await;
            if !decide::is_met_after_reclaim(threshold, &now, expected) {
                return ReclaimOutcome::InProgress;
            }
        }
        self.report_attempt(resource);
        self.evict_first(candidates, threshold, measured)
    }

    /// Evicts the first pod of the ranking that is not critical.
    fn evict_first(
        &mut self,
        mut candidates: Vec<Candidate>,
        threshold: &EvictionThreshold,
        measured: &MeasuredSignals,
    ) -> ReclaimOutcome {
        let files = FilesOnDisk::of(threshold.signal, measured.layout);
        rank::rank(&mut candidates, threshold.signal, files);
        for candidate in candidates {
            if candidate.pod.is_critical() {
                tracing::error!(pod = %candidate.pod.log_name(), "Eviction manager: cannot evict a critical pod");
                continue;
            }
            let observed = measured.observations.get(&threshold.signal).copied();
            let cause = EvictionCause {
                message: rank::message(&candidate, threshold, observed),
                annotations: rank::annotations(&candidate, threshold.signal.resource()),
                disruption: true,
                signal: threshold.signal.as_str(),
            };
            let own = candidate.pod.termination_grace_seconds();
            let grace = decide::grace(threshold, self.settings.max_grace, own);
            let grace = self.evict(&candidate.pod, grace, cause);
            self.expect_freed(candidate, grace);
            return ReclaimOutcome::Reclaimed;
        }
        tracing::info!("Eviction manager: unable to evict any pods from the node");
        ReclaimOutcome::NothingToDo
    }

    fn report_attempt(&self, resource: EvictionResource) {
        tracing::info!(resourceName = resource.as_str(), "Attempting to reclaim");
        let node = ObjectRef::node(&self.settings.node_name);
        let text = format!("Attempting to reclaim {}", resource.as_str());
        let events = &self.deps.events;
        events.warning(&node, "EvictionThresholdMet", text);
    }

    /// The active pods, and whether each may be running; all may until the runtime was listed.
    fn pods_to_measure(&self) -> Vec<(Arc<Pod>, bool)> {
        let cache = &self.deps.reclaim.cache;
        let was_listed = cache.runtime_listed().is_some();
        let pods = active_pods(&self.deps.pod_manager, &self.deps.workers).into_iter();
        let with_state = |pod: Arc<Pod>| {
            let status = was_listed.then(|| cache.latest(&pod.uid()));
            (pod, status.is_none_or(|status| status.may_be_running()))
        };
        pods.map(with_state).collect()
    }

    /// Starts a measurement of the disk usage of pods, in a task, because it walks directories and calls the runtime.
    fn read_disk_usage(&self) -> DiskUsage {
        self.deps.stats.invalidate();
        let stats = self.deps.stats.clone();
        let pods = self.pods_to_measure();
        let reading = async move {
            let stats = stats.summary(false).await?.pods;
            Some(PodUsage { pods, stats })
        };
        spawn_scoped(PanicScope::Stats, reading)
    }

    /// The active pods that are not being evicted and that use some of the resource, with their usage. `None` if the
    /// usage could not be read: a ranking without it could evict the wrong pod.
    fn candidates(
        &mut self,
        usage: Option<PodUsage>,
        resource: EvictionResource,
    ) -> Option<Vec<Candidate>> {
        let Some(PodUsage { pods, stats }) = usage else {
            tracing::warn!("Eviction manager: failed to get summary stats");
            return None;
        };
        let usage = stats.into_iter();
        let mut usage: HashMap<PodUid, PodStats> =
            usage.map(|pod| (PodUid::from(pod.pod_ref.uid.as_str()), pod)).collect();
        self.terminating.update(&usage);
        let cache = &self.deps.reclaim.cache;
        let was_listed = cache.runtime_listed().is_some();
        let active = active_pods(&self.deps.pod_manager, &self.deps.workers);
        let active: HashSet<PodUid> = active.iter().map(|pod| pod.uid()).collect();
        let candidates = pods.into_iter().filter_map(|(pod, ran_before)| {
            let uid = pod.uid();
            if !active.contains(&uid) || self.terminating.contains(&uid) {
                return None;
            }
            let usage = usage.remove(&uid);
            let candidate = Candidate { pod, usage };
            let settled = cache.try_settled(&uid).filter(|_| was_listed);
            let can_free = rank::can_free(&candidate, ran_before, settled.as_deref(), resource);
            can_free.then_some(candidate)
        });
        Some(candidates.collect())
    }

    /// Evicts the pods that exceed their limits on local storage (upstream's `localStorageEviction`). Returns whether
    /// any pod was evicted, because the space that it frees may be enough for the thresholds.
    fn evict_over_limits(&mut self, layout: DiskLayout) -> bool {
        let workers = self.deps.workers.clone();
        let limited = |pod: &Arc<Pod>| {
            let is_stopping = workers.is_pod_termination_requested(&pod.uid());
            !is_stopping && !pod.is_critical() && local_storage::has_limits(pod)
        };
        if self.local_storage_usage.is_none() && self.local_storage_due <= clock::instant() {
            self.local_storage_due = clock::instant() + LOCAL_STORAGE_INTERVAL;
            let pods = active_pods(&self.deps.pod_manager, &self.deps.workers);
            if self.settings.local_storage && pods.iter().any(limited) {
                self.local_storage_usage = Some(self.read_disk_usage());
            }
        }
        let Some(usage) = take_ended(&mut self.local_storage_usage) else {
            return false;
        };
        let candidates = self.candidates(usage.flatten(), EvictionResource::Disk);
        let mut any = false;
        for candidate in candidates.into_iter().flatten() {
            if let Some((signal, message)) =
                local_storage::excess(&candidate, layout).filter(|_| limited(&candidate.pod))
            {
                let cause = EvictionCause {
                    message,
                    annotations: Annotations::new(),
                    disruption: false,
                    signal,
                };
                let grace = self.evict(&candidate.pod, HARD_GRACE, cause);
                self.expect_freed(candidate, grace);
                any = true;
            }
        }
        any
    }

    /// Records that the resources of an evicted pod will be freed, until some time after its grace period (seconds).
    fn expect_freed(&mut self, candidate: Candidate, grace: i64) {
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let until = clock::instant() + grace + CLEANUP_TIMEOUT;
        self.terminating.add(candidate, until);
    }

    /// Shortens the grace period of pods that were evicted for a soft threshold, once a hard one is met.
    fn shorten_grace(&mut self, threshold: &EvictionThreshold) {
        if threshold.grace.is_some() {
            return;
        }
        let until =
            clock::instant() + Duration::from_secs(HARD_GRACE.unsigned_abs()) + CLEANUP_TIMEOUT;
        for pod in self.terminating.shorten_grace(until) {
            tracing::info!(pod = %pod.log_name(), podUID = %pod.uid(), "Eviction manager: shortening the grace of an evicted pod");
            self.stop(pod, HARD_GRACE, String::new(), true);
        }
    }

    fn stop(&self, pod: Arc<Pod>, grace: i64, message: String, disruption: bool) {
        let reason =
            TerminationReason::Evicted { reason: event::EVICTED.to_owned(), message, disruption };
        let kill = UpdatePodOptions::kill(pod, reason).with_grace(grace);
        self.deps.workers.update_pod(kill);
    }

    /// Evicts a pod. Returns its grace period in seconds.
    fn evict(&self, pod: &Arc<Pod>, grace: i64, cause: EvictionCause) -> i64 {
        let own = pod.termination_grace_seconds();
        let grace = grace.clamp(0, own.max(HARD_GRACE));
        let message = cause.message;
        tracing::info!(pod = %pod.log_name(), podUID = %pod.uid(), reason = message, "Eviction manager: evicting pod");
        self.deps.events.record_annotated(
            &ObjectRef::pod(pod),
            EventType::Warning,
            event::EVICTED,
            message.as_str(),
            cause.annotations,
        );
        self.metrics.evictions.with([cause.signal]).inc();
        self.stop(pod.clone(), grace, message, cause.disruption);
        grace
    }
}

/// Why a pod is evicted.
struct EvictionCause {
    message: String,
    annotations: Annotations,
    /// Whether the pod gets the condition `DisruptionTarget`.
    disruption: bool,
    /// For metrics.
    signal: &'static str,
}

/// The runtime's image file systems. Retries until the runtime returns them.
async fn image_filesystems(reclaim: Arc<Reclaim>) -> ImageFilesystems {
    loop {
        match reclaim.collector.image_filesystems().await {
            Ok(filesystems) => return filesystems,
            Err(error) => {
                tracing::debug!(err = %error_chain(error.as_ref()), "Failed to get the directories of images");
            }
        }
        sleep(RETRY_DELAY).await;
    }
}
