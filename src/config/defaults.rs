//! The defaults of `KubeletConfiguration`; applied only here.
//!
//! Upstream: `pkg/kubelet/apis/config/v1beta1/defaults.go`. For fields whose Go type is not a pointer, a zero in a
//! *file* means "not set", and so it does here ([`drop_unset_zeros`]); a zero in a flag counts.

use std::collections::BTreeMap;

use super::feature_gates::FeatureGate;
use super::kubelet_configuration::*;
use crate::base::GoDuration;
use crate::base::document::{DocumentNode, DocumentValue};

/// The endpoint of containerd.
pub(super) const CONTAINER_RUNTIME_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";
/// The kubelet's root directory.
pub(super) const ROOT_DIR: &str = "/var/lib/kubelet";
/// The directory of certificates that the kubelet creates or receives.
pub(super) const CERT_DIR: &str = "/var/lib/kubelet/pki";
/// The root directory of container logs.
pub(super) const POD_LOGS_DIR: &str = "/var/log/pods";

/// Fields where an empty text or a zero in a file counts as not set.
const ZERO_IS_UNSET: &[&str] = &[
    "podLogsDir",
    "address",
    "port",
    "authorization.mode",
    "registryBurst",
    "imagePullCredentialsVerificationPolicy",
    "eventBurst",
    "healthzBindAddress",
    "nodeLeaseDurationSeconds",
    "cgroupDriver",
    "cpuManagerPolicy",
    "memoryManagerPolicy",
    "topologyManagerPolicy",
    "topologyManagerScope",
    "hairpinMode",
    "maxPods",
    "maxOpenFiles",
    "contentType",
    "kubeAPIBurst",
    "containerLogMaxSize",
    "configMapAndSecretChangeDetectionStrategy",
    "volumePluginDir",
    "logging.format",
    "memoryReservationPolicy",
    "containerRuntimeEndpoint",
];

/// Fields where a zero duration in a file counts as not set.
const ZERO_DURATION_IS_UNSET: &[&str] = &[
    "syncFrequency",
    "fileCheckFrequency",
    "httpCheckFrequency",
    "authentication.webhook.cacheTTL",
    "authorization.webhook.cacheAuthorizedTTL",
    "authorization.webhook.cacheUnauthorizedTTL",
    "streamingConnectionIdleTimeout",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "imageMinimumGCAge",
    "volumeStatsAggPeriod",
    "cpuManagerReconcilePeriod",
    "runtimeRequestTimeout",
    "evictionPressureTransitionPeriod",
];

/// Removes zero values of a file that mean "not set".
pub(super) fn drop_unset_zeros(tree: &mut DocumentNode) {
    let plain = |value: &DocumentValue| match value {
        DocumentValue::Int(number) => *number == 0,
        DocumentValue::String(text) => text.is_empty(),
        _ => false,
    };
    let duration = |value: &DocumentValue| match value {
        DocumentValue::String(text) => text.parse() == Ok(GoDuration::default()),
        _ => false,
    };
    let plain = ZERO_IS_UNSET
        .iter()
        .map(|path| (path, &plain as &dyn Fn(&DocumentValue) -> bool));
    let durations = ZERO_DURATION_IS_UNSET
        .iter()
        .map(|path| (path, &duration as _));
    for (path, is_zero) in plain.chain(durations) {
        if tree.lookup(path).is_some_and(|node| is_zero(&node.value)) {
            tree.remove(path);
        }
    }
}

fn fill<T>(field: &mut Option<T>, default: impl Into<T>) {
    field.get_or_insert_with(|| default.into());
}

/// Sets every field without a value to its default.
pub(super) fn apply(config: &mut KubeletConfiguration) {
    fill(&mut config.api_version, API_VERSION);
    fill(&mut config.kind, KIND);
    apply_sources_and_server(config);
    apply_auth(config);
    apply_images_and_events(config);
    apply_node(config);
    apply_resources(config);
    apply_pods(config);
}

