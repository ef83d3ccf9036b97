//! Validates a complete configuration; reports all violations at once.
//!
//! Upstream: `pkg/kubelet/apis/config/validation`. Three checks are stricter: ports must differ, durations must not
//! be negative, and eviction values are parsed here and not when first used.

mod images;
mod nodes;
mod pods;

use std::net::IpAddr;

use super::kubelet_configuration::KubeletConfiguration;
use super::{known_gates, kubelet_configuration as kc};
use crate::base::GoDuration;
use crate::model::Quantity;

/// Collects violations as pairs of field and message.
#[derive(Debug, Default)]
pub(super) struct Violations {
    found: Vec<(String, String)>,
}

impl Violations {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.found.push((field.to_owned(), message.into()));
    }

    fn require(&mut self, holds: bool, field: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.add(field, message());
        }
    }

    fn in_range<T>(&mut self, field: &str, value: Option<T>, low: T, high: T)
    where
        T: PartialOrd + Copy + std::fmt::Display,
    {
        if let Some(value) = value.filter(|v| *v < low || *v > high) {
            self.add(field, format!("must be between {low} and {high}, got {value}"));
        }
    }

    fn at_least<T>(&mut self, field: &str, value: Option<T>, low: T)
    where
        T: PartialOrd + Copy + std::fmt::Display,
    {
        if let Some(value) = value.filter(|v| *v < low) {
            self.add(field, format!("must be {low} or greater, got {value}"));
        }
    }

    fn one_of(&mut self, field: &str, value: Option<&String>, allowed: &[&str]) {
        if let Some(value) = value.filter(|v| !allowed.contains(&v.as_str())) {
            // An empty text, where it is allowed, is a way not to choose.
            let choices = allowed.iter().filter(|choice| !choice.is_empty());
            let choices = choices.copied().collect::<Vec<_>>().join(", ");
            self.add(field, format!("must be one of {choices}; got {value:?}"));
        }
    }

    fn quantity(&mut self, field: &str, text: &str) -> Option<i64> {
        match Quantity::parse(text) {
            Ok(value) if value.is_negative() => {
                self.add(field, format!("must not be negative, got {text:?}"));
            }
            Ok(value) => return Some(value.value()),
            Err(error) => self.add(field, error.to_string()),
        }
        None
    }
}

/// Validates a configuration with defaults; returns pairs of field and message.
pub(super) fn validate(config: &KubeletConfiguration) -> Vec<(String, String)> {
    let mut found = Violations::default();
    addresses(config, &mut found);
    durations(config, &mut found);
    images::check(config, &mut found);
    endpoints(config, &mut found);
    limits(config, &mut found);
    container_logs(config, &mut found);
    logging(config, &mut found);
    feature_gate_names(config, &mut found);
    pods::check(config, &mut found);
    nodes::check(config, &mut found);
    found.found
}

fn ip(field: &str, text: Option<&String>, found: &mut Violations) -> Option<IpAddr> {
    let text = text?;
    let parsed = text.parse().ok();
    found.require(parsed.is_some(), field, || format!("must be an IP address, got {text:?}"));
    parsed
}

fn addresses(config: &KubeletConfiguration, found: &mut Violations) {
    let address = ip("address", config.address.as_ref(), found);
    let healthz = ip("healthzBindAddress", config.healthz_bind_address.as_ref(), found);
    for (index, server) in config.cluster_dns.iter().flatten().enumerate() {
        ip(&format!("clusterDNS[{index}]"), Some(server), found);
    }
    let fits = |port: i32| u16::try_from(port).is_ok();
    found.in_range("port", config.port, 1, 65535);
    for (field, port) in
        [("readOnlyPort", config.read_only_port), ("healthzPort", config.healthz_port)]
    {
        let port = port.filter(|port| !fits(*port));
        if let Some(port) = port {
            found.add(
                field,
                format!("must be between 1 and 65535, or 0 to turn it off; got {port}"),
            );
        }
    }
    let served = config.port.filter(|_| config.enable_server != Some(false));
    let used = [
        ("port", served, address),
        ("readOnlyPort", config.read_only_port, address),
        ("healthzPort", config.healthz_port, healthz),
    ];
    for (index, (field, port, at)) in used.iter().enumerate() {
        for (other, other_port, other_at) in used.iter().take(index) {
            if port == other_port && port.is_some_and(|p| p != 0) && overlap(*at, *other_at) {
                found.add(field, format!("must differ from {other}: both would listen there"));
            }
        }
    }
}

