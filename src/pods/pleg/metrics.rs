//! The metric families of the PLEG, named as upstream names them.

use crate::base::clock::{self, Instant};
use crate::base::metrics::{AtScrape, DEFAULT_BUCKETS, Metrics, ScrapeSample, metric_set};
use crate::model::ContainerState;
use crate::state::pod_cache::PodCache;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

metric_set! {
    /// Handles to the metrics.
    pub struct PlegMetrics {
        duration: Histogram(DEFAULT_BUCKETS) = "kubelet_pleg_relist_duration_seconds",
            "Duration in seconds for relisting pods in PLEG.";
        pod_duration: Histogram(DEFAULT_BUCKETS) = "kubelet_pleg_pod_relist_duration_seconds",
            "Duration in seconds of reading one sandbox or container again in PLEG (upstream: of one pod).";
        interval: Histogram(DEFAULT_BUCKETS) = "kubelet_pleg_relist_interval_seconds",
            "Interval in seconds between relisting in PLEG.";
        last_seen: Gauge = "kubelet_pleg_last_seen_seconds",
            "Timestamp in seconds when PLEG was last seen active.";
    } and {
        last: Arc<Mutex<Option<Instant>>>;
    }
}

impl PlegMetrics {
    /// Registers the families, and those that count what the cache has.
    pub fn new(metrics: &Metrics, cache: &PodCache) -> Self {
        let (pods, containers) = (cache.clone(), cache.clone());
        metrics.register(
            "kubelet_running_pods",
            "Number of pods that have a running pod sandbox",
            AtScrape::number(move || running_pods(&pods)),
        );
        metrics.register(
            "kubelet_running_containers",
            "Number of containers currently running",
            AtScrape::gauge(move || by_state(&containers)),
        );
        Self::register(metrics)
    }

    /// A list begins now.
    pub(super) fn relist_started(&self) -> Instant {
        let now = clock::instant();
        if let Some(before) = self.last.lock().replace(now) {
            self.interval.observe(now.duration_since(before).as_secs_f64());
        }
        now
    }

    /// The list that began then is complete.
    pub(super) fn relist_ended(&self, started_at: Instant) {
        self.duration.observe(clock::since(started_at).as_secs_f64());
        self.last_seen.set(clock::timestamp().as_second());
    }

    /// One item was read again.
    pub(super) fn item_read(&self, took: Duration) {
        self.pod_duration.observe(took.as_secs_f64());
        self.last_seen.set(clock::timestamp().as_second());
    }
}

fn running_pods(cache: &PodCache) -> f64 {
    let pods = cache.pods();
    let running = pods.iter().filter(|pod| pod.ready_sandboxes().next().is_some());
    running.count() as f64
}

fn by_state(cache: &PodCache) -> Vec<ScrapeSample> {
    let states = [
        ("created", ContainerState::Created),
        ("exited", ContainerState::Exited),
        ("running", ContainerState::Running),
        ("unknown", ContainerState::Unknown),
    ];
    let pods = cache.pods();
    let count = |state| {
        let containers = pods.iter().flat_map(|pod| &pod.containers);
        containers.filter(|container| container.state == state).count() as f64
    };
    let sample = |(name, state): (&str, ContainerState)| {
        (vec![("container_state", name.to_owned())], count(state))
    };
    states.map(sample).into_iter().filter(|(_, count)| *count > 0.0).collect()
}
