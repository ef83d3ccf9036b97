//! Opens each area before the runtime has responded: reads the state on disk and builds the clients.

use super::pod_certificates::{self, CertificateNotices};
use super::settings;
use crate::apiserver::token::IssuedTokens;
use crate::apiserver::{ApiServer, ClusterObjects};
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use crate::base::{atomic_file, clock, if_exists};
use crate::config::{FeatureGate, KubeletConfig};
use crate::cri::{self, RuntimeClient};
use crate::host::HostMachine;
use crate::images::Images;
use crate::model::NodeFacts;
use crate::node;
use crate::node::event_sink::EventQueue;
use crate::node::stats::{Stats, StatsDeps};
use crate::pods::{self, PodsReader, PodsWriters};
use crate::resources;
use crate::resources::pod_resources::PodResourcesSocket;
use crate::state::{self, Stores, Writers};
use crate::volumes::csi::inputs::CsiSources;
use crate::volumes::csi::{CsiDrivers, CsiMetrics};
use crate::volumes::{
    ClusterSources, HostMounter, KubeletRoot, ProjectQuotas, VolumeManager, VolumeMetrics,
    hosts_file, termination_logs,
};
use anyhow::Context as _;
use jiff::Timestamp;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// What each area provides before the runtime has responded, bottom to top.
pub(super) struct Opened {
    pub(super) metrics: Metrics,
    /// Metrics of probes, which are served at a separate path.
    pub(super) probe_metrics: Metrics,
    /// Metrics of health checks, which are served at a separate path.
    pub(super) sli_metrics: Metrics,
    pub(super) tracer: Tracer,
    pub(super) started_at: Timestamp,
    pub(super) machine: HostMachine,
    pub(super) runtime: RuntimeClient,
    pub(super) api: Option<ApiServer>,
    pub(super) objects: ClusterObjects,
    pub(super) stores: Stores,
    pub(super) writers: Writers,
    /// The events from now on, for the API server.
    pub(super) events: Option<EventQueue>,
    /// The socket is already listening.
    pub(super) pod_resources: PodResourcesSocket,
    pub(super) images: Images,
    pub(super) root: KubeletRoot,
    pub(super) facts: Arc<NodeFacts>,
    pub(super) volumes: VolumeManager,
    pub(super) certificate_notices: Option<CertificateNotices>,
    pub(super) pods: PodsReader,
    pub(super) pods_writers: PodsWriters,
    pub(super) stats: Stats,
    /// The cgroup of all pods, for measuring usage, once it exists.
    pub(super) pods_cgroup: watch::Sender<Option<String>>,
}

