//! Metrics of how long a new node takes until it is ready.
//!
//! Upstream: `pkg/kubelet/util/node_startup_latency_tracker.go`.

use crate::base::clock::{self, Instant};
use crate::base::metrics::{Metrics, SecondsGauge, metric_set};
use crate::host::proc::process_start;
use crate::node::node_status::READY;
use k8s_openapi::api::core::v1::Node;
use std::time::Duration;

/// Follows a node from the start of the machine until it is ready for the first time. Only of a node that this process
/// has registered; else the gauges stay at zero, as upstream's.
pub struct StartupLatency {
    /// From the start of the machine to that of the process.
    after_boot: Duration,
    started_at: Instant,
    attempted_at: Option<Instant>,
    registered_at: Option<Instant>,
    is_ready: bool,
    metrics: StartupMetrics,
}

metric_set! {
    struct StartupMetrics {
        total: SecondsGauge = "kubelet_node_startup_duration_seconds",
            "Duration in seconds of node startup in total.";
        before_start: SecondsGauge = "kubelet_node_startup_pre_kubelet_duration_seconds",
            "Duration in seconds of node startup before kubelet starts.";
        before_registration: SecondsGauge = "kubelet_node_startup_pre_registration_duration_seconds",
            "Duration in seconds of node startup before registration.";
        registration: SecondsGauge = "kubelet_node_startup_registration_duration_seconds",
            "Duration in seconds of node startup during registration.";
        after_registration: SecondsGauge = "kubelet_node_startup_post_registration_duration_seconds",
            "Duration in seconds of node startup after registration.";
    }
}

impl StartupLatency {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self::of(process_start(), metrics)
    }

    /// Of a process that started so long after the machine, and so long ago.
    fn of([after_boot, age]: [Duration; 2], metrics: &Metrics) -> Self {
        let now = clock::instant();
        Self {
            after_boot,
            started_at: now.checked_sub(age).unwrap_or(now),
            attempted_at: None,
            registered_at: None,
            is_ready: false,
            metrics: StartupMetrics::register(metrics),
        }
    }

    /// The node is about to be registered; only the first try counts.
    pub(super) fn attempted(&mut self) {
        self.attempted_at.get_or_insert_with(clock::instant);
    }

    /// This process has registered the node.
    pub(super) fn registered(&mut self) {
        self.registered_at.get_or_insert_with(clock::instant);
    }

    /// The API server has the node like this; only the first time that it is ready counts.
    pub(super) fn reported(&mut self, node: &Node) {
        if !self.is_ready && is_ready(node) {
            self.ready();
        }
    }

    fn ready(&mut self) {
        let (Some(attempted_at), Some(registered_at)) = (self.attempted_at, self.registered_at)
        else {
            return;
        };
        self.is_ready = true;
        let now = clock::instant();
        let metrics = &self.metrics;
        let set = |gauge: &SecondsGauge, took: Duration| gauge.set(took.as_secs_f64());
        set(&metrics.before_start, self.after_boot);
        set(&metrics.before_registration, attempted_at - self.started_at);
        set(&metrics.registration, registered_at - attempted_at);
        set(&metrics.after_registration, now - registered_at);
        set(&metrics.total, self.after_boot + (now - self.started_at));
    }
}

/// Whether the API server has the node as ready.
pub(super) fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == READY && one.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(metrics: &Metrics, part: &str) -> f64 {
        let text = metrics.text();
        let name = format!("kubelet_node_startup_{part}duration_seconds ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap().parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn each_part_of_the_first_start_of_a_registered_node_is_shown() {
        let metrics = Metrics::new();
        let condition = json!({"type": "Ready", "status": "True"});
        let ready = serde_json::from_value(json!({"status": {"conditions": [condition]}})).unwrap();
        let times = [Duration::from_secs(100), Duration::from_secs(16)];
        let mut startup = StartupLatency::of(times, &metrics);
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        pass(1).await;
        startup.reported(&ready);
        assert_eq!(sample(&metrics, "post_registration_"), 0.0);
        startup.attempted();
        pass(2).await;
        startup.attempted();
        startup.registered();
        startup.reported(&Node::default());
        pass(4).await;
        startup.reported(&ready);
        pass(8).await;
        startup.reported(&ready);
        assert_eq!(sample(&metrics, "pre_kubelet_"), 100.0);
        assert_eq!(sample(&metrics, "pre_registration_"), 17.0);
        assert_eq!(sample(&metrics, "registration_"), 2.0);
        assert_eq!(sample(&metrics, "post_registration_"), 4.0);
        assert_eq!(sample(&metrics, ""), 123.0);
    }
}
