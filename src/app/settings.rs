//! Converts the kubelet's configuration to the settings of each area.

use super::Periods;
use crate::apiserver::ApiServer;
use crate::base::GoDuration;
use crate::config::kubelet_configuration::KubeletConfiguration;
use crate::config::{FeatureGate, KubeletConfig, NODE_VERSION};
use crate::host::HostMachine;
use crate::model::validation::LocalConfigMapsAndSecrets;
use crate::model::{AddressOrder, NodeFacts, PodSource, Quantity};
use crate::node::certificates::CertificateDeps;
use crate::node::eviction::EvictionSettings;
use crate::node::eviction::thresholds::{thresholds, with_allocatable};
use crate::node::node_status::resources::ReservedResources;
use crate::node::shutdown::plan::{self, ShutdownPhase};
use crate::node::stats::{MeasureVolumes, SystemCgroups};
use crate::node::{self, NodeProfile};
use crate::pods;
use crate::pods::pod_config::{self, ApiConfig, FileConfig, HttpConfig, PostedPods};
use crate::pods::sync_loop::ResizeRules;
use crate::resources::managers::NodeReserved;
use crate::resources::memory::NodeReservation;
use crate::resources::{self, HealthDetail, MemoryQos, ResourceEnforcement, SwapBehavior, cm};
use crate::runtime::kuberuntime::{self, GenerateSettings, log_paths};
use crate::server;
use crate::server::tls::ServingCertificate;
use crate::state::node_object::HostIps;
use crate::state::{self, Stores};
use crate::volumes::KubeletRoot;
use crate::volumes::csi::manager::CsiVolumes;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

pub(super) fn state(config: &KubeletConfig) -> state::Config {
    state::Config {
        // The name is kept for compatibility with directories of older versions.
        pod_state_dir: config.root_dir.join("journal"),
        address_order: AddressOrder::new(config.ipv6_first),
        has_api_server: config.kubeconfig.is_some(),
    }
}

/// `None` for a standalone node.
pub(super) fn identity(config: &KubeletConfig, api: Option<ApiServer>) -> Option<CertificateDeps> {
    let issued = matches!(config.server.tls.certificate, ServingCertificate::Issued { .. });
    Some(CertificateDeps {
        api: api?,
        kubeconfig: config.kubeconfig.clone()?,
        config: config.identity.clone(),
        node_name: config.node_name.clone(),
        node_ips: config.node_ips.clone(),
        ipv6_first: config.ipv6_first,
        server_tls_bootstrap: issued && config.server.enabled,
    })
}

pub(super) fn resources(config: &KubeletConfig, machine: &HostMachine) -> resources::Config {
    let health = if !config.is_on(FeatureGate::ResourceHealthStatus) {
        HealthDetail::Nothing
    } else if config.is_on(FeatureGate::ResourceHealthStatusMessage) {
        HealthDetail::Everything
    } else {
        HealthDetail::WithoutMessages
    };
    let reservation = &config.node.reservation;
    resources::Config {
        cgroups: config.cgroups.clone(),
        managers: config.managers.clone(),
        reserved: NodeReserved {
            milli_cpu: reservation.milli_cpu,
            memory: reserved_memory(reservation, machine.memory_bytes),
        },
        enforcement: resource_enforcement(config, machine),
        health,
        oom_score_adj: config.oom_score_adj,
    }
}

/// Reserved resources and the hard eviction threshold for memory.
fn reserved_memory(reservation: &ReservedResources, memory_bytes: u64) -> NodeReservation {
    let capacity = i64::try_from(memory_bytes).unwrap_or(i64::MAX);
    let threshold = reservation.memory_threshold;
    let threshold = threshold.map(|threshold| threshold.of(capacity));
    let bytes = reservation.memory.saturating_add(threshold.unwrap_or_default());
    let memory = Quantity::parse(&bytes.to_string()).unwrap_or_default();
    [("memory".to_owned(), memory)].into()
}

/// How CPU and memory limits are enforced.
fn resource_enforcement(config: &KubeletConfig, machine: &HostMachine) -> ResourceEnforcement {
    let period = config.containers.cpu_cfs_quota_period.as_micros();
    ResourceEnforcement {
        cfs_quota: config.containers.cpu_cfs_quota,
        period_microseconds: i64::try_from(period).unwrap_or(100_000),
        oom_group: machine.cgroup_v2 && config.effective.single_process_oom_kill != Some(true),
        swap: if !machine.limits_swap {
            SwapBehavior::Unlimited
        } else if !machine.cgroup_v2 {
            SwapBehavior::NoSwapV1
        } else if config.limited_swap() {
            SwapBehavior::LimitedSwap {
                capacity_bytes: i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX),
            }
        } else {
            SwapBehavior::NoSwap
        },
        memory_qos: (config.cgroups.memory_qos && machine.cgroup_v2).then(|| MemoryQos {
            throttling_factor: config.effective.memory_throttling_factor.unwrap_or(0.9),
            tiered_reservation: config.cgroups.tiered_reservation,
        }),
    }
}

