//! The validated configuration in concrete types, from which the app is built.

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
use crate::runtime::kuberuntime::{GcPolicy, UserNamespacesConfig};
use crate::runtime::logs::rotation;
use crate::server::ServerConfig;

/// The resolved configuration of a kubelet: defaults, file, drop-ins and flags, validated.
#[derive(Debug, Clone)]
pub struct KubeletConfig {
    /// The node's name: `--hostname-override` or the hostname, trimmed and in lower case.
    pub node_name: String,
    /// The addresses of `--node-ip`; empty if the address is to be detected.
    pub node_ips: Vec<IpAddr>,
    /// Whether IPv6 is preferred for the addresses of the node and of pods.
    pub ipv6_first: bool,
    /// The directory of pod volumes and state.
    pub root_dir: PathBuf,
    /// The directory of ConfigMaps and Secrets for static pods; `None` if static pods may not refer to any.
    pub local_objects_dir: Option<PathBuf>,
    /// Whether clients may post pods.
    pub allow_posted_pods: bool,
    /// The file to lock while running.
    pub lock_file: Option<PathBuf>,
    /// Exit when another process opens the lock file, which means that it waits for the lock.
    pub exit_on_lock_contention: bool,
    /// Maximum interval between two syncs of a pod.
    pub sync_frequency: Duration,
    /// The sources of static pods.
    pub static_pods: StaticPodSources,
    /// Listen addresses, authentication and authorization.
    pub server: ServerConfig,
    /// The kubeconfig of the API server; `None` for a standalone node.
    pub kubeconfig: Option<PathBuf>,
    /// The kubelet's credentials for the API server.
    pub identity: IdentityConfig,
    /// The Node object; used only with an API server.
    pub node: NodeConfig,
    /// The container runtime.
    pub runtime: RuntimeConfig,
    /// Image pulls.
    pub images: ImagesConfig,
    /// Image garbage collection.
    pub image_gc: ImageGcPolicy,
    /// Containers.
    pub containers: ContainersConfig,
    /// The node's cgroups.
    pub cgroups: CgroupsConfig,
    /// The CPU, memory and topology managers.
    pub managers: ManagersConfig,
    /// User namespaces of pods.
    pub user_namespaces: UserNamespacesConfig,
    /// Root of the per-pod directories of container logs.
    pub pod_logs_dir: PathBuf,
    /// Rotation of container logs; `None` for a negative `containerLogMaxSize`, as upstream.
    pub log_rotation: Option<rotation::Config>,
    /// DNS of pods.
    pub dns: DnsConfig,
    /// OOM score adjustment of the kubelet itself.
    pub oom_score_adj: i32,
    /// Limit of open files that the kubelet sets for itself.
    pub max_open_files: u64,
    /// Refuse to start if swap is on.
    pub fail_swap_on: bool,
    /// Refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// Feature gates that were given; all are known to v1.36.
    pub feature_gates: BTreeMap<String, bool>,
    /// The kubelet's own log.
    pub logging: LoggingConfig,
    /// Traces, if enabled.
    pub tracing: Option<TracingSettings>,
    /// The whole configuration with defaults.
    pub effective: KubeletConfiguration,
    /// The configuration without secrets, for `/configz`.
    pub redacted: serde_json::Value,
    /// Flags and their values without secrets, for `/flagz`.
    pub redacted_flags: Vec<(String, String)>,
    /// Given settings that have no effect yet, by field or flag; to be logged once.
    pub unsupported: Vec<String>,
    /// Warnings to be logged once.
    pub warnings: Vec<String>,
}

/// The sources of static pods.
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
    /// Maximum back-off between restarts, 1 to 300 seconds.
    pub max_restart_back_off: Duration,
    /// Use the runtime's default seccomp profile for containers that do not set one.
    pub seccomp_default: bool,
    /// Enforce CPU limits.
    pub cpu_cfs_quota: bool,
    /// CFS period, 1 ms to 1 s.
    pub cpu_cfs_quota_period: Duration,
    /// How many exited containers are kept.
    pub gc_policy: GcPolicy,
    /// Sysctls that pods may set besides the safe ones; a trailing `*` is a wildcard.
    pub allowed_unsafe_sysctls: Vec<String>,
}

/// DNS of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsConfig {
    /// Cluster DNS servers.
    pub cluster_dns: Vec<IpAddr>,
    /// Cluster domain; empty for none.
    pub cluster_domain: String,
    /// The host's resolver configuration; `None` if pods get nothing from the host.
    pub resolv_conf: Option<PathBuf>,
}

impl KubeletConfig {
    /// Whether pods may use swap in proportion to their requests (`LimitedSwap`); otherwise they may not swap.
    pub fn limited_swap(&self) -> bool {
        let swap = self.effective.memory_swap.as_ref();
        let behaviour = swap.and_then(|swap| swap.swap_behavior.as_deref());
        behaviour == Some("LimitedSwap")
    }

    /// All warnings for an operator, also about settings without effect.
    pub fn all_warnings(&self) -> Vec<String> {
        let names = self.unsupported.join(", ");
        let idle = format!("accepted and without effect in this kubelet: {names}");
        let idle = Some(idle).filter(|_| !names.is_empty());
        self.warnings.iter().cloned().chain(idle).collect()
    }

    /// Whether a feature gate is enabled.
    pub fn is_on(&self, gate: FeatureGate) -> bool {
        gate.is_on(Some(&self.feature_gates))
    }
}
