//! Dependencies of the resource managers.

use crate::apiserver::ApiServer;
use crate::base::metrics::Metrics;
use crate::cri::RuntimeClient;
use crate::host::{HostMachine, System};
use crate::model::Pod;
use crate::state::events::EventRecorder;
use crate::state::pod_cache::PodCache;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// Returns a set of pods; which ones, is said where it is used.
pub type PodSetReader = Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>;

/// Dependencies of the resource managers.
pub struct Deps {
    /// The node's name.
    pub node_name: String,
    /// The kubelet's directory, with state files and plugin sockets.
    pub root_dir: PathBuf,
    /// Facts of the machine, read at start.
    pub machine: HostMachine,
    /// Paths of the kernel's file systems, and the D-Bus system bus.
    pub system: System,
    /// The API server, for ResourceClaims; `None` in standalone mode.
    pub api: Option<ApiServer>,
    /// The CRI runtime service.
    pub runtime: RuntimeClient,
    /// The runtime status of every pod.
    pub cache: PodCache,
    /// Recorder of events about the node.
    pub events: EventRecorder,
    /// Registry for the area's metrics.
    pub metrics: Metrics,
    /// Whether every source of pods has sent a list, complete or not.
    pub all_sources_seen: watch::Receiver<bool>,
    /// Returns the desired pods whose status is not terminal; their requests count for QoS cgroups.
    pub active_pods: PodSetReader,
}