/// Whether listening on one port on both addresses fails.
fn overlap(a: Option<IpAddr>, b: Option<IpAddr>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
        _ => false,
    }
}

fn durations(config: &KubeletConfiguration, found: &mut Violations) {
    let no_section = kc::KubeletAuthorization::default();
    let authorization = config.authorization.as_ref().unwrap_or(&no_section);
    let webhook = authorization.webhook.clone().unwrap_or_default();
    let authentication = config.authentication.clone().unwrap_or_default();
    let cache_ttl = authentication.webhook.and_then(|webhook| webhook.cache_ttl);
    for (field, value) in [
        ("streamingConnectionIdleTimeout", config.streaming_connection_idle_timeout),
        ("nodeStatusUpdateFrequency", config.node_status_update_frequency),
        ("nodeStatusReportFrequency", config.node_status_report_frequency),
        ("imageMinimumGCAge", config.image_minimum_gc_age),
        ("imageMaximumGCAge", config.image_maximum_gc_age),
        ("cpuManagerReconcilePeriod", config.cpu_manager_reconcile_period),
        ("evictionPressureTransitionPeriod", config.eviction_pressure_transition_period),
        ("authentication.webhook.cacheTTL", cache_ttl),
        ("authorization.webhook.cacheAuthorizedTTL", webhook.cache_authorized_ttl),
        ("authorization.webhook.cacheUnauthorizedTTL", webhook.cache_unauthorized_ttl),
    ] {
        if let Some(value) = value.filter(|v| v.is_negative()) {
            found.add(field, format!("must not be negative, got {value}"));
        }
    }
    // Intervals and timeouts: a zero, which only a flag can set, would cause a busy loop or immediate timeouts.
    for (field, value) in [
        ("syncFrequency", config.sync_frequency),
        ("fileCheckFrequency", config.file_check_frequency),
        ("httpCheckFrequency", config.http_check_frequency),
        ("runtimeRequestTimeout", config.runtime_request_timeout),
    ] {
        if let Some(value) = value.filter(|v| v.as_nanos() <= 0) {
            found.add(field, format!("must be greater than 0, got {value}"));
        }
    }
}

fn endpoints(config: &KubeletConfiguration, found: &mut Violations) {
    for (field, endpoint) in [
        ("containerRuntimeEndpoint", config.container_runtime_endpoint.as_ref()),
        ("imageServiceEndpoint", config.image_service_endpoint.as_ref()),
    ] {
        let path = endpoint.map(|e| e.strip_prefix("unix://").unwrap_or(e));
        // An empty image endpoint stands for the runtime's.
        let given = path.filter(|path| !(path.is_empty() && field == "imageServiceEndpoint"));
        if let Some(path) = given.filter(|path| !path.starts_with('/') || path.contains('\0')) {
            found.add(field, format!("must be unix:// and an absolute path, got {path:?}"));
        }
    }
}

fn limits(config: &KubeletConfiguration, found: &mut Violations) {
    found.in_range("oomScoreAdj", config.oom_score_adj, -1000, 1000);
    found.in_range("iptablesDropBit", config.iptables_drop_bit, 0, 31);
    found.in_range("iptablesMasqueradeBit", config.iptables_masquerade_bit, 0, 31);
    found.at_least("eventBurst", config.event_burst, 0);
    found.at_least("eventRecordQPS", config.event_record_qps, 0);
    found.at_least("kubeAPIBurst", config.kube_api_burst, 0);
    found.at_least("kubeAPIQPS", config.kube_api_qps, 0);
    found.at_least("maxPods", config.max_pods, 0);
    found.at_least("podsPerCore", config.pods_per_core, 0);
    found.at_least("maxOpenFiles", config.max_open_files, 0);
    found.at_least("nodeStatusMaxImages", config.node_status_max_images, -1);
    found.at_least("nodeLeaseDurationSeconds", config.node_lease_duration_seconds, 1);
    let (shortest, longest) = (GoDuration::from_millis(1), GoDuration::from_secs(1));
    found.in_range("cpuCFSQuotaPeriod", config.cpu_cfs_quota_period, shortest, longest);
    let back_off = config.crash_loop_back_off.as_ref();
    found.in_range(
        "crashLoopBackOff.maxContainerRestartPeriod",
        back_off.and_then(|section| section.max_container_restart_period),
        GoDuration::from_secs(1),
        GoDuration::from_secs(300),
    );
    if let Some(factor) = config.memory_throttling_factor
        && !(factor > 0.0 && factor <= 1.0)
    {
        let message = format!("must be greater than 0 and at most 1, got {factor}");
        found.add("memoryThrottlingFactor", message);
    }
}

