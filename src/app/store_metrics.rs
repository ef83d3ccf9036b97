//! How much is kept of pods, board by board, as a metric: what belongs to a pod goes with it, so on a
//! node without pods all of it is zero (P-24).

use super::{Stores, introspect::Live};
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

/// What is counted.
#[derive(Clone)]
struct Census {
    manager: PodManager,
    statuses: Statuses,
    state_store: PodStateStore,
    cache: PodCache,
    live: Arc<OnceLock<Live>>,
    stats: Stats,
}

/// Counts at every scrape what the boards keep.
pub(super) fn register(stores: &Stores, stats: Stats, metrics: &Metrics) {
    let census = Census {
        manager: stores.manager.reader(),
        statuses: stores.statuses.reader(),
        state_store: stores.state_store.clone(),
        cache: stores.cache.clone(),
        live: stores.live.clone(),
        stats,
    };
    metrics.register(
        "kubelet_board_entries",
        "Number of entries that are kept about pods, by where",
        census,
    );
}

impl Census {
    fn count(&self) -> Vec<(&'static str, usize)> {
        let mut kept = vec![
            ("wanted", self.manager.len()),
            ("statuses", self.statuses.len()),
            ("journal", self.state_store.len()),
            ("stats", self.stats.len()),
        ];
        kept.extend(self.cache.kept());
        kept.extend(self.live.get().into_iter().flat_map(Live::kept));
        kept
    }
}

impl fmt::Debug for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Census").finish_non_exhaustive()
    }
}

impl EncodeMetric for Census {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (board, number) in self.count() {
            let labels = [("board", board)];
            let mut sample = encoder.encode_family(&labels)?;
            sample.encode_gauge(&i64::try_from(number).unwrap_or(i64::MAX))?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