pub(super) fn runtime(config: &KubeletConfig) -> kuberuntime::Config {
    kuberuntime::Config {
        max_restart_back_off: config.containers.max_restart_back_off,
        gc_policy: config.containers.gc_policy,
        resolv_conf: config.dns.resolv_conf.clone(),
        log_links: Some(log_paths::log_links_dir(&config.pod_logs_dir)),
    }
}

pub(super) fn containers(
    config: &KubeletConfig,
    root: KubeletRoot,
    enforcement: ResourceEnforcement,
    node: Arc<NodeFacts>,
    host_ips: HostIps,
) -> GenerateSettings {
    GenerateSettings {
        root,
        pod_logs_dir: config.pod_logs_dir.clone(),
        cluster_dns: config.dns.cluster_dns.clone(),
        cluster_domain: config.dns.cluster_domain.clone(),
        seccomp_default: config.containers.seccomp_default,
        enforcement,
        node,
        host_ips,
    }
}

pub(super) fn pods(
    config: &KubeletConfig,
    periods: Periods,
    api: Option<ApiServer>,
    stores: &Stores,
    machine: &HostMachine,
    enforcement: &ResourceEnforcement,
    node: &NodeFacts,
) -> pods::Config {
    pods::Config {
        node_name: config.node_name.clone(),
        sources: sources(config, api, stores),
        sync_frequency: config.sync_frequency,
        pleg: periods.pleg,
        housekeeping_period: periods.housekeeping,
        resize_rules: ResizeRules {
            static_cpus: config.managers.cpu.is_some(),
            static_memory: config.managers.memory.is_some(),
            limited_swap: matches!(enforcement.swap, SwapBehavior::LimitedSwap { .. }),
            allocatable: cm::allocatable(&config.cgroups, machine),
        },
        node_ip: node.address().into(),
    }
}

fn posted_dir(config: &KubeletConfig) -> PathBuf {
    config.root_dir.join("posted-pods")
}

/// The store of posted pods; `None` if clients may not post pods.
pub(super) fn posted_pods(config: &KubeletConfig) -> std::io::Result<Option<PostedPods>> {
    if !config.allow_posted_pods {
        return Ok(None);
    }
    let config_maps_and_secrets =
        LocalConfigMapsAndSecrets::new(config.local_objects_dir.is_some());
    PostedPods::open(&posted_dir(config), &config.node_name, config_maps_and_secrets).map(Some)
}

fn manifest_files(config: &KubeletConfig) -> Option<FileConfig> {
    let path = config.static_pods.path.clone()?;
    Some(file_source(config, PodSource::File, path))
}

fn posted_files(config: &KubeletConfig) -> Option<FileConfig> {
    let path = config.allow_posted_pods.then(|| posted_dir(config))?;
    Some(file_source(config, PodSource::Posted, path))
}

fn file_source(config: &KubeletConfig, source: PodSource, path: PathBuf) -> FileConfig {
    FileConfig {
        source,
        path,
        check_period: config.static_pods.file_check_frequency,
        config_maps_and_secrets: LocalConfigMapsAndSecrets::new(config.local_objects_dir.is_some()),
    }
}

/// The sources of pods whose manifests are files.
pub(super) fn manifest_sources(config: &KubeletConfig) -> impl Iterator<Item = FileConfig> {
    manifest_files(config).into_iter().chain(posted_files(config))
}

fn sources(config: &KubeletConfig, api: Option<ApiServer>, stores: &Stores) -> pod_config::Config {
    let sources = &config.static_pods;
    let config_maps_and_secrets =
        LocalConfigMapsAndSecrets::new(config.local_objects_dir.is_some());
    pod_config::Config {
        node_name: config.node_name.clone(),
        file: manifest_files(config),
        http: sources.url.clone().map(|url| HttpConfig {
            url,
            headers: headers(sources),
            check_period: sources.http_check_frequency,
            config_maps_and_secrets,
        }),
        posted: posted_files(config),
        api: api.map(|api| ApiConfig {
            api,
            directory: config.root_dir.join("api-pods"),
            cache: stores.pod_cache.clone(),
            node: stores.node_object.clone(),
        }),
        cache: stores.pod_cache.clone(),
    }
}

fn headers(sources: &crate::config::StaticPodSources) -> Vec<(String, String)> {
    let pairs = sources.url_headers.iter();
    pairs
        .flat_map(|(name, values)| values.0.iter().map(|value| (name.clone(), value.clone())))
        .collect()
}