fn container_logs(config: &KubeletConfiguration, found: &mut Violations) {
    // A negative size disables rotation.
    if let Some(text) = &config.container_log_max_size {
        match Quantity::parse(text) {
            Ok(size) if size.value() == 0 => {
                found.add("containerLogMaxSize", "must not be 0");
            }
            Ok(_) => {}
            Err(error) => found.add("containerLogMaxSize", error.to_string()),
        }
    }
    if let Some(files) = config.container_log_max_files.filter(|files| *files <= 1) {
        found.add("containerLogMaxFiles", format!("must be greater than 1, got {files}"));
    }
    found.at_least("containerLogMaxWorkers", config.container_log_max_workers, 1);
    let interval = config.container_log_monitor_interval;
    found.at_least("containerLogMonitorInterval", interval, GoDuration::from_secs(3));
    let directory = config.pod_logs_dir.as_deref().unwrap_or_default();
    let trimmed = directory.strip_suffix('/').unwrap_or(directory);
    let normal = trimmed.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
    found.require(directory.starts_with('/'), "podLogsDir", || {
        format!("must be an absolute path, got {directory:?}")
    });
    found.require(normal, "podLogsDir", || {
        format!("must not have \"..\", \".\" or \"//\" in it, got {directory:?}")
    });
    found.require(directory.is_ascii() && !directory.contains('\0'), "podLogsDir", || {
        format!("must be plain ASCII, got {directory:?}")
    });
}

fn logging(config: &KubeletConfiguration, found: &mut Violations) {
    let Some(section) = &config.logging else {
        return;
    };
    found.one_of("logging.format", section.format.as_ref(), &["text", "json"]);
    if let Some(interval) = section.flush_frequency.filter(|interval| interval.0.is_negative()) {
        found.add("logging.flushFrequency", format!("must not be negative, got {}", interval.0));
    }
    let most = u32::try_from(i32::MAX).unwrap_or(u32::MAX);
    found.in_range("logging.verbosity", section.verbosity, 0, most);
    for (index, item) in section.vmodule.iter().flatten().enumerate() {
        let pattern = item.file_pattern.as_deref().unwrap_or_default();
        let field = format!("logging.vmodule[{index}]");
        if pattern.is_empty() || pattern.contains(['=', ',']) {
            found.add(
                &format!("{field}.filePattern"),
                format!("must be a file name or pattern without \"=\" and \",\", got {pattern:?}"),
            );
        }
        found.require(item.verbosity.is_some(), &field, || "needs a verbosity".to_owned());
    }
    let options = section.options.clone().unwrap_or_default();
    for (name, routing) in [("text", options.text), ("json", options.json)] {
        if let Some(size) = routing.and_then(|routing| routing.info_buffer_size) {
            found.quantity(&format!("logging.options.{name}.infoBufferSize"), &size);
        }
    }
}

fn feature_gate_names(config: &KubeletConfiguration, found: &mut Violations) {
    for (name, value) in config.feature_gates.iter().flatten() {
        let field = format!("featureGates.{name}");
        found.require(known_gates::is_known(name), &field, || known_gates::unknown_message(name));
        let locked = known_gates::locked_to(name).unwrap_or(*value);
        found.require(locked == *value, &field, || {
            format!("cannot set feature gate {name} to {value}, feature is locked to {locked}")
        });
    }
}
