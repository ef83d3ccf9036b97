//! The validated configuration in concrete types: what the app builds from.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::feature_gates::FeatureGate;
use super::kubelet_configuration::{HeaderValues, KubeletConfiguration};
use super::logging::LoggingConfig;
use crate::base::SecretUrl;
use crate::base::otel::TracingSettings;
use crate::cri::RuntimeConfig;
use crate::images::ImagesConfig;
use crate::images::gc::ImageGcPolicy;
use crate::node::NodeConfig;
use crate::node::certificates::IdentityConfig;
use crate::resources::cm::CgroupsConfig;
use crate::resources::managers::ManagersConfig;
use crate::runtime::kuberuntime::UserNamespacesConfig;
use crate::server::ServerConfig;

/// A kubelet's configuration: defaults, file, drop-ins and flags in one, checked.
#[derive(Debug, Clone)]
pub struct KubeletConfig {
    /// This node's name: the override or the kernel's hostname, trimmed and in lower case.
    pub node_name: String,
    /// Addresses given for this node; empty when the one that it has is to be found.
    pub node_ips: Vec<IpAddr>,
    /// Whether IPv6 comes before IPv4 among the addresses of the node and of pods.
    pub ipv6_first: bool,
    /// Where pod volumes and state live.
    pub root_dir: PathBuf,
    /// Where ConfigMaps and Secrets of static pods are; `None` when static pods may not refer to any.
    pub local_objects_dir: Option<PathBuf>,
    /// Whether clients may post pods.
    pub allow_posted_pods: bool,
    /// File to hold a lock on while running.
    pub lock_file: Option<PathBuf>,
    /// Exit when another process opens that file, as one does that wants the lock.
    pub exit_on_lock_contention: bool,
    /// Longest time between two syncs of a pod.
    pub sync_frequency: Duration,
    /// Where static pods come from.
    pub static_pods: StaticPodSources,
    /// Addresses to listen on, and their authentication and authorization.
    pub server: ServerConfig,
    /// How to reach the API server; `None` for a node of its own.
    pub kubeconfig: Option<PathBuf>,
    /// How the kubelet is known to the API server.
    pub identity: IdentityConfig,
    /// The Node object; without an API server there is none.
    pub node: NodeConfig,
    /// The container runtime.
    pub runtime: RuntimeConfig,
    /// Image pulls.
    pub images: ImagesConfig,
    /// Removal of unused images.
    pub image_gc: ImageGcPolicy,
    /// Containers.
    pub containers: ContainersConfig,
    /// The node's cgroups.
    pub cgroups: CgroupsConfig,
    /// The managers of exclusive CPUs and memory.
    pub managers: ManagersConfig,
    /// User namespaces of pods.
    pub user_namespaces: UserNamespacesConfig,
    /// Container log files.
    pub container_logs: ContainerLogsConfig,
    /// DNS of pods.
    pub dns: DnsConfig,
    /// OOM score adjustment of the kubelet itself.
    pub oom_score_adj: i32,
    /// How many files the kubelet may have open; its limit is set to that.
    pub max_open_files: u64,
    /// Refuse to start with swap on.
    pub fail_swap_on: bool,
    /// Refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// Feature gates given by name; all known to v1.36.
    pub feature_gates: BTreeMap<String, bool>,
    /// The kubelet's own log.
    pub logging: LoggingConfig,
    /// Traces, if they are wanted.
    pub tracing: Option<TracingSettings>,
    /// The whole configuration with defaults.
    pub effective: KubeletConfiguration,
    /// The same without secrets, as `/configz` shows it.
    pub shown: serde_json::Value,
    /// Flags and their values without secrets, as `/flagz` shows them.
    pub flags_shown: Vec<(String, String)>,
    /// Settings given that this kubelet does not act on yet, by field or flag: log them once.
    pub unsupported: Vec<String>,
    /// Other remarks to log once.
    pub warnings: Vec<String>,
}

/// Where static pods come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPodSources {
    /// File or directory of manifests.
    pub path: Option<PathBuf>,
    /// Re-list interval of `path`.
    pub file_check_frequency: Duration,
    /// URL of manifests.
    pub url: Option<SecretUrl>,
    /// Headers sent with requests to `url`.
    pub url_headers: BTreeMap<String, HeaderValues>,
    /// Poll interval of `url`.
    pub http_check_frequency: Duration,
}

/// Containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainersConfig {
    /// Longest wait between restarts, 1 to 300 seconds.
    pub max_restart_back_off: Duration,
    /// Runtime's seccomp profile unless the pod chooses.
    pub seccomp_default: bool,
    /// Enforce CPU limits.
    pub cpu_cfs_quota: bool,
    /// CFS period, 1 ms to 1 s.
    pub cpu_cfs_quota_period: Duration,
    /// Youngest dead container that may be removed.
    pub min_dead_age: Duration,
    /// Dead instances kept per container; `None` is no limit.
    pub max_dead_per_container: Option<u32>,
    /// Dead instances kept on the node; `None` is no limit.
    pub max_dead_total: Option<u32>,
    /// Sysctls that pods may set besides the safe ones; one that ends in `*` stands for all that begin
    /// so.
    pub allowed_unsafe_sysctls: Vec<String>,
}

/// Container log files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerLogsConfig {
    /// Root of the per-pod directories.
    pub pod_logs_dir: PathBuf,
    /// Size in bytes that triggers rotation; `None` for no rotation (a negative size, as upstream has it).
    pub max_size: Option<u64>,
    /// Files kept per container, 2 or more.
    pub max_files: u32,
    /// Rotations at once.
    pub max_workers: u32,
    /// Size check interval.
    pub monitor_interval: Duration,
}

/// DNS of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsConfig {
    /// Cluster DNS servers.
    pub cluster_dns: Vec<IpAddr>,
    /// Cluster domain; empty when there is none.
    pub cluster_domain: String,
    /// Host resolver file to start from; `None` when pods get nothing from the host.
    pub resolv_conf: Option<PathBuf>,
}

impl KubeletConfig {
    /// Whether pods may swap by their requests (`memorySwap`); else they may not at all.
    pub fn limited_swap(&self) -> bool {
        let swap = self.effective.memory_swap.as_ref();
        let behaviour = swap.and_then(|swap| swap.swap_behavior.as_deref());
        behaviour == Some("LimitedSwap")
    }

    /// Whether a gate is on.
    pub fn is_on(&self, gate: FeatureGate) -> bool {
        gate.is_on(Some(&self.feature_gates))
    }
}
