//! Sizes of the stores of pod state, as a metric. State of a pod is removed with the pod, so all sizes are zero on a
//! node without pods (P-24).

use super::{Stores, introspect::LiveComponents};
use crate::{
    base::metrics::Metrics, node::stats::Stats, pods::status::Statuses, state::pod_cache::PodCache,
    state::pod_manager::PodManager, state::pod_state_store::PodStateStore,
};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::MetricType,
};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// The stores that are measured.
#[derive(Clone)]
struct StoreSizes {
    manager: PodManager,
    statuses: Statuses,
    state_store: PodStateStore,
    cache: PodCache,
    live: Arc<OnceLock<LiveComponents>>,
    stats: Stats,
}

/// Registers the metric, which is measured at every scrape.
pub(super) fn register(stores: &Stores, stats: Stats, metrics: &Metrics) {
    let sizes = StoreSizes {
        manager: stores.pods.clone(),
        statuses: stores.statuses.clone(),
        state_store: stores.state_store.clone(),
        cache: stores.cache.clone(),
        live: stores.live.clone(),
        stats,
    };
    metrics.register(
        "kubelet_store_entries",
        "Number of entries about pods, by store",
        sizes,
    );
}

impl StoreSizes {
    fn read(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = vec![
            ("desired_pods", self.manager.len()),
            ("statuses", self.statuses.len()),
            ("pod_state_store", self.state_store.len()),
            ("stats", self.stats.len()),
        ];
        sizes.extend(self.cache.kept());
        sizes.extend(self.live.get().into_iter().flat_map(LiveComponents::kept));
        sizes
    }
}

impl fmt::Debug for StoreSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSizes").finish_non_exhaustive()
    }
}

impl EncodeMetric for StoreSizes {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (store, number) in self.read() {
            let labels = [("store", store)];
            let mut sample = encoder.encode_family(&labels)?;
            sample.encode_gauge(&i64::try_from(number).unwrap_or(i64::MAX))?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
