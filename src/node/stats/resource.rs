//! `/metrics/resource`, for metrics-server, with the names, labels and timestamps of upstream's
//! `pkg/kubelet/metrics/collectors/resource_metrics.go`. Pure.

use super::api::{
    ContainerStats, CpuStats, MemoryStats, NodeStats, PodStats, Summary, SwapStats, Time,
};
use super::text::MetricKind::{self, Counter, Gauge};
use super::text::{LabelText, MetricValue, Text};

/// The response; without a summary only the error metric.
pub(super) fn text(summary: Option<&Summary>) -> String {
    let mut text = Text::default();
    if let Some(summary) = summary {
        let labelled = LabelledStats::of(summary);
        write(&mut text, NODE, &[(String::new(), &summary.node)]);
        write(&mut text, CONTAINERS, &labelled.containers);
        write(&mut text, PODS, &labelled.pods);
    }
    let name = "resource_scrape_error";
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    text.head(name, help, Gauge);
    text.sample(name, "", &[], MetricValue::Whole(summary.is_none().into()), None);
    text.take()
}

/// Pods and containers with their metric labels.
struct LabelledStats<'a> {
    pods: Vec<(String, &'a PodStats)>,
    containers: Vec<(String, &'a ContainerStats)>,
}

impl<'a> LabelledStats<'a> {
    fn of(summary: &'a Summary) -> Self {
        let mut labelled = Self {
            pods: Vec::with_capacity(summary.pods.len()),
            containers: Vec::with_capacity(summary.pods.len()),
        };
        for pod in &summary.pods {
            let pod_ref = &pod.pod_ref;
            let of = |labels: LabelText| {
                labels.and("namespace", &pod_ref.namespace).and("pod", &pod_ref.name).finish()
            };
            labelled.pods.push((of(LabelText::default()), pod));
            for container in &pod.containers {
                let labels = LabelText::default().and("container", &container.name);
                labelled.containers.push((of(labels), container));
            }
        }
        labelled
    }
}

type ResourceSample = Option<(MetricValue, Option<i64>)>;

fn cpu(stats: Option<&CpuStats>) -> ResourceSample {
    let stats = stats?;
    at(stats.time, MetricValue::Nanos(stats.usage_core_nano_seconds?))
}

fn memory(stats: Option<&MemoryStats>) -> ResourceSample {
    let stats = stats?;
    at(stats.time, MetricValue::Whole(stats.working_set_bytes?))
}

fn swap(stats: Option<&SwapStats>) -> ResourceSample {
    let stats = stats?;
    at(stats.time, MetricValue::Whole(stats.swap_usage_bytes?))
}

fn swap_limit(stats: Option<&SwapStats>) -> ResourceSample {
    let stats = stats?;
    let used = stats.swap_usage_bytes.unwrap_or_default();
    let limit = stats.swap_available_bytes?.saturating_add(used);
    at(stats.time, MetricValue::Whole(limit))
}

fn started(container: &ContainerStats) -> ResourceSample {
    let nanos = u64::try_from(container.start_time.0).ok();
    Some((MetricValue::Nanos(nanos.filter(|nanos| *nanos > 0)?), None))
}

fn at(time: Time, value: MetricValue) -> ResourceSample {
    Some((value, Some(time.0)))
}

/// A metric family: name, help text, type, and the sample of an entity.
type ResourceFamily<T> = (&'static str, &'static str, MetricKind, fn(&T) -> ResourceSample);

#[rustfmt::skip] // One line per family reads best.
const NODE: &[ResourceFamily<NodeStats>] = &[
    ("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", Counter, |node| cpu(node.cpu.as_ref())),
    ("node_memory_working_set_bytes", "Current working set of the node in bytes", Gauge, |node| memory(node.memory.as_ref())),
    ("node_swap_usage_bytes", "Current swap usage of the node in bytes. Reported only on non-windows systems", Gauge, |node| swap(node.swap.as_ref())),
];

#[rustfmt::skip]
const CONTAINERS: &[ResourceFamily<ContainerStats>] = &[
    ("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", Counter, |container| cpu(container.cpu.as_ref())),
    ("container_memory_working_set_bytes", "Current working set of the container in bytes", Gauge, |container| memory(container.memory.as_ref())),
    ("container_start_time_seconds", "Start time of the container since unix epoch in seconds", Gauge, started),
    ("container_swap_limit_bytes", "Current amount of the container swap limit in bytes. Reported only on non-windows systems", Gauge, |container| swap_limit(container.swap.as_ref())),
    ("container_swap_usage_bytes", "Current amount of the container swap usage in bytes. Reported only on non-windows systems", Gauge, |container| swap(container.swap.as_ref())),
];

#[rustfmt::skip]
const PODS: &[ResourceFamily<PodStats>] = &[
    ("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", Counter, |pod| cpu(pod.cpu.as_ref())),
    ("pod_memory_working_set_bytes", "Current working set of the pod in bytes", Gauge, |pod| memory(pod.memory.as_ref())),
    ("pod_swap_usage_bytes", "Current amount of the pod swap usage in bytes. Reported only on non-windows systems", Gauge, |pod| swap(pod.swap.as_ref())),
];

/// Writes the families of entities, which have labels. A family without samples is left out.
fn write<T>(text: &mut Text, families: &[ResourceFamily<T>], entities: &[(String, &T)]) {
    for (name, help, kind, sample) in families {
        let mut header_written = false;
        for (labels, entity) in entities {
            if let Some((value, at)) = sample(entity) {
                if !std::mem::replace(&mut header_written, true) {
                    text.head(name, help, *kind);
                }
                text.sample(name, labels, &[], value, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::stats::api::PodReference;

    #[test]
    fn the_text_is_upstreams_and_unknown_values_are_left_out() {
        let container = |name: &str, cpu: Option<u64>| ContainerStats {
            name: name.into(),
            start_time: Time(1_500_000_000),
            cpu: Some(CpuStats {
                time: Time(2_000_000_000),
                usage_core_nano_seconds: cpu,
                ..CpuStats::default()
            }),
            swap: Some(SwapStats {
                time: Time(2_000_000_000),
                swap_available_bytes: Some(u64::MAX),
                swap_usage_bytes: Some(1),
            }),
            ..ContainerStats::default()
        };
        let pod = PodStats {
            pod_ref: PodReference { name: "p\"".into(), namespace: "n".into(), uid: "u".into() },
            containers: vec![container("a", Some(2_500_000_000)), container("b", None)],
            ..PodStats::default()
        };
        let summary = Summary { pods: vec![pod], ..Summary::default() };
        let expected = r#"# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="a",namespace="n",pod="p\""} 2.5 2000
# HELP container_start_time_seconds Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="a",namespace="n",pod="p\""} 1.5
container_start_time_seconds{container="b",namespace="n",pod="p\""} 1.5
"#;
        let text = text(Some(&summary));
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("container_swap_limit_bytes{container=\"b\",namespace=\"n\",pod=\"p\\\"\"} 18446744073709551615 2000\n"), "{text}");
        assert!(text.ends_with("# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n"));
    }

    #[test]
    fn without_a_summary_the_error_is_all_there_is() {
        let text = text(None);
        assert_eq!(
            text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>(),
            ["resource_scrape_error 1"]
        );
    }
}
