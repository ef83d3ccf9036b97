//! The defaults of `KubeletConfiguration`; applied only here.
//!
//! Upstream: `pkg/kubelet/apis/config/v1beta1/defaults.go`. For fields whose Go type is not a pointer, a zero in a
//! *file* means "not set", and so it does here ([`drop_unset_zeros`]); a zero in a flag counts.

use std::collections::BTreeMap;

use super::feature_gates::FeatureGate;
use super::kubelet_configuration::*;
use crate::base::GoDuration;
use crate::base::document::{DocumentEntry, DocumentNode, DocumentValue};

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
    let plain = ZERO_IS_UNSET.iter().map(|path| (path, &plain as &dyn Fn(&DocumentValue) -> bool));
    let durations = ZERO_DURATION_IS_UNSET.iter().map(|path| (path, &duration as _));
    for (path, is_zero) in plain.chain(durations) {
        if tree.lookup(path).is_some_and(|node| is_zero(&node.value)) {
            tree.remove(path);
        }
    }
}

/// Sets the fields of a section that have no value to their defaults.
macro_rules! fill {
    ($section:expr; $($field:ident: $default:expr,)*) => {
        let section = &mut *$section;
        $(section.$field.get_or_insert_with(|| $default.into());)*
    };
}

fn secs(seconds: i64) -> GoDuration {
    GoDuration::from_secs(seconds)
}

/// The configuration of a kubelet without a file and flags.
pub fn default_configuration() -> KubeletConfiguration {
    let mut config = KubeletConfiguration::default();
    apply(&mut config);
    config
}

/// Sets every field without a value to its default.
pub(super) fn apply(config: &mut KubeletConfiguration) {
    // Differs from upstream: concurrent pulls, unless serial ones are configured by either field.
    let serial_pulls = config.max_parallel_image_pulls == Some(1);
    fill! { config;
        api_version: API_VERSION,
        kind: KIND,

        // The server and the sources of pods.
        enable_server: true,
        static_pod_path: "",
        static_pod_url: "",
        pod_logs_dir: POD_LOGS_DIR,
        sync_frequency: secs(60),
        file_check_frequency: secs(20),
        http_check_frequency: secs(20),
        address: "0.0.0.0",
        port: 10250,
        read_only_port: 0,
        rotate_certificates: false,
        server_tls_bootstrap: false,
        healthz_port: 10248,
        healthz_bind_address: "127.0.0.1",
        oom_score_adj: -999,
        streaming_connection_idle_timeout: secs(4 * 3600),
        enable_debugging_handlers: true,
        enable_contention_profiling: false,
        enable_system_log_handler: true,
        enable_system_log_query: false,
        enable_profiling_handler: true,
        enable_debug_flags_handler: true,

        // Images, events, the runtime and logs.
        registry_pull_qps: 5,
        registry_burst: 10,
        event_record_qps: 50,
        event_burst: 100,
        image_minimum_gc_age: secs(120),
        image_maximum_gc_age: secs(0),
        image_gc_high_threshold_percent: 85,
        image_gc_low_threshold_percent: 80,
        serialize_image_pulls: serial_pulls,
        container_runtime_endpoint: CONTAINER_RUNTIME_ENDPOINT,
        runtime_request_timeout: secs(120),
        container_log_max_size: "10Mi",
        container_log_max_files: 5,
        container_log_max_workers: 1,
        container_log_monitor_interval: secs(10),

        // The node.
        node_status_report_frequency: secs(300),
        node_status_update_frequency: secs(10),
        node_lease_duration_seconds: 40,
        node_status_max_images: 50,
        max_open_files: 1_000_000,
        content_type: "application/vnd.kubernetes.protobuf",
        kube_api_qps: 50,
        kube_api_burst: 100,
        register_node: true,
        volume_stats_agg_period: secs(60),
        enable_controller_attach_detach: true,
        volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
        config_map_and_secret_change_detection_strategy: "Watch",
        shutdown_grace_period: secs(0),
        shutdown_grace_period_critical_pods: secs(0),
        make_iptables_util_chains: true,
        iptables_masquerade_bit: 14,
        iptables_drop_bit: 15,
        protect_kernel_defaults: false,
        fail_swap_on: true,
        fail_cgroup_v1: true,
        local_storage_capacity_isolation: true,
        kernel_memcg_notification: false,

        // Resources.
        cgroups_per_qos: true,
        cgroup_driver: "cgroupfs",
        cpu_manager_policy: "none",
        cpu_manager_reconcile_period: secs(10),
        memory_manager_policy: "None",
        topology_manager_policy: "none",
        topology_manager_scope: "container",
        cpu_cfs_quota: true,
        cpu_cfs_quota_period: GoDuration::from_millis(100),
        enforce_node_allocatable: vec!["pods".to_owned()],
        merge_default_eviction_settings: false,
        eviction_pressure_transition_period: secs(300),
        eviction_max_pod_grace_period: 0,
        memory_throttling_factor: 0.9,
        memory_reservation_policy: "None",

        // Pods.
        hairpin_mode: "promiscuous-bridge",
        max_pods: 110,
        pods_per_core: 0,
        cluster_domain: "",
        resolv_conf: "/etc/resolv.conf",
        run_once: false,
        seccomp_default: false,
    }
    apply_sections(config);
    if FeatureGate::KubeletEnsureSecretPulledImages.is_on(config.feature_gates.as_ref()) {
        fill! { config; image_pull_credentials_verification_policy: "NeverVerifyPreloadedImages", }
    }
    if config.pod_pids_limit.is_none_or(|limit| limit < 0) {
        config.pod_pids_limit = Some(-1);
    }
    apply_eviction_hard(config);
}

