//! The file format `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`.
//!
//! - **Owns**: every field of the v1.36 type, with its exact name and type.
//! - **Woken by**: nothing; plain data.
//! - **Publishes**: [`KubeletConfiguration`], in which every field is optional, so that files can be merged and
//!   defaults are applied once (in `defaults`).
//! - **Must never**: have a default, or silently ignore a field that the format does not have.
//! - **Upstream**: `k8s.io/kubelet/config/v1beta1`.

mod read;
mod sections;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use read::{Decoding, MistakenFile, Part, read};
pub use sections::*;

use crate::base::{GoDuration, SecretUrl};

/// The `apiVersion` of a configuration file.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The `kind` of a configuration file.
pub const KIND: &str = "KubeletConfiguration";

/// A field of the format, in the order of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDoc {
    /// Its key in the file.
    pub key: &'static str,
    /// The lines of its documentation.
    pub lines: &'static [&'static str],
    /// The name of its type, which is a section's if [`fields_of`] knows it.
    pub type_name: &'static str,
}

/// Declares sections: every field is optional, is named in the file as the string before it, and is omitted from
/// output if absent. `SECTIONS` documents the fields of each.
macro_rules! config_sections {
    ($(
        $(#[$outer:meta])*
        pub struct $name:ident {
            $($(#[doc = $doc:literal])* $key:literal $field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$outer])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
            pub struct $name {
                $(
                    $(#[doc = $doc])*
                    #[serde(rename = $key, default, skip_serializing_if = "Option::is_none")]
                    pub $field: Option<$type>,
                )*
            }
        )*

        pub(super) const SECTIONS: &[(&str, &[FieldDoc])] = &[$((
            stringify!($name),
            &[$(FieldDoc {
                key: $key,
                lines: &[$($doc),*],
                type_name: stringify!($type),
            }),*],
        )),*];
    };
}
use config_sections;

/// The fields of a section, by the name of its type; `None` if there is no such section.
pub fn fields_of(type_name: &str) -> Option<&'static [FieldDoc]> {
    let mut sections = SECTIONS.iter().chain(sections::SECTIONS);
    let found = sections.find(|(name, _)| *name == type_name);
    found.map(|(_, fields)| *fields)
}

config_sections! {
    /// A kubelet configuration as in files. Units are given by the types; `GoDuration` is parsed and printed as Go
    /// does.
    pub struct KubeletConfiguration {
        /// Always `kubelet.config.k8s.io/v1beta1`.
        "apiVersion" api_version: String,
        /// Always `KubeletConfiguration`.
        "kind" kind: String,
        /// Serve the API on `address`:`port`. Default true.
        "enableServer" enable_server: bool,
        /// File or directory of static pod manifests. Default none.
        "staticPodPath" static_pod_path: String,
        /// Root directory of container logs. Default `/var/log/pods`.
        "podLogsDir" pod_logs_dir: String,
        /// Maximum interval between two syncs of a pod. Default 1m.
        "syncFrequency" sync_frequency: GoDuration,
        /// Re-list interval of `staticPodPath`. Default 20s.
        "fileCheckFrequency" file_check_frequency: GoDuration,
        /// Poll interval of `staticPodURL`. Default 20s.
        "httpCheckFrequency" http_check_frequency: GoDuration,
        /// URL of static pod manifests. Default none.
        "staticPodURL" static_pod_url: SecretUrl,
        /// Headers sent to `staticPodURL`.
        "staticPodURLHeader" static_pod_url_header: BTreeMap<String, HeaderValues>,
        /// Address of the server. Default 0.0.0.0.
        "address" address: String,
        /// Port of the server. Default 10250.
        "port" port: i32,
        /// Port of the read-only server; 0 (default) disables it.
        "readOnlyPort" read_only_port: i32,
        /// File with the serving certificate.
        "tlsCertFile" tls_cert_file: String,
        /// File with the serving certificate's private key.
        "tlsPrivateKeyFile" tls_private_key_file: String,
        /// Cipher suites by IANA name.
        "tlsCipherSuites" tls_cipher_suites: Vec<String>,
        /// Key exchange groups by IANA number.
        "tlsCurvePreferences" tls_curve_preferences: Vec<i32>,
        /// Minimum TLS version.
        "tlsMinVersion" tls_min_version: String,
        /// Renew the client certificate. Default false.
        "rotateCertificates" rotate_certificates: bool,
        /// Request a serving certificate from the API server. Default false.
        "serverTLSBootstrap" server_tls_bootstrap: bool,
        /// Authentication of requests to the server.
        "authentication" authentication: KubeletAuthentication,
        /// Authorization of requests to the server.
        "authorization" authorization: KubeletAuthorization,
        /// Image pulls per second; 0 is unlimited. Default 5.
        "registryPullQPS" registry_pull_qps: i32,
        /// Burst of image pulls. Default 10.
        "registryBurst" registry_burst: i32,
        /// For which present images a pod's access is verified.
        "imagePullCredentialsVerificationPolicy" image_pull_credentials_verification_policy: String,
        /// Images exempt from that verification.
        "preloadedImagesVerificationAllowlist" preloaded_images_verification_allowlist: Vec<String>,
        /// Events per second; 0 is unlimited. Default 50.
        "eventRecordQPS" event_record_qps: i32,
        /// Burst of events. Default 100.
        "eventBurst" event_burst: i32,
        /// Serve exec, attach, port-forward, logs and other debugging endpoints. Default true.
        "enableDebuggingHandlers" enable_debugging_handlers: bool,
        /// Lock contention profiling. Default false.
        "enableContentionProfiling" enable_contention_profiling: bool,
        /// Port of `/healthz`; 0 disables it. Default 10248.
        "healthzPort" healthz_port: i32,
        /// Address of `/healthz`. Default 127.0.0.1.
        "healthzBindAddress" healthz_bind_address: String,
        /// OOM score adjustment of the kubelet itself. Default -999.
        "oomScoreAdj" oom_score_adj: i32,
        /// DNS domain of the cluster.
        "clusterDomain" cluster_domain: String,
        /// DNS servers of the cluster.
        "clusterDNS" cluster_dns: Vec<String>,
        /// Idle timeout of exec, attach and port-forward streams. Default 4h.
        "streamingConnectionIdleTimeout" streaming_connection_idle_timeout: GoDuration,
        /// Node status computation interval. Default 10s.
        "nodeStatusUpdateFrequency" node_status_update_frequency: GoDuration,
        /// Node status report interval. Default 5m.
        "nodeStatusReportFrequency" node_status_report_frequency: GoDuration,
        /// Node lease duration in seconds. Default 40.
        "nodeLeaseDurationSeconds" node_lease_duration_seconds: i32,
        /// Minimum age of an unused image before it is removed. Default 2m.
        "imageMinimumGCAge" image_minimum_gc_age: GoDuration,
        /// Maximum age of an unused image before it is removed; 0s (default) means no maximum.
        "imageMaximumGCAge" image_maximum_gc_age: GoDuration,
        /// Disk usage in percent that starts image garbage collection. Default 85.
        "imageGCHighThresholdPercent" image_gc_high_threshold_percent: i32,
        /// Disk usage in percent at which image garbage collection stops. Default 80.
        "imageGCLowThresholdPercent" image_gc_low_threshold_percent: i32,
        /// Volume statistics interval. Default 1m.
        "volumeStatsAggPeriod" volume_stats_agg_period: GoDuration,
        /// Cgroup of the kubelet.
        "kubeletCgroups" kubelet_cgroups: String,
        /// Cgroup of system processes.
        "systemCgroups" system_cgroups: String,
        /// Root of pod cgroups.
        "cgroupRoot" cgroup_root: String,
        /// Create cgroups per QoS class and pod. Default true.
        "cgroupsPerQOS" cgroups_per_qos: bool,
        /// `cgroupfs` (default) or `systemd`.
        "cgroupDriver" cgroup_driver: String,
        /// CPU manager policy. Default none.
        "cpuManagerPolicy" cpu_manager_policy: String,
        /// Kill only the process that ran out of memory, not the whole container.
        "singleProcessOOMKill" single_process_oom_kill: bool,
        /// Options of the CPU manager policy.
        "cpuManagerPolicyOptions" cpu_manager_policy_options: BTreeMap<String, String>,
        /// CPU manager interval. Default 10s.
        "cpuManagerReconcilePeriod" cpu_manager_reconcile_period: GoDuration,
        /// Memory manager policy. Default None.
        "memoryManagerPolicy" memory_manager_policy: String,
        /// Topology manager policy. Default none.
        "topologyManagerPolicy" topology_manager_policy: String,
        /// Topology manager scope. Default container.
        "topologyManagerScope" topology_manager_scope: String,
        /// Options of the topology manager policy.
        "topologyManagerPolicyOptions" topology_manager_policy_options: BTreeMap<String, String>,
        /// Percentage of requests reserved for guaranteed pods, by resource.
        "qosReserved" qos_reserved: BTreeMap<String, String>,
        /// Timeout of CRI calls other than streaming ones and pulls. Default 2m.
        "runtimeRequestTimeout" runtime_request_timeout: GoDuration,
        /// `promiscuous-bridge` (default), `hairpin-veth` or `none`.
        "hairpinMode" hairpin_mode: String,
        /// Maximum number of pods on this node. Default 110.
        "maxPods" max_pods: i32,
        /// Pod address range of a standalone node.
        "podCIDR" pod_cidr: String,
        /// Process limit per pod; -1 (default) means no limit.
        "podPidsLimit" pod_pids_limit: i64,
        /// Resolver configuration for pods; empty for none. Default `/etc/resolv.conf`.
        "resolvConf" resolv_conf: String,
        /// Obsolete; must be false.
        "runOnce" run_once: bool,
        /// Enforce CPU limits by CFS quota. Default true.
        "cpuCFSQuota" cpu_cfs_quota: bool,
        /// CFS period. Default 100ms.
        "cpuCFSQuotaPeriod" cpu_cfs_quota_period: GoDuration,
        /// Maximum number of images in the node status; -1 means all. Default 50.
        "nodeStatusMaxImages" node_status_max_images: i32,
        /// Limit of open files of the kubelet. Default 1000000.
        "maxOpenFiles" max_open_files: i64,
        /// Media type of requests to the API server.
        "contentType" content_type: String,
        /// Requests per second to the API server. Default 50.
        "kubeAPIQPS" kube_api_qps: i32,
        /// Burst of requests to the API server. Default 100.
        "kubeAPIBurst" kube_api_burst: i32,
        /// Pull one absent image, and one that is present, at a time. Default false unless `maxParallelImagePulls` is 1
        /// (upstream: true unless that is 2 or more).
        "serializeImagePulls" serialize_image_pulls: bool,
        /// Maximum number of concurrent pulls. Default 8 (upstream: no limit).
        "maxParallelImagePulls" max_parallel_image_pulls: i32,
        /// Hard eviction thresholds by signal.
        "evictionHard" eviction_hard: BTreeMap<String, String>,
        /// Soft eviction thresholds by signal.
        "evictionSoft" eviction_soft: BTreeMap<String, String>,
        /// Grace period of each soft threshold, by signal.
        "evictionSoftGracePeriod" eviction_soft_grace_period: BTreeMap<String, String>,
        /// How long a pressure condition is kept after the pressure has ended. Default 5m.
        "evictionPressureTransitionPeriod" eviction_pressure_transition_period: GoDuration,
        /// Maximum grace period in seconds of pods evicted by a soft threshold, which otherwise have their own; 0 means
        /// the shortest one, and a negative value no maximum. Default 0.
        "evictionMaxPodGracePeriod" eviction_max_pod_grace_period: i32,
        /// Minimum amount that an eviction reclaims, by signal.
        "evictionMinimumReclaim" eviction_minimum_reclaim: BTreeMap<String, String>,
        /// Keep the default thresholds of signals that are not configured. Default false.
        "mergeDefaultEvictionSettings" merge_default_eviction_settings: bool,
        /// Maximum number of pods per CPU core; 0 (default) means no limit.
        "podsPerCore" pods_per_core: i32,
        /// Leave attaching volumes to the attach/detach controller. Default true.
        "enableControllerAttachDetach" enable_controller_attach_detach: bool,
        /// Fail if kernel settings differ from the expected ones. Default false.
        "protectKernelDefaults" protect_kernel_defaults: bool,
        /// Create iptables chains. Default true.
        "makeIPTablesUtilChains" make_iptables_util_chains: bool,
        /// Masquerade mark bit. Default 14.
        "iptablesMasqueradeBit" iptables_masquerade_bit: i32,
        /// Drop mark bit. Default 15.
        "iptablesDropBit" iptables_drop_bit: i32,
        /// Feature gates by name.
        "featureGates" feature_gates: BTreeMap<String, bool>,
        /// Refuse to start if swap is on. Default true.
        "failSwapOn" fail_swap_on: bool,
        /// Swap behavior of containers.
        "memorySwap" memory_swap: MemorySwapConfiguration,
        /// Log size that triggers rotation. Default 10Mi.
        "containerLogMaxSize" container_log_max_size: String,
        /// Log files kept per container. Default 5.
        "containerLogMaxFiles" container_log_max_files: i32,
        /// Maximum number of concurrent rotations. Default 1.
        "containerLogMaxWorkers" container_log_max_workers: i32,
        /// Log size check interval. Default 10s.
        "containerLogMonitorInterval" container_log_monitor_interval: GoDuration,
        /// `Watch` (default), `Cache` or `Get`.
        "configMapAndSecretChangeDetectionStrategy"
            config_map_and_secret_change_detection_strategy: String,
        /// Resources reserved for system daemons.
        "systemReserved" system_reserved: BTreeMap<String, String>,
        /// Resources reserved for Kubernetes daemons.
        "kubeReserved" kube_reserved: BTreeMap<String, String>,
        /// CPUs reserved for the system, as a list such as `0-3`.
        "reservedSystemCPUs" reserved_system_cpus: String,
        /// Show metrics hidden in this release.
        "showHiddenMetricsForVersion" show_hidden_metrics_for_version: String,
        /// Cgroup of system daemons.
        "systemReservedCgroup" system_reserved_cgroup: String,
        /// Cgroup of Kubernetes daemons.
        "kubeReservedCgroup" kube_reserved_cgroup: String,
        /// Which reservations are enforced. Default `pods`.
        "enforceNodeAllocatable" enforce_node_allocatable: Vec<String>,
        /// Unsafe sysctls that pods may set; a trailing `*` is a wildcard.
        "allowedUnsafeSysctls" allowed_unsafe_sysctls: Vec<String>,
        /// Directory of exec volume plugins.
        "volumePluginDir" volume_plugin_dir: String,
        /// ID of this machine at its cloud provider.
        "providerID" provider_id: String,
        /// Kernel memory notifications for eviction. Default false.
        "kernelMemcgNotification" kernel_memcg_notification: bool,
        /// Log format and verbosity.
        "logging" logging: LoggingConfiguration,
        /// Serve `/logs/`. Default true.
        "enableSystemLogHandler" enable_system_log_handler: bool,
        /// Serve logs of services at `/logs/`. Default false.
        "enableSystemLogQuery" enable_system_log_query: bool,
        /// Total delay of a node shutdown for pods to terminate; 0s (default) disables graceful shutdown.
        "shutdownGracePeriod" shutdown_grace_period: GoDuration,
        /// The part of it for critical pods.
        "shutdownGracePeriodCriticalPods" shutdown_grace_period_critical_pods: GoDuration,
        /// Shutdown grace periods by pod priority.
        "shutdownGracePeriodByPodPriority"
            shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
        /// Container restart back-off.
        "crashLoopBackOff" crash_loop_back_off: CrashLoopBackOffConfig,
        /// Memory reserved per NUMA node.
        "reservedMemory" reserved_memory: Vec<MemoryReservation>,
        /// Serve profiles at `/debug/pprof/`. Default true.
        "enableProfilingHandler" enable_profiling_handler: bool,
        /// Serve `/debug/flags/v`. Default true.
        "enableDebugFlagsHandler" enable_debug_flags_handler: bool,
        /// Use the runtime's default seccomp profile for containers that do not set one. Default false.
        "seccompDefault" seccomp_default: bool,
        /// Memory QoS throttling factor. Default 0.9.
        "memoryThrottlingFactor" memory_throttling_factor: f64,
        /// `None` (default) or `TieredReservation`.
        "memoryReservationPolicy" memory_reservation_policy: String,
        /// Taints the node registers with.
        "registerWithTaints" register_with_taints: Vec<Taint>,
        /// Register the node. Default true.
        "registerNode" register_node: bool,
        /// OpenTelemetry tracing.
        "tracing" tracing: TracingConfiguration,
        /// Enforce ephemeral storage limits. Default true.
        "localStorageCapacityIsolation" local_storage_capacity_isolation: bool,
        /// CRI endpoint. Default `unix:///run/containerd/containerd.sock`.
        "containerRuntimeEndpoint" container_runtime_endpoint: String,
        /// CRI endpoint of the image service. Default: that of the runtime.
        "imageServiceEndpoint" image_service_endpoint: String,
        /// Refuse to start on cgroup v1. Default true.
        "failCgroupV1" fail_cgroup_v1: bool,
        /// User namespaces.
        "userNamespaces" user_namespaces: UserNamespacesSection,
    }
}
