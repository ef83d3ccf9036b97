//! Opens the stores. Every area gets the reading ends; each writing end goes to its one owner.

use super::events::EventRecorder;
use super::node_object::{NodeObject, NodeObjectWriter};
use super::node_pressure::{NodePressureReader, NodePressureWriter};
use super::node_shutdown::{NodeShutdownReader, NodeShutdownWriter};
use super::pod_cache::{PodCache, PodCacheWriter, pod_cache_with};
use super::pod_history::PodHistory;
use super::pod_manager::{PodChanges, PodManager, PodManagerWriter};
use super::pod_state_store::PodStateStore;
use super::probe_results::{ProbeResults, ProbeResultsWriter, probe_results};
use super::store_sizes::StoreSizes;
use super::volumes_in_use::VolumesInUse;
use crate::base::metrics::Metrics;
use crate::model::AddressOrder;
use std::path::PathBuf;
use std::sync::Arc;

/// Configuration of the stores.
pub struct Config {
    /// Directory of the pod state store.
    pub pod_state_dir: PathBuf,
    /// Order of IPv4 and IPv6 among a pod's addresses.
    pub address_order: AddressOrder,
    /// Whether the kubelet reports to an API server (false in standalone mode).
    pub has_api_server: bool,
}

/// The reading ends of all stores; cheap to clone. Events, pod history and the pod state store have several writers,
/// which write through this end.
#[derive(Clone)]
pub struct Stores {
    /// Recent events.
    pub events: EventRecorder,
    /// The Node object of the API server.
    pub node_object: NodeObject,
    /// The node's memory, disk and PID pressure.
    pub pressure: NodePressureReader,
    /// Whether the machine is shutting down.
    pub shutting_down: NodeShutdownReader,
    /// The attachable volumes in use: those that the volumes area wants reported, and those that the API server has.
    pub volumes_in_use: VolumesInUse,
    /// The latest decisions about each pod.
    pub pod_history: PodHistory,
    /// Facts about pods that survive a restart.
    pub state_store: PodStateStore,
    /// The runtime status of every pod.
    pub pod_cache: PodCache,
    /// The desired pods.
    pub pod_manager: PodManager,
    /// Pods that changed since they were last reported; `None` without an API server.
    pub changes: Option<Arc<PodChanges>>,
    /// Probe results.
    pub probe_results: ProbeResults,
    /// The metric of store sizes, to which each area adds its own.
    pub sizes: StoreSizes,
}

/// The writing ends of the stores that have one writer.
pub struct Writers {
    /// For the task that registers the node.
    pub node_object: NodeObjectWriter,
    /// For the eviction manager.
    pub pressure: NodePressureWriter,
    /// For the shutdown manager.
    pub shutting_down: NodeShutdownWriter,
    /// For the PLEG.
    pub pod_cache: PodCacheWriter,
    /// For the sync loop.
    pub pod_manager: PodManagerWriter,
    /// For the prober.
    pub probe_results: ProbeResultsWriter,
}

/// Opens the stores. The pod state store is read from disk; the others start empty.
///
/// # Errors
/// The directory of the pod state store cannot be used.
pub fn open(config: Config, metrics: &Metrics) -> anyhow::Result<(Stores, Writers)> {
    let (pod_cache_writer, pod_cache) = pod_cache_with(config.address_order);
    let (probe_results_writer, probe_results) = probe_results();
    let changes = config.has_api_server.then(Arc::<PodChanges>::default);
    let writers = Writers {
        node_object: NodeObjectWriter::default(),
        pressure: NodePressureWriter::default(),
        shutting_down: NodeShutdownWriter::default(),
        pod_cache: pod_cache_writer,
        pod_manager: PodManagerWriter::default().with_changes(changes.clone()),
        probe_results: probe_results_writer,
    };
    let stores = Stores {
        events: EventRecorder::new(),
        node_object: writers.node_object.reader(),
        pressure: writers.pressure.subscribe(),
        shutting_down: writers.shutting_down.subscribe(),
        volumes_in_use: VolumesInUse::default(),
        pod_history: PodHistory::new(),
        state_store: PodStateStore::open(config.pod_state_dir)?,
        pod_cache,
        pod_manager: writers.pod_manager.reader(),
        changes,
        probe_results,
        sizes: StoreSizes::new(metrics),
    };
    stores.register_sizes();
    Ok((stores, writers))
}

impl Stores {
    fn register_sizes(&self) {
        let stores = self.clone();
        self.sizes.add_all(move || {
            let mut sizes = vec![
                ("desired_pods", stores.pod_manager.count()),
                ("pod_state_store", stores.state_store.count()),
                ("pod_history", stores.pod_history.count()),
                ("probe_results", stores.probe_results.count()),
            ];
            sizes.extend(stores.pod_cache.sizes());
            sizes
        });
    }
}
