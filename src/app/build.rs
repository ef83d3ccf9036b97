//! The graph of parts, from the boards up to the loop.

use super::memory;
use crate::{
    base::Tasks,
    config::{KubeletConfig, StaticPodSources},
    cri::{
        CriConnection, CriMetrics, Endpoint, ImageClient, RuntimeClient, RuntimeInfo,
        events::event_stream,
    },
    events::EventRecorder,
    host::Machine,
    images::{ImageManager, PullConfig},
    journal::Journal,
    kuberuntime::{self, GcPolicy, KubeGenericRuntimeManager, SpecSettings},
    lifecycle::{Hooks, runtime_exec},
    metrics::Metrics,
    model::{Pod, PodExt, PodUid},
    pleg::{self, Pleg},
    pod_cache::{self, PodCache, PodCacheWriter},
    pod_config::{self, FileConfig, HttpConfig, PodConfig},
    pod_manager::{PodManager, PodManagerWriter},
    pod_sync::{PodSync, StatusPublisher},
    pod_workers::{Delays, PodWorkers},
    probe_results::{self, ProbeResults},
    prober::{self, ContainerView, ProbeManager, View},
    resources::{CpuEnforcement, NodeFacts},
    server::HealthChecks,
    status::{StatusManager, Statuses},
    sync_loop::{Heartbeat, SyncLoop},
    volumes::{HostMounter, KubeletRoot, VolumeManager},
};
use anyhow::Context as _;
use jiff::Timestamp;
use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

/// Where collectors look for logs while pod logs are in their usual place.
const LOG_LINKS: &str = "/var/log/containers";

/// Everything that does not need the runtime to answer.
pub struct Boards {
    pub(super) metrics: Metrics,
    pub(super) events: EventRecorder,
    pub(super) runtime: RuntimeClient,
    pub(super) images: ImageClient,
    pub(super) journal: Journal,
    pub(super) root: KubeletRoot,
    pub(super) manager: PodManagerWriter,
    pub(super) statuses: StatusManager,
    pub(super) cache: PodCache,
    pub(super) cache_writer: PodCacheWriter,
    pub(super) heartbeat: Heartbeat,
    pub(super) started_at: Timestamp,
    pub(super) machine: Machine,
}

impl Boards {
    /// Reads what is on disk and prepares connections.
    pub(super) fn open(config: &KubeletConfig, machine: Machine) -> anyhow::Result<Self> {
        let metrics = Metrics::new();
        let cri_metrics = CriMetrics::new(&metrics);
        let timeout = config.runtime.request_timeout;
        let endpoint = Endpoint::parse(&config.runtime.endpoint)
            .with_context(|| format!("containerRuntimeEndpoint {:?}", config.runtime.endpoint))?;
        let image_endpoint = Endpoint::parse(&config.runtime.image_endpoint)
            .with_context(|| format!("imageServiceEndpoint {:?}", config.runtime.image_endpoint))?;
        let connection = CriConnection::new(endpoint.clone(), timeout, &cri_metrics);
        let image_connection = match image_endpoint == endpoint {
            true => connection.clone(),
            false => CriConnection::new(image_endpoint, timeout, &cri_metrics),
        };
        let root = KubeletRoot::create(&config.root_dir)
            .with_context(|| format!("cannot use root directory {}", config.root_dir.display()))?;
        let journal = Journal::open(config.root_dir.join("journal"))?;
        let (cache_writer, cache) = pod_cache::board();
        Ok(Self {
            metrics,
            events: EventRecorder::new(),
            runtime: RuntimeClient::new(connection),
            images: ImageClient::new(image_connection),
            journal,
            root,
            manager: PodManagerWriter::default(),
            statuses: StatusManager::new(),
            cache,
            cache_writer,
            heartbeat: Heartbeat::new(),
            started_at: Timestamp::now(),
            machine,
        })
    }

    /// The checks of the read-only port.
    pub(super) fn health_checks(&self, sync_frequency: Duration) -> HealthChecks {
        let heartbeat = self.heartbeat.clone();
        let limit = (2 * sync_frequency).max(Duration::from_secs(300));
        HealthChecks::ping()
            .with("log", || Ok(()))
            .with("syncloop", move || {
                let age = heartbeat.age();
                match age > limit {
                    true => Err(format!(
                        "the sync loop has not turned for {} s",
                        age.as_secs()
                    )),
                    false => Ok(()),
                }
            })
    }
}

