//! Metrics of this process: its build, its node, its log.

use crate::base::metrics::{AtScrape, Metrics};
use crate::base::panics;
use crate::config::logging::LogControl;
use crate::config::{COMMIT, FeatureGate, KUBERNETES_VERSION, NODE_VERSION};
use crate::host::go_architecture;

/// Registers the metrics.
pub(super) fn register(node_name: &str, cgroup_v2: bool, metrics: &Metrics) {
    let always =
        |labels: Vec<(&'static str, String)>| AtScrape::gauge(move || vec![(labels.clone(), 1.0)]);
    metrics.register(
        "kubelet_node_name",
        "The node's name. The count is always 1.",
        always(vec![("node", node_name.to_owned())]),
    );
    let (major, minor) =
        KUBERNETES_VERSION.trim_start_matches('v').split_once('.').unwrap_or_default();
    metrics.register(
        "kubernetes_build_info",
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        always(vec![
            ("major", major.to_owned()),
            ("minor", minor.to_owned()),
            ("git_version", NODE_VERSION.to_owned()),
            ("git_commit", COMMIT.unwrap_or_default().to_owned()),
            ("git_tree_state", String::new()),
            ("build_date", String::new()),
            ("go_version", String::new()),
            ("compiler", "rustc".to_owned()),
            ("platform", format!("{}/{}", std::env::consts::OS, go_architecture())),
        ]),
    );
    let version = if cgroup_v2 { 2.0 } else { 1.0 };
    metrics.register(
        "kubelet_cgroup_version",
        "cgroup version on the hosts.",
        AtScrape::number(move || version),
    );
    metrics.register(
        "kubelet_panics_total",
        "Number of panics by what they were part of. Each is a defect of this program that ended this one thing.",
        AtScrape::counter(|| {
            let sample = |(place, count)| (vec![("where", String::from(place))], count as f64);
            panics::counts().map(sample).collect()
        }),
    );
}

/// Registers the metric of the feature gates that have an effect here.
pub(super) fn feature_gates(is_on: impl Fn(FeatureGate) -> bool, metrics: &Metrics) {
    let samples = FeatureGate::ALL.iter().map(|gate| {
        let labels = vec![("name", gate.name().to_owned()), ("stage", gate.stage().to_owned())];
        (labels, f64::from(u8::from(is_on(*gate))))
    });
    let samples: Vec<_> = samples.collect();
    metrics.register(
        "kubernetes_feature_enabled",
        "This metric records the data about the stage and enablement of a k8s feature.",
        AtScrape::gauge(move || samples.clone()),
    );
}

/// Registers the metrics of the kubelet's own log.
pub(super) fn log(metrics: &Metrics, log: LogControl) {
    metrics.register(
        "kubelet_log_lines_dropped_total",
        "Number of lines of the kubelet's log that were dropped because they were not read in time.",
        AtScrape::counter(move || {
            #[expect(clippy::cast_precision_loss, reason = "a count of lines")]
            let dropped = log.dropped() as f64;
            vec![(Vec::new(), dropped)]
        }),
    );
}
