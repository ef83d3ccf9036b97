//! Usage statistics and their clients.

use super::{Stores, introspect::LiveComponents};
use crate::{
    base::GoDuration,
    config::KubeletConfig,
    model::PodUid,
    node::stats::{ClaimMeter, Stats, StatsParts, SystemCgroups},
    server::{BeforeScrape, StatsViews, TextPieces},
};
use std::sync::Arc;

/// The part that reads cgroups, disks and the runtime on a scrape.
pub(super) fn of(config: &KubeletConfig, stores: &Stores) -> Stats {
    let live = stores.live.clone();
    let volumes = move |uid: &PodUid| {
        let volumes = live
            .get()
            .map(|live: &LiveComponents| live.volumes.measurable(uid));
        volumes.unwrap_or_default()
    };
    let period = config.effective.volume_stats_agg_period;
    let period = period.map(GoDuration::to_std);
    let started = stores.started_at.as_nanosecond();
    let parts = StatsParts {
        runtime: stores.runtime.clone(),
        images: stores.images.clone(),
        cache: stores.cache.clone(),
        volumes: Arc::new(volumes),
        node_name: config.node_name.clone(),
        root_dir: config.root_dir.clone(),
        pod_logs_dir: config.container_logs.pod_logs_dir.clone(),
        // Zero and less turn it off.
        volume_period: period.filter(|period| !period.is_zero()),
        started_at: i64::try_from(started).unwrap_or_default(),
        system: SystemCgroups {
            kubelet: config.cgroups.kubelet.clone(),
            runtime: config.cgroups.runtime.clone(),
            system: config.cgroups.system.clone(),
            pods: stores.pods_cgroup.clone(),
        },
    };
    Stats::new(parts, &stores.machine)
}

/// Measures the volumes of claims before a scrape of `/metrics`.
pub(super) fn claims(stores: &Stores) -> BeforeScrape {
    let live = stores.live.clone();
    let paths = move || {
        let claims = live
            .get()
            .map(|live: &LiveComponents| live.volumes.claims());
        claims.unwrap_or_default()
    };
    let meter = ClaimMeter::new(Arc::new(paths), &stores.metrics);
    Arc::new(move || {
        let meter = meter.clone();
        Box::pin(async move { meter.measure().await })
    })
}

/// What the server reads.
pub(super) fn views(stores: &Stores, stats: &Stats) -> StatsViews {
    let (summary, cadvisor, resource) = (stats.clone(), stats.clone(), stats.clone());
    let infos = stats.clone();
    let probes = stores.probe_metrics.clone();
    StatsViews {
        summary: Arc::new(move |only| {
            let stats = summary.clone();
            Box::pin(async move { stats.summary(only).await })
        }),
        cadvisor: Arc::new(move || {
            let stats = cadvisor.clone();
            Box::pin(async move {
                let pieces = stats.cadvisor().await?;
                Some(Box::new(pieces) as TextPieces)
            })
        }),
        resource: Arc::new(move || {
            let stats = resource.clone();
            Box::pin(async move { stats.resource().await })
        }),
        infos: Arc::new(move |of| {
            let stats = infos.clone();
            Box::pin(async move { stats.infos(of).await })
        }),
        probes: Arc::new(move || probes.text()),
    }
}