pub(super) fn profile(config: &KubeletConfig) -> NodeProfile {
    let port = config.server.enabled.then(|| config.server.address.port());
    NodeProfile {
        name: config.node_name.clone(),
        given_ips: config.node_ips.clone(),
        ipv6_first: config.ipv6_first,
        root_dir: config.root_dir.clone(),
        port,
        version: NODE_VERSION,
        node: config.node.clone(),
    }
}

pub(super) fn node(config: &KubeletConfig) -> node::Config {
    let phases = if config.is_on(FeatureGate::GracefulNodeShutdown) {
        shutdown_phases(&config.effective)
    } else {
        Vec::new()
    };
    node::Config {
        profile: profile(config),
        image_gc: config.image_gc,
        eviction: eviction(config),
        shutdown_phases: phases,
    }
}

fn eviction(config: &KubeletConfig) -> EvictionSettings {
    let given = &config.effective;
    let map = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
    let grace = map(&given.eviction_soft_grace_period);
    let grace = grace.into_iter().filter_map(|(signal, period)| {
        let period = period.parse::<GoDuration>().ok()?;
        Some((signal, period.to_std()))
    });
    let mut thresholds = thresholds(
        &map(&given.eviction_hard),
        &map(&given.eviction_soft),
        &grace.collect(),
        &map(&given.eviction_minimum_reclaim),
    );
    if config.cgroups.enforce_pods {
        thresholds = with_allocatable(thresholds);
    }
    let transition = given.eviction_pressure_transition_period;
    EvictionSettings {
        node_name: config.node_name.clone(),
        thresholds,
        transition: transition.map(GoDuration::to_std).unwrap_or_default(),
        max_grace: {
            let seconds = given.eviction_max_pod_grace_period.unwrap_or(0);
            (seconds >= 0).then_some(seconds.into())
        },
        local_storage: config.node.local_storage_isolation,
    }
}

fn shutdown_phases(config: &KubeletConfiguration) -> Vec<ShutdownPhase> {
    let periods = config.shutdown_grace_period_by_pod_priority.iter().flatten();
    let by_priority = periods.map(|period| ShutdownPhase {
        priority: period.priority.unwrap_or_default(),
        grace: period.shutdown_grace_period_seconds.unwrap_or_default(),
    });
    let time = |given: Option<GoDuration>| given.unwrap_or_default().to_std();
    plan::phases(
        by_priority.collect(),
        time(config.shutdown_grace_period),
        time(config.shutdown_grace_period_critical_pods),
    )
}

/// `volumePluginDir`, which has a default.
pub(super) fn volume_plugin_dir(config: &KubeletConfig) -> PathBuf {
    let directory = config.effective.volume_plugin_dir.clone();
    directory.unwrap_or_default().into()
}

/// `volumeStatsAggPeriod`; zero and negative periods disable measurements of volumes.
pub(super) fn volume_stats_period(config: &KubeletConfig) -> Option<Duration> {
    let period = config.effective.volume_stats_agg_period?;
    Some(period.to_std()).filter(|period| !period.is_zero())
}

/// Has drivers report the usage of their volumes, unless that is disabled.
pub(super) fn measure_volumes(config: &KubeletConfig, csi: CsiVolumes) -> MeasureVolumes {
    let period = volume_stats_period(config);
    Arc::new(move || {
        let csi = csi.clone();
        Box::pin(async move {
            if let Some(period) = period {
                csi.measure(period).await;
            }
        })
    })
}

pub(super) fn system_cgroups(
    config: &KubeletConfig,
    pods: watch::Receiver<Option<String>>,
) -> SystemCgroups {
    SystemCgroups {
        kubelet: config.cgroups.kubelet.clone(),
        runtime: config.cgroups.runtime.clone(),
        system: config.cgroups.system.clone(),
        pods,
    }
}

/// The addresses for the self-signed certificate.
pub(super) fn addresses(config: &KubeletConfig, detected: Option<IpAddr>) -> Vec<IpAddr> {
    if config.node_ips.is_empty() {
        detected.into_iter().collect()
    } else {
        config.node_ips.clone()
    }
}

pub(super) fn server(config: &KubeletConfig) -> server::Config {
    server::Config {
        node_name: config.node_name.clone(),
        checkpoints_dir: config.root_dir.join("checkpoints"),
        log_path: log_paths::log_path(config.pod_logs_dir.clone()),
        split_log_streams: config.is_on(FeatureGate::PodLogsQuerySplitStreams),
        log_query: config.effective.enable_system_log_query == Some(true),
        stream_idle: config.server.stream_idle,
        disabled: config.server.disabled.clone(),
    }
}