/// Builds what needs the runtime's word and starts every task.
pub(super) async fn start(
    config: &KubeletConfig,
    boards: Boards,
    info: &RuntimeInfo,
    tasks: &mut Tasks,
) -> anyhow::Result<PodWorkers> {
    let node = Arc::new(node_facts(config, &boards.machine, info)?);
    let volumes = VolumeManager::new(boards.root.clone(), node.clone(), HostMounter);
    let (results_writer, results) = probe_results::board();
    let runtime = runtime_manager(config, &boards, &node, &volumes, &results);
    let (stream, hints) = event_stream(boards.runtime.clone());
    let pleg_config = pleg::Config::default();
    let (pleg, state) = pleg::build(
        boards.runtime.clone(),
        boards.cache_writer,
        hints,
        pleg_config,
        &info.status,
    );
    let view = container_view(
        boards.cache.clone(),
        boards.manager.reader(),
        boards.statuses.reader(),
        node.host_ips.first().cloned(),
    );
    let probe_parts = prober::Parts {
        started_at: boards.started_at,
        exec: runtime_exec(boards.runtime.clone()),
        view,
        results: results_writer,
        journal: boards.journal.clone(),
        events: boards.events.clone(),
    };
    let probes = ProbeManager::new(probe_parts, &boards.metrics);
    let statuses_board = boards.statuses.reader();
    let statuses = Arc::new(StatusPublisher::new(
        runtime.clone(),
        info.version.runtime_name.clone(),
        boards.statuses,
        boards.cache.clone(),
        results.clone(),
        boards.journal.clone(),
    ));
    let pod_sync = Arc::new(PodSync {
        runtime,
        cache: boards.cache.clone(),
        statuses,
        probes,
        volumes,
        journal: boards.journal.clone(),
        events: boards.events.clone(),
        state,
    });
    let delays = Delays {
        resync: config.sync_frequency,
        ..Delays::default()
    };
    let workers = PodWorkers::new(pod_sync.clone(), delays);
    let (updates, sources) = PodConfig::start(source_config(config), boards.events.clone(), tasks)?;
    let sync_loop = SyncLoop {
        updates,
        sources,
        manager: boards.manager,
        workers: workers.clone(),
        cache: boards.cache,
        results,
        pod_sync,
        heartbeat: boards.heartbeat,
        cleaning: HashSet::new(),
        cleaned: Arc::default(),
        strays: Arc::default(),
    };
    let shutdown = tasks.shutdown();
    let Pleg {
        relist,
        hints,
        inspect,
        status,
    } = pleg;
    tasks.spawn("memory", memory::run(statuses_board, shutdown.clone()));
    tasks.spawn("journal", boards.journal.run(shutdown.clone()));
    tasks.spawn("cri.events", stream.run(shutdown.clone()));
    tasks.spawn("pleg.relist", relist.run(shutdown.clone()));
    tasks.spawn("pleg.events", hints.run(shutdown.clone()));
    tasks.spawn("pleg.inspect", inspect.run(shutdown.clone()));
    tasks.spawn("pleg.status", status.run(shutdown.clone()));
    tasks.spawn("sync_loop", sync_loop.run(shutdown));
    Ok(workers)
}

fn source_config(config: &KubeletConfig) -> pod_config::Config {
    let sources = &config.static_pods;
    pod_config::Config {
        node_name: config.node_name.clone(),
        file: sources.path.clone().map(|path| FileConfig {
            path,
            check_period: sources.file_check_frequency,
        }),
        http: sources.url.clone().map(|url| HttpConfig {
            url,
            headers: headers(sources),
            check_period: sources.http_check_frequency,
        }),
    }
}

fn headers(sources: &StaticPodSources) -> Vec<(String, String)> {
    let pairs = sources.url_headers.iter();
    pairs
        .flat_map(|(name, values)| values.0.iter().map(|value| (name.clone(), value.clone())))
        .collect()
}