fn secs(seconds: i64) -> GoDuration {
    GoDuration::from_secs(seconds)
}

fn apply_sources_and_server(config: &mut KubeletConfiguration) {
    fill(&mut config.enable_server, true);
    fill(&mut config.static_pod_path, "");
    fill(&mut config.static_pod_url, "");
    fill(&mut config.pod_logs_dir, POD_LOGS_DIR);
    fill(&mut config.sync_frequency, secs(60));
    fill(&mut config.file_check_frequency, secs(20));
    fill(&mut config.http_check_frequency, secs(20));
    fill(&mut config.address, "0.0.0.0");
    fill(&mut config.port, 10250);
    fill(&mut config.read_only_port, 0);
    fill(&mut config.rotate_certificates, false);
    fill(&mut config.server_tls_bootstrap, false);
    fill(&mut config.healthz_port, 10248);
    fill(&mut config.healthz_bind_address, "127.0.0.1");
    fill(&mut config.oom_score_adj, -999);
    fill(
        &mut config.streaming_connection_idle_timeout,
        secs(4 * 3600),
    );
    fill(&mut config.enable_debugging_handlers, true);
    fill(&mut config.enable_contention_profiling, false);
    fill(&mut config.enable_system_log_handler, true);
    fill(&mut config.enable_system_log_query, false);
    fill(&mut config.enable_profiling_handler, true);
    fill(&mut config.enable_debug_flags_handler, true);
}

fn apply_auth(config: &mut KubeletConfiguration) {
    let authentication = config.authentication.get_or_insert_default();
    fill(
        &mut authentication.anonymous.get_or_insert_default().enabled,
        false,
    );
    let webhook = authentication.webhook.get_or_insert_default();
    fill(&mut webhook.enabled, true);
    fill(&mut webhook.cache_ttl, secs(120));
    let authorization = config.authorization.get_or_insert_default();
    fill(&mut authorization.mode, "Webhook");
    let webhook = authorization.webhook.get_or_insert_default();
    fill(&mut webhook.cache_authorized_ttl, secs(300));
    fill(&mut webhook.cache_unauthorized_ttl, secs(30));
}

fn apply_images_and_events(config: &mut KubeletConfiguration) {
    fill(&mut config.registry_pull_qps, 5);
    fill(&mut config.registry_burst, 10);
    if FeatureGate::KubeletEnsureSecretPulledImages.is_on(config.feature_gates.as_ref()) {
        let policy = &mut config.image_pull_credentials_verification_policy;
        fill(policy, "NeverVerifyPreloadedImages");
    }
    fill(&mut config.event_record_qps, 50);
    fill(&mut config.event_burst, 100);
    fill(&mut config.image_minimum_gc_age, secs(120));
    fill(&mut config.image_maximum_gc_age, secs(0));
    fill(&mut config.image_gc_high_threshold_percent, 85);
    fill(&mut config.image_gc_low_threshold_percent, 80);
    // Differs from upstream: concurrent pulls, unless serial ones are configured by either field.
    let serial = config.max_parallel_image_pulls == Some(1);
    fill(&mut config.serialize_image_pulls, serial);
    fill(
        &mut config.container_runtime_endpoint,
        CONTAINER_RUNTIME_ENDPOINT,
    );
    fill(&mut config.runtime_request_timeout, secs(120));
    fill(&mut config.container_log_max_size, "10Mi");
    fill(&mut config.container_log_max_files, 5);
    fill(&mut config.container_log_max_workers, 1);
    fill(&mut config.container_log_monitor_interval, secs(10));
    fill(&mut config.logging.get_or_insert_default().format, "text");
}