fn apply_sections(config: &mut KubeletConfiguration) {
    let authentication = config.authentication.get_or_insert_default();
    fill! { authentication.anonymous.get_or_insert_default(); enabled: false, }
    fill! { authentication.webhook.get_or_insert_default(); enabled: true, cache_ttl: secs(120), }
    let authorization = config.authorization.get_or_insert_default();
    fill! { authorization; mode: "Webhook", }
    fill! { authorization.webhook.get_or_insert_default();
        cache_authorized_ttl: secs(300),
        cache_unauthorized_ttl: secs(30),
    }
    fill! { config.logging.get_or_insert_default(); format: "text", }
    fill! { config.user_namespaces.get_or_insert_default(); ids_per_pod: 65536, }
    fill! { config.crash_loop_back_off.get_or_insert_default();
        max_container_restart_period: secs(300),
    }
}

/// The hard eviction thresholds of a node whose configuration has none.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Sets the defaults that depend on other fields of the file, before drop-ins and flags are merged over it. As upstream,
/// a drop-in that sets one threshold or another interval leaves these defaults as they are.
pub(super) fn apply_to_file(file: &mut DocumentNode) {
    let origin = file.origin.clone();
    let text = |text: &str| DocumentNode {
        value: DocumentValue::String(text.to_owned()),
        origin: origin.clone(),
    };
    let given = |path: &str| {
        let node = file.lookup(path)?;
        Some(node).filter(|node| node.value != DocumentValue::Null)
    };
    let merges = given("mergeDefaultEvictionSettings")
        .is_some_and(|merges| merges.value == DocumentValue::Bool(true));
    let entries = EVICTION_HARD.map(|(signal, threshold)| DocumentEntry {
        key: signal.to_owned(),
        origin: origin.clone(),
        node: text(threshold),
    });
    let mut thresholds =
        DocumentNode { value: DocumentValue::Map(entries.into()), origin: origin.clone() };
    let thresholds = match given("evictionHard") {
        Some(own) if merges => {
            thresholds.merge(own.clone());
            Some(thresholds)
        }
        Some(_) => None,
        None => Some(thresholds),
    };
    // An update frequency in the file is also its report frequency, as before that field existed.
    let report = match given("nodeStatusReportFrequency") {
        Some(_) => None,
        None => given("nodeStatusUpdateFrequency").cloned().or_else(|| Some(text("5m"))),
    };
    if let Some(thresholds) = thresholds {
        file.set("evictionHard", thresholds);
    }
    if let Some(report) = report {
        file.set("nodeStatusReportFrequency", report);
    }
}

/// The default hard eviction thresholds where a drop-in has removed the map, and those that a drop-in merges.
fn apply_eviction_hard(config: &mut KubeletConfiguration) {
    let merge = config.merge_default_eviction_settings == Some(true);
    let defaults =
        EVICTION_HARD.map(|(signal, threshold)| (signal.to_owned(), threshold.to_owned()));
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
