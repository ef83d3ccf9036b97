//! The file format `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`.
//!
//! - **Owns**: every field of the v1.36 type, with its exact name and type, its default if that depends on no other
//!   field, and its deprecated flag.
//! - **Woken by**: nothing; plain data.
//! - **Publishes**: [`KubeletConfiguration`], in which every field is optional, so that files can be merged and
//!   defaults are applied once (by `defaults`); [`fields_of`], what the rows say.
//! - **Must never**: silently ignore a field that the format does not have.
//! - **Upstream**: `k8s.io/kubelet/config/v1beta1`.

mod read;
mod sections;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

pub use read::{Decoding, MistakenFile, Part, read};
pub use sections::*;

use super::fields::FlagKind::*;
use super::fields::{ApplyDefaults, Effect, FieldSpec, config_sections, secs};
use crate::base::{GoDuration, SecretUrl};

/// The `apiVersion` of a configuration file.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The `kind` of a configuration file.
pub const KIND: &str = "KubeletConfiguration";

/// The fields of a section, by the name of its type; `None` if there is no such section.
pub fn fields_of(type_name: &str) -> Option<&'static [FieldSpec]> {
    let mut sections = SECTIONS.iter().chain(sections::SECTIONS);
    let found = sections.find(|(name, _)| *name == type_name);
    found.map(|(_, fields)| *fields)
}

/// All fields with their dotted paths.
pub(super) fn all_fields() -> impl Iterator<Item = &'static (String, FieldSpec)> {
    static ALL: LazyLock<Vec<(String, FieldSpec)>> = LazyLock::new(|| {
        let mut all = Vec::new();
        collect("", KIND, &mut all);
        all
    });
    ALL.iter()
}

fn collect(prefix: &str, type_name: &str, all: &mut Vec<(String, FieldSpec)>) {
    for field in fields_of(type_name).into_iter().flatten() {
        let path = format!("{prefix}{}", field.key);
        collect(&format!("{path}."), field.type_name, all);
        all.push((path, *field));
    }
}