fn apply_node(config: &mut KubeletConfiguration) {
    // An explicit update frequency is also the default of the report frequency, as before that field existed.
    let report = config.node_status_update_frequency.unwrap_or(secs(300));
    fill(&mut config.node_status_report_frequency, report);
    fill(&mut config.node_status_update_frequency, secs(10));
    fill(&mut config.node_lease_duration_seconds, 40);
    fill(&mut config.node_status_max_images, 50);
    fill(&mut config.max_open_files, 1_000_000);
    fill(
        &mut config.content_type,
        "application/vnd.kubernetes.protobuf",
    );
    fill(&mut config.kube_api_qps, 50);
    fill(&mut config.kube_api_burst, 100);
    fill(&mut config.register_node, true);
    fill(&mut config.volume_stats_agg_period, secs(60));
    fill(&mut config.enable_controller_attach_detach, true);
    fill(
        &mut config.volume_plugin_dir,
        "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
    );
    fill(
        &mut config.config_map_and_secret_change_detection_strategy,
        "Watch",
    );
    fill(&mut config.shutdown_grace_period, secs(0));
    fill(&mut config.shutdown_grace_period_critical_pods, secs(0));
    fill(&mut config.make_iptables_util_chains, true);
    fill(&mut config.iptables_masquerade_bit, 14);
    fill(&mut config.iptables_drop_bit, 15);
    fill(&mut config.protect_kernel_defaults, false);
    fill(&mut config.fail_swap_on, true);
    fill(&mut config.fail_cgroup_v1, true);
    fill(&mut config.local_storage_capacity_isolation, true);
    fill(&mut config.kernel_memcg_notification, false);
}

fn apply_resources(config: &mut KubeletConfiguration) {
    fill(&mut config.cgroups_per_qos, true);
    fill(&mut config.cgroup_driver, "cgroupfs");
    fill(&mut config.cpu_manager_policy, "none");
    fill(&mut config.cpu_manager_reconcile_period, secs(10));
    fill(&mut config.memory_manager_policy, "None");
    fill(&mut config.topology_manager_policy, "none");
    fill(&mut config.topology_manager_scope, "container");
    fill(&mut config.cpu_cfs_quota, true);
    fill(
        &mut config.cpu_cfs_quota_period,
        GoDuration::from_millis(100),
    );
    fill(
        &mut config.enforce_node_allocatable,
        vec!["pods".to_owned()],
    );
    fill(&mut config.merge_default_eviction_settings, false);
    fill(&mut config.eviction_pressure_transition_period, secs(300));
    fill(&mut config.eviction_max_pod_grace_period, 0);
    fill(&mut config.memory_throttling_factor, 0.9);
    fill(&mut config.memory_reservation_policy, "None");
    fill(
        &mut config.user_namespaces.get_or_insert_default().ids_per_pod,
        65536,
    );
    apply_eviction_hard(config);
}

/// The default hard eviction thresholds, unless thresholds are configured.
fn apply_eviction_hard(config: &mut KubeletConfiguration) {
    let defaults = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ]
    .map(|(signal, threshold)| (signal.to_owned(), threshold.to_owned()));
    let merge = config.merge_default_eviction_settings == Some(true);
    match &mut config.eviction_hard {
        Some(given) if merge => {
            for (signal, threshold) in defaults {
                given.entry(signal).or_insert(threshold);
            }
        }
        Some(_) => {}
        None => config.eviction_hard = Some(BTreeMap::from(defaults)),
    }
}

fn apply_pods(config: &mut KubeletConfiguration) {
    fill(&mut config.hairpin_mode, "promiscuous-bridge");
    fill(&mut config.max_pods, 110);
    fill(&mut config.pods_per_core, 0);
    if config.pod_pids_limit.is_none_or(|limit| limit < 0) {
        config.pod_pids_limit = Some(-1);
    }
    fill(&mut config.cluster_domain, "");
    fill(&mut config.resolv_conf, "/etc/resolv.conf");
    fill(&mut config.run_once, false);
    fill(&mut config.seccomp_default, false);
    let back_off = config.crash_loop_back_off.get_or_insert_default();
    fill(&mut back_off.max_container_restart_period, secs(300));
}