/// Facts of the node, gathered once and outside any pod's path (P-43).
fn node_facts(
    config: &KubeletConfig,
    machine: &Machine,
    info: &RuntimeInfo,
) -> anyhow::Result<NodeFacts> {
    let host_ips = config.node_ips.iter().map(ToString::to_string).collect();
    let storage = crate::host::filesystem_bytes(&config.root_dir)
        .with_context(|| format!("cannot look at {}", config.root_dir.display()))?;
    let mut facts = NodeFacts::of(machine, storage, host_ips);
    facts.recursive_read_only_mounts = info.recursive_read_only_mounts();
    Ok(facts)
}

fn runtime_manager(
    config: &KubeletConfig,
    boards: &Boards,
    node: &Arc<NodeFacts>,
    volumes: &VolumeManager,
    results: &ProbeResults,
) -> KubeGenericRuntimeManager {
    let pulls = PullConfig {
        serialize: config.images.serialize,
        max_parallel: config.images.max_parallel,
        qps: config.images.qps.map_or(0.0, f64::from),
        burst: config.images.burst,
    };
    let containers = &config.containers;
    let period = containers.cpu_cfs_quota_period.as_micros();
    let logs = config.container_logs.pod_logs_dir.clone();
    KubeGenericRuntimeManager::new(kuberuntime::Deps {
        runtime: boards.runtime.clone(),
        images: ImageManager::new(boards.images.clone(), boards.events.clone(), &pulls),
        cache: boards.cache.clone(),
        events: boards.events.clone(),
        journal: boards.journal.clone(),
        results: results.clone(),
        hooks: Hooks::new(
            runtime_exec(boards.runtime.clone()),
            boards.events.clone(),
            &boards.metrics,
        ),
        volumes: volumes.clone(),
        config: kuberuntime::Config {
            max_restart_back_off: containers.max_restart_back_off,
            gc_policy: GcPolicy {
                min_age: containers.min_dead_age,
                max_per_container: containers.max_dead_per_container.map(|n| n as usize),
                max_containers: containers.max_dead_total.map(|n| n as usize),
            },
            resolv_conf: config.dns.resolv_conf.clone(),
            log_links: Some(log_links(&logs)),
        },
        settings: SpecSettings {
            root: boards.root.clone(),
            pod_logs_dir: logs,
            cluster_dns: config.dns.cluster_dns.clone(),
            cluster_domain: config.dns.cluster_domain.clone(),
            seccomp_default: containers.seccomp_default,
            cpu: CpuEnforcement {
                cfs_quota: containers.cpu_cfs_quota,
                period_microseconds: i64::try_from(period).unwrap_or(100_000),
                oom_group: boards.machine.cgroup_v2
                    && config.effective.single_process_oom_kill != Some(true),
            },
            node: node.clone(),
        },
    })
}

/// Links for collectors are beside the pod logs when those are not in their usual place.
fn log_links(logs: &std::path::Path) -> PathBuf {
    match (logs == std::path::Path::new("/var/log/pods"), logs.parent()) {
        (false, Some(parent)) => parent.join("containers"),
        _ => PathBuf::from(LOG_LINKS),
    }
}

/// What probes see of containers. A host-network pod is probed at the node's address; without one
/// configured, on loopback.
fn container_view(
    cache: PodCache,
    manager: PodManager,
    statuses: Statuses,
    node_ip: Option<String>,
) -> ContainerView {
    let node_ip = node_ip.unwrap_or_else(|| "127.0.0.1".into());
    Arc::new(move |uid: &PodUid, name: &str| {
        let picture = cache.latest(uid);
        let pod: Option<Arc<Pod>> = manager.get(uid);
        let host_network = pod.as_ref().is_some_and(|pod| pod.host_network());
        let phase = statuses.get(uid).and_then(|status| status.phase.clone());
        View {
            container: picture.newest(name).cloned(),
            pod_ip: match host_network {
                true => Some(node_ip.clone()),
                false => picture.ips().first().cloned(),
            },
            pod_terminal: matches!(phase.as_deref(), Some("Failed" | "Succeeded")),
            deleting: pod.is_some_and(|pod| pod.is_being_deleted()),
        }
    })
}