config_sections! {
    /// A kubelet configuration as in files. Units are given by the types; `GoDuration` is parsed and printed as Go
    /// does.
    pub struct KubeletConfiguration {
        /// Always `kubelet.config.k8s.io/v1beta1`.
        "apiVersion" api_version: String = API_VERSION;
        /// Always `KubeletConfiguration`.
        "kind" kind: String = KIND;
        /// Serve the API on `address`:`port`. Default true.
        "enableServer" enable_server: bool = true, flag: Some((Bool, "enable-server", "Serve the API"));
        /// File or directory of static pod manifests. Default none.
        "staticPodPath" static_pod_path: String = "";
        /// Root directory of container logs. Default `/var/log/pods`.
        "podLogsDir" pod_logs_dir: String = "/var/log/pods", zero_is_unset: true;
        /// Maximum interval between two syncs of a pod. Default 1m.
        "syncFrequency" sync_frequency: GoDuration = secs(60), zero_is_unset: true;
        /// Re-list interval of `staticPodPath`. Default 20s.
        "fileCheckFrequency" file_check_frequency: GoDuration = secs(20), zero_is_unset: true;
        /// Poll interval of `staticPodURL`. Default 20s.
        "httpCheckFrequency" http_check_frequency: GoDuration = secs(20), zero_is_unset: true;
        /// URL of static pod manifests. Default none.
        "staticPodURL" static_pod_url: SecretUrl = "";
        /// Headers sent to `staticPodURL`.
        "staticPodURLHeader" static_pod_url_header: BTreeMap<String, HeaderValues>;
        /// Address of the server. Default 0.0.0.0.
        "address" address: String = "0.0.0.0", zero_is_unset: true, flag: Some((Text, "address", "Address of the server"));
        /// Port of the server. Default 10250.
        "port" port: i32 = 10250, zero_is_unset: true, flag: Some((Int32, "port", "Port of the server"));
        /// Port of the read-only server; 0 (default) disables it.
        "readOnlyPort" read_only_port: i32 = 0, flag: Some((Int32, "read-only-port", "Port of the read-only server; 0 is off"));
        /// File with the serving certificate.
        "tlsCertFile" tls_cert_file: String, flag: Some((Path, "tls-cert-file", "Serving certificate"));
        /// File with the serving certificate's private key.
        "tlsPrivateKeyFile" tls_private_key_file: String, flag: Some((Path, "tls-private-key-file", "Serving key"));
        /// Cipher suites by IANA name.
        "tlsCipherSuites" tls_cipher_suites: Vec<String>, flag: Some((List, "tls-cipher-suites", "Cipher suites"));
        /// Key exchange groups by IANA number.
        "tlsCurvePreferences" tls_curve_preferences: Vec<i32>;
        /// Minimum TLS version.
        "tlsMinVersion" tls_min_version: String, flag: Some((Text, "tls-min-version", "Lowest TLS version"));
        /// Renew the client certificate. Default false.
        "rotateCertificates" rotate_certificates: bool = false, flag: Some((Bool, "rotate-certificates", "Renew the client certificate"));
        /// Request a serving certificate from the API server. Default false.
        "serverTLSBootstrap" server_tls_bootstrap: bool = false, flag: Some((Bool, "rotate-server-certificates", "Request a serving certificate"));
        /// Authentication of requests to the server.
        "authentication" authentication: KubeletAuthentication = KubeletAuthentication::default();
        /// Authorization of requests to the server.
        "authorization" authorization: KubeletAuthorization = KubeletAuthorization::default();
        /// Image pulls per second; 0 is unlimited. Default 5.
        "registryPullQPS" registry_pull_qps: i32 = 5;
        /// Burst of image pulls. Default 10.
        "registryBurst" registry_burst: i32 = 10, zero_is_unset: true;
        /// For which present images a pod's access is verified.
        "imagePullCredentialsVerificationPolicy" image_pull_credentials_verification_policy: String, zero_is_unset: true;
        /// Images exempt from that verification.
        "preloadedImagesVerificationAllowlist" preloaded_images_verification_allowlist: Vec<String>;
        /// Events per second; 0 is unlimited. Default 50.
        "eventRecordQPS" event_record_qps: i32 = 50, effect: Effect::InClusters, flag: Some((Int32, "event-qps", "Events per second; 0 is unlimited"));
        /// Burst of events. Default 100.
        "eventBurst" event_burst: i32 = 100, zero_is_unset: true, effect: Effect::InClusters, flag: Some((Int32, "event-burst", "Burst of events"));
        /// Serve exec, attach, port-forward, logs and other debugging endpoints. Default true.
        "enableDebuggingHandlers" enable_debugging_handlers: bool = true, flag: Some((Bool, "enable-debugging-handlers", "Serve exec, logs and the like"));
        /// Lock contention profiling. Default false.
        "enableContentionProfiling" enable_contention_profiling: bool = false, effect: Effect::Nowhere, flag: Some((Bool, "contention-profiling", "Lock contention profiling"));
        /// Port of `/healthz`; 0 disables it. Default 10248.
        "healthzPort" healthz_port: i32 = 10248, flag: Some((Int32, "healthz-port", "Port of /healthz; 0 is off"));
        /// Address of `/healthz`. Default 127.0.0.1.
        "healthzBindAddress" healthz_bind_address: String = "127.0.0.1", zero_is_unset: true, flag: Some((Text, "healthz-bind-address", "Address of /healthz"));
        /// OOM score adjustment of the kubelet itself. Default -999.
        "oomScoreAdj" oom_score_adj: i32 = -999, flag: Some((Int32, "oom-score-adj", "OOM score adjustment of the kubelet"));
        /// DNS domain of the cluster.
        "clusterDomain" cluster_domain: String = "";
        /// DNS servers of the cluster.
        "clusterDNS" cluster_dns: Vec<String>;
        /// Idle timeout of exec, attach and port-forward streams. Default 4h.
        "streamingConnectionIdleTimeout" streaming_connection_idle_timeout: GoDuration = secs(4 * 3600), zero_is_unset: true, flag: Some((Duration, "streaming-connection-idle-timeout", "Idle limit of streams"));
        /// Node status computation interval. Default 10s.
        "nodeStatusUpdateFrequency" node_status_update_frequency: GoDuration = secs(10), zero_is_unset: true, effect: Effect::InClusters, flag: Some((Duration, "node-status-update-frequency", "Node status interval"));
        /// Node status report interval. Default 5m.
        "nodeStatusReportFrequency" node_status_report_frequency: GoDuration = secs(300), zero_is_unset: true, effect: Effect::InClusters;
        /// Node lease duration in seconds. Default 40.
        "nodeLeaseDurationSeconds" node_lease_duration_seconds: i32 = 40, zero_is_unset: true, effect: Effect::InClusters;
        /// Minimum age of an unused image before it is removed. Default 2m.
        "imageMinimumGCAge" image_minimum_gc_age: GoDuration = secs(120), zero_is_unset: true, flag: Some((Duration, "minimum-image-ttl-duration", "Youngest image that may be removed"));
        /// Maximum age of an unused image before it is removed; 0s (default) means no maximum.
        "imageMaximumGCAge" image_maximum_gc_age: GoDuration = secs(0);
        /// Disk usage in percent that starts image garbage collection. Default 85.
        "imageGCHighThresholdPercent" image_gc_high_threshold_percent: i32 = 85, flag: Some((Int32, "image-gc-high-threshold", "Disk use in percent that starts image collection"));
        /// Disk usage in percent at which image garbage collection stops. Default 80.
        "imageGCLowThresholdPercent" image_gc_low_threshold_percent: i32 = 80, flag: Some((Int32, "image-gc-low-threshold", "Disk use in percent it frees down to"));
        /// Volume statistics interval. Default 1m.
        "volumeStatsAggPeriod" volume_stats_agg_period: GoDuration = secs(60), zero_is_unset: true, flag: Some((Duration, "volume-stats-agg-period", "Volume statistics interval"));
        /// Cgroup of the kubelet.
        "kubeletCgroups" kubelet_cgroups: String, flag: Some((Text, "kubelet-cgroups", "Cgroup of the kubelet"));
        /// Cgroup of system processes.
        "systemCgroups" system_cgroups: String, flag: Some((Text, "system-cgroups", "Cgroup of system processes"));
        /// Root of pod cgroups.
        "cgroupRoot" cgroup_root: String, flag: Some((Text, "cgroup-root", "Root of pod cgroups"));
        /// Create cgroups per QoS class and pod. Default true.
        "cgroupsPerQOS" cgroups_per_qos: bool = true, flag: Some((Bool, "cgroups-per-qos", "A cgroup per QoS class and pod"));
        /// `cgroupfs` (default) or `systemd`.
        "cgroupDriver" cgroup_driver: String = "cgroupfs", zero_is_unset: true, flag: Some((Text, "cgroup-driver", "cgroupfs or systemd"));
        /// CPU manager policy. Default none.
        "cpuManagerPolicy" cpu_manager_policy: String = "none", zero_is_unset: true, flag: Some((Text, "cpu-manager-policy", "none or static"));
        /// Kill only the process that ran out of memory, not the whole container.
        "singleProcessOOMKill" single_process_oom_kill: bool;
        /// Options of the CPU manager policy.
        "cpuManagerPolicyOptions" cpu_manager_policy_options: BTreeMap<String, String>, flag: Some((Map, "cpu-manager-policy-options", "Options of the CPU manager policy"));
        /// CPU manager interval. Default 10s.
        "cpuManagerReconcilePeriod" cpu_manager_reconcile_period: GoDuration = secs(10), zero_is_unset: true, flag: Some((Duration, "cpu-manager-reconcile-period", "CPU manager interval"));
        /// Memory manager policy. Default None.
        "memoryManagerPolicy" memory_manager_policy: String = "None", zero_is_unset: true, flag: Some((Text, "memory-manager-policy", "None or Static"));
        /// Topology manager policy. Default none.
        "topologyManagerPolicy" topology_manager_policy: String = "none", zero_is_unset: true, flag: Some((Text, "topology-manager-policy", "none, best-effort, restricted or single-numa-node"));
        /// Topology manager scope. Default container.
        "topologyManagerScope" topology_manager_scope: String = "container", zero_is_unset: true, flag: Some((Text, "topology-manager-scope", "container or pod"));
        /// Options of the topology manager policy.
        "topologyManagerPolicyOptions" topology_manager_policy_options: BTreeMap<String, String>, flag: Some((Map, "topology-manager-policy-options", "Options of that policy"));
        /// Percentage of requests reserved for guaranteed pods, by resource.
        "qosReserved" qos_reserved: BTreeMap<String, String>, flag: Some((Map, "qos-reserved", "Percent of requests kept for guaranteed pods"));
        /// Timeout of CRI calls other than streaming ones and pulls. Default 2m.
        "runtimeRequestTimeout" runtime_request_timeout: GoDuration = secs(120), zero_is_unset: true;
        /// `promiscuous-bridge` (default), `hairpin-veth` or `none`.
        "hairpinMode" hairpin_mode: String = "promiscuous-bridge", zero_is_unset: true, effect: Effect::Nowhere, flag: Some((Text, "hairpin-mode", "promiscuous-bridge, hairpin-veth or none"));
        /// Maximum number of pods on this node. Default 110.
        "maxPods" max_pods: i32 = 110, zero_is_unset: true, flag: Some((Int32, "max-pods", "Most pods on this node"));
        /// Pod address range of a standalone node.
        "podCIDR" pod_cidr: String, effect: Effect::Nowhere, flag: Some((Text, "pod-cidr", "Pod address range of a standalone node"));
        /// Process limit per pod; -1 (default) means no limit.
        "podPidsLimit" pod_pids_limit: i64, flag: Some((Int64, "pod-max-pids", "Process limit per pod; -1 means no limit"));
        /// Resolver configuration for pods; empty for none. Default `/etc/resolv.conf`.
        "resolvConf" resolv_conf: String = "/etc/resolv.conf";
        /// Obsolete; must be false.
        "runOnce" run_once: bool = false, effect: Effect::Nowhere, flag: Some((Bool, "runonce", "Removed mode; must stay false"));
        /// Enforce CPU limits by CFS quota. Default true.
        "cpuCFSQuota" cpu_cfs_quota: bool = true, flag: Some((Bool, "cpu-cfs-quota", "Enforce CPU limits"));
        /// CFS period. Default 100ms.
        "cpuCFSQuotaPeriod" cpu_cfs_quota_period: GoDuration = GoDuration::from_millis(100), flag: Some((Duration, "cpu-cfs-quota-period", "CFS period"));
        /// Maximum number of images in the node status; -1 means all. Default 50.
        "nodeStatusMaxImages" node_status_max_images: i32 = 50, effect: Effect::InClusters, flag: Some((Int32, "node-status-max-images", "Images in the node status; -1 is all"));
        /// Limit of open files of the kubelet. Default 1000000.
        "maxOpenFiles" max_open_files: i64 = 1_000_000, zero_is_unset: true, flag: Some((Int64, "max-open-files", "Open files of the kubelet"));
        /// Media type of requests to the API server.
        "contentType" content_type: String = "application/vnd.kubernetes.protobuf", zero_is_unset: true, effect: Effect::Nowhere, flag: Some((Text, "kube-api-content-type", "Media type sent to the API server"));
        /// Requests per second to the API server. Default 50.
        "kubeAPIQPS" kube_api_qps: i32 = 50, flag: Some((Int32, "kube-api-qps", "Requests per second to the API server"));
        /// Burst of requests to the API server. Default 100.
        "kubeAPIBurst" kube_api_burst: i32 = 100, zero_is_unset: true, flag: Some((Int32, "kube-api-burst", "Burst of requests to the API server"));
        /// Pull one absent image, and one that is present, at a time. Default false unless `maxParallelImagePulls` is 1
        /// (upstream: true unless that is 2 or more).
        "serializeImagePulls" serialize_image_pulls: bool;
        /// Maximum number of concurrent pulls. Default 8 (upstream: no limit).
        "maxParallelImagePulls" max_parallel_image_pulls: i32;
        /// Hard eviction thresholds by signal.
        "evictionHard" eviction_hard: BTreeMap<String, String>, flag: Some((Thresholds, "eviction-hard", "Hard eviction thresholds")), shown_default: Some("memory.available<100Mi,nodefs.available<10%,...");
        /// Soft eviction thresholds by signal.
        "evictionSoft" eviction_soft: BTreeMap<String, String>, flag: Some((Thresholds, "eviction-soft", "Soft eviction thresholds"));
        /// Grace period of each soft threshold, by signal.
        "evictionSoftGracePeriod" eviction_soft_grace_period: BTreeMap<String, String>, flag: Some((Map, "eviction-soft-grace-period", "How long soft thresholds may be passed"));
        /// How long a pressure condition is kept after the pressure has ended. Default 5m.
        "evictionPressureTransitionPeriod" eviction_pressure_transition_period: GoDuration = secs(300), zero_is_unset: true, flag: Some((Duration, "eviction-pressure-transition-period", "How long pressure is held"));
        /// Maximum grace period in seconds of pods evicted by a soft threshold, which otherwise have their own; 0 means
        /// the shortest one, and a negative value no maximum. Default 0.
        "evictionMaxPodGracePeriod" eviction_max_pod_grace_period: i32 = 0, flag: Some((Int32, "eviction-max-pod-grace-period", "Longest grace of a softly evicted pod, seconds; negative: that of the pod"));
        /// Minimum amount that an eviction reclaims, by signal.
        "evictionMinimumReclaim" eviction_minimum_reclaim: BTreeMap<String, String>, flag: Some((Map, "eviction-minimum-reclaim", "Least amount an eviction frees"));
        /// Keep the default thresholds of signals that are not configured. Default false.
        "mergeDefaultEvictionSettings" merge_default_eviction_settings: bool = false;
        /// Maximum number of pods per CPU core; 0 (default) means no limit.
        "podsPerCore" pods_per_core: i32 = 0, flag: Some((Int32, "pods-per-core", "Most pods per core; 0 means no limit"));
        /// Leave attaching volumes to the attach/detach controller. Default true.
        "enableControllerAttachDetach" enable_controller_attach_detach: bool = true, effect: Effect::InClusters, flag: Some((Bool, "enable-controller-attach-detach", "Leave attaching to the controller"));
        /// Fail if kernel settings differ from the expected ones. Default false.
        "protectKernelDefaults" protect_kernel_defaults: bool = false, flag: Some((Bool, "protect-kernel-defaults", "Fail when kernel settings differ"));
        /// Create iptables chains. Default true.
        "makeIPTablesUtilChains" make_iptables_util_chains: bool = true, effect: Effect::Nowhere, flag: Some((Bool, "make-iptables-util-chains", "Create iptables chains"));
        /// Masquerade mark bit. Default 14.
        "iptablesMasqueradeBit" iptables_masquerade_bit: i32 = 14, effect: Effect::Nowhere;
        /// Drop mark bit. Default 15.
        "iptablesDropBit" iptables_drop_bit: i32 = 15, effect: Effect::Nowhere;
        /// Feature gates by name.
        "featureGates" feature_gates: BTreeMap<String, bool>;
        /// Refuse to start if swap is on. Default true.
        "failSwapOn" fail_swap_on: bool = true, flag: Some((Bool, "fail-swap-on", "Refuse to start with swap on"));
        /// Swap behavior of containers.
        "memorySwap" memory_swap: MemorySwapConfiguration;
        /// Log size that triggers rotation. Default 10Mi.
        "containerLogMaxSize" container_log_max_size: String = "10Mi", zero_is_unset: true, flag: Some((Text, "container-log-max-size", "Log size that triggers rotation"));
        /// Log files kept per container. Default 5.
        "containerLogMaxFiles" container_log_max_files: i32 = 5, flag: Some((Int32, "container-log-max-files", "Log files kept per container"));
        /// Maximum number of concurrent rotations. Default 1.
        "containerLogMaxWorkers" container_log_max_workers: i32 = 1;
        /// Log size check interval. Default 10s.
        "containerLogMonitorInterval" container_log_monitor_interval: GoDuration = secs(10);
        /// `Watch` (default), `Cache` or `Get`.
        "configMapAndSecretChangeDetectionStrategy" config_map_and_secret_change_detection_strategy: String = "Watch", zero_is_unset: true, effect: Effect::Nowhere;
        /// Resources reserved for system daemons.
        "systemReserved" system_reserved: BTreeMap<String, String>, flag: Some((Map, "system-reserved", "Resources for system daemons"));
        /// Resources reserved for Kubernetes daemons.
        "kubeReserved" kube_reserved: BTreeMap<String, String>, flag: Some((Map, "kube-reserved", "Resources for Kubernetes daemons"));
        /// CPUs reserved for the system, as a list such as `0-3`.
        "reservedSystemCPUs" reserved_system_cpus: String, flag: Some((Text, "reserved-cpus", "CPUs kept for the system"));
        /// Show metrics hidden in this release.
        "showHiddenMetricsForVersion" show_hidden_metrics_for_version: String, effect: Effect::Nowhere;
        /// Cgroup of system daemons.
        "systemReservedCgroup" system_reserved_cgroup: String, flag: Some((Text, "system-reserved-cgroup", "Cgroup of system daemons"));
        /// Cgroup of Kubernetes daemons.
        "kubeReservedCgroup" kube_reserved_cgroup: String, flag: Some((Text, "kube-reserved-cgroup", "Cgroup of Kubernetes daemons"));
        /// Which reservations are enforced. Default `pods`.
        "enforceNodeAllocatable" enforce_node_allocatable: Vec<String> = vec!["pods".to_owned()], flag: Some((List, "enforce-node-allocatable", "Which reservations are enforced"));
        /// Unsafe sysctls that pods may set; a trailing `*` is a wildcard.
        "allowedUnsafeSysctls" allowed_unsafe_sysctls: Vec<String>, flag: Some((List, "allowed-unsafe-sysctls", "Unsafe sysctls pods may set"));
        /// Directory of exec volume plugins.
        "volumePluginDir" volume_plugin_dir: String = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", zero_is_unset: true, flag: Some((Path, "volume-plugin-dir", "Directory of exec volume plugins"));
        /// ID of this machine at its cloud provider.
        "providerID" provider_id: String, effect: Effect::InClusters, flag: Some((Text, "provider-id", "Id of this machine at its provider"));
        /// Kernel memory notifications for eviction. Default false.
        "kernelMemcgNotification" kernel_memcg_notification: bool = false, effect: Effect::Nowhere, flag: Some((Bool, "kernel-memcg-notification", "Kernel memory notifications"));
        /// Log format and verbosity.
        "logging" logging: LoggingConfiguration = LoggingConfiguration::default();
        /// Serve `/logs/`. Default true.
        "enableSystemLogHandler" enable_system_log_handler: bool = true;
        /// Serve logs of services at `/logs/`. Default false.
        "enableSystemLogQuery" enable_system_log_query: bool = false;
        /// Total delay of a node shutdown for pods to terminate; 0s (default) disables graceful shutdown.
        "shutdownGracePeriod" shutdown_grace_period: GoDuration = secs(0);
        /// The part of it for critical pods.
        "shutdownGracePeriodCriticalPods" shutdown_grace_period_critical_pods: GoDuration = secs(0);
        /// Shutdown grace periods by pod priority.
        "shutdownGracePeriodByPodPriority" shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>;
        /// Container restart back-off.
        "crashLoopBackOff" crash_loop_back_off: CrashLoopBackOffConfig = CrashLoopBackOffConfig::default();
        /// Memory reserved per NUMA node.
        "reservedMemory" reserved_memory: Vec<MemoryReservation>, flag: Some((ReservedMemory, "reserved-memory", "Memory kept per NUMA node"));
        /// Serve profiles at `/debug/pprof/`. Default true.
        "enableProfilingHandler" enable_profiling_handler: bool = true;
        /// Serve `/debug/flags/v`. Default true.
        "enableDebugFlagsHandler" enable_debug_flags_handler: bool = true;
        /// Use the runtime's default seccomp profile for containers that do not set one. Default false.
        "seccompDefault" seccomp_default: bool = false;
        /// Memory QoS throttling factor. Default 0.9.
        "memoryThrottlingFactor" memory_throttling_factor: f64 = 0.9;
        /// `None` (default) or `TieredReservation`.
        "memoryReservationPolicy" memory_reservation_policy: String = "None", zero_is_unset: true;
        /// Taints the node registers with.
        "registerWithTaints" register_with_taints: Vec<Taint>, effect: Effect::InClusters, flag: Some((Taints, "register-with-taints", "Taints the node registers with"));
        /// Register the node. Default true.
        "registerNode" register_node: bool = true, effect: Effect::InClusters, flag: Some((Bool, "register-node", "Register the node"));
        /// OpenTelemetry tracing.
        "tracing" tracing: TracingConfiguration;
        /// Enforce ephemeral storage limits. Default true.
        "localStorageCapacityIsolation" local_storage_capacity_isolation: bool = true, flag: Some((Bool, "local-storage-capacity-isolation", "Enforce ephemeral storage limits"));
        /// CRI endpoint. Default `unix:///run/containerd/containerd.sock`.
        "containerRuntimeEndpoint" container_runtime_endpoint: String = "unix:///run/containerd/containerd.sock", zero_is_unset: true;
        /// CRI endpoint of the image service. Default: that of the runtime.
        "imageServiceEndpoint" image_service_endpoint: String;
        /// Refuse to start on cgroup v1. Default true.
        "failCgroupV1" fail_cgroup_v1: bool = true, flag: Some((Bool, "fail-cgroupv1", "Refuse to start on cgroup v1"));
        /// User namespaces.
        "userNamespaces" user_namespaces: UserNamespacesSection = UserNamespacesSection::default();
    }
}