/// Opens the areas. Metrics are registered in `metrics`.
///
/// # Errors
/// A directory or file cannot be used, or an endpoint cannot be parsed.
pub(super) fn open(
    config: &KubeletConfig,
    machine: HostMachine,
    api: Option<ApiServer>,
    metrics: Metrics,
) -> anyhow::Result<Opened> {
    let root = KubeletRoot::create(&config.root_dir)
        .with_context(|| format!("cannot use root directory {}", config.root_dir.display()))?;
    for directory in [
        config.root_dir.clone(),
        config.root_dir.join("device-plugins"),
        config.identity.cert_dir.clone(),
    ] {
        if let Err(error) = if_exists(atomic_file::remove_leftovers(&directory)) {
            tracing::warn!(path = %directory.display(), err = %error, "Failed to remove temporary files");
        }
    }
    let started_at = clock::timestamp();
    let tracing = config.tracing.as_ref();
    let tracer = tracing.map(|settings| Tracer::new(settings, &config.node_name, &metrics));
    let tracer = tracer.transpose().context("tracing")?.unwrap_or_default();
    let prefer_streaming_lists = config.is_on(FeatureGate::CriListStreaming);
    let (runtime, image_client) =
        cri::connect(&config.runtime, prefer_streaming_lists, &tracer, &metrics)?;
    let objects = ClusterObjects::new(config.local_objects_dir.clone(), api.clone());
    let (stores, writers) = state::open(settings::state(config), &metrics)?;
    let events = api.as_ref().and_then(|_| EventQueue::open(&stores.events, &metrics));
    let pod_resources = resources::bind_pod_resources(&config.root_dir);
    let images = Images::open(
        &config.images,
        &config.root_dir,
        image_client.clone(),
        api.clone(),
        &metrics,
    )?;
    let facts = node::facts(&settings::profile(config), &machine)?;
    let facts = Arc::new(NodeFacts {
        volume_plugin_dir: settings::volume_plugin_dir(config),
        controller_attach: config.effective.enable_controller_attach_detach.unwrap_or(true),
        ..facts
    });
    let pods_to_sync = objects.configmaps_and_secrets.pods_to_sync();
    let (certificates, certificate_notices) =
        pod_certificates::open(config, api.as_ref(), pods_to_sync, &stores, &metrics);
    let cluster = ClusterSources {
        tokens: objects.tokens.clone(),
        bundles: objects.bundles.clone(),
        certificates,
        claims: objects.claims.clone(),
        node: stores.node_object.clone(),
        csi: CsiSources {
            drivers: CsiDrivers::new(CsiMetrics::register(&metrics)),
            objects: objects.csi_drivers.clone(),
            attachments: objects.volume_attachments.clone(),
            api: api.clone(),
            tokens: IssuedTokens::new(api.clone()),
            node: stores.node_object.clone(),
            node_name: config.node_name.clone(),
            in_use: stores.volumes_in_use.clone(),
            full_drivers: Arc::default(),
            resync_interval: config.sync_frequency,
            reports_health: config.is_on(FeatureGate::CsiVolumeHealth),
            events: stores.events.clone(),
            metrics: VolumeMetrics::register(&metrics),
        },
    };
    let monitored = config.is_on(FeatureGate::LocalStorageCapacityIsolationFsQuotaMonitoring);
    let volumes = VolumeManager::new(
        root.clone(),
        facts.clone(),
        objects.configmaps_and_secrets.clone(),
        cluster,
        monitored.then(|| ProjectQuotas::recorded_in(Path::new("/etc"))),
        HostMounter,
    );
    volumes.register_totals(&metrics);
    let volumes_for_sizes = volumes.clone();
    stores.sizes.add("prepared_volumes", move || volumes_for_sizes.count());
    let csi_for_sizes = volumes.csi().clone();
    stores.sizes.add("csi_volumes", move || csi_for_sizes.count());
    let posted =
        settings::posted_pods(config).context("cannot open the directory of posted pods")?;
    let (pods, pods_writers) = pods::open(&stores, posted, &metrics);
    let pods_cgroup = watch::Sender::new(None);
    let volumes_for_stats = volumes.clone();
    let (root_dir, root_of_logs) = (config.root_dir.clone(), config.root_dir.clone());
    let stats = StatsDeps {
        runtime: runtime.clone(),
        images: image_client,
        cache: stores.pod_cache.clone(),
        volumes: Arc::new(move |uid| volumes_for_stats.measurable(uid)),
        measure_volumes: settings::measure_volumes(config, volumes.csi().clone()),
        hosts_file: Arc::new(move |uid| hosts_file(&root_dir, uid).ok()),
        termination_logs: Arc::new(move |uid, container| {
            termination_logs(&root_of_logs, uid, container).ok()
        }),
        node_name: config.node_name.clone(),
        root_dir: config.root_dir.clone(),
        pod_logs_dir: config.pod_logs_dir.clone(),
        volume_period: settings::volume_stats_period(config),
        started_at: i64::try_from(started_at.as_nanosecond()).unwrap_or_default(),
        system: settings::system_cgroups(config, pods_cgroup.subscribe()),
    };
    let stats = Stats::new(stats, &machine);
    let stats_for_sizes = stats.clone();
    stores.sizes.add("stats", move || stats_for_sizes.count());
    Ok(Opened {
        metrics,
        probe_metrics: Metrics::new(),
        sli_metrics: Metrics::new(),
        tracer,
        started_at,
        machine,
        runtime,
        api,
        objects,
        stores,
        writers,
        events,
        pod_resources,
        images,
        root,
        facts,
        volumes,
        certificate_notices,
        pods,
        pods_writers,
        stats,
        pods_cgroup,
    })
}
