//! What the managers of resources use of the areas below.

use crate::{
    apiserver::ApiServer,
    base::metrics::Metrics,
    cri::RuntimeClient,
    host::{HostMachine, System},
    model::Pod,
    state::{events::EventRecorder, pod_cache::PodCache},
};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// The pods that have not ended.
pub type ActivePodsReader = Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>;

/// The node, and the stores and clients of the area.
pub struct Deps {
    /// The node's name.
    pub node_name: String,
    /// Where state files and the sockets of plugins are.
    pub root_dir: PathBuf,
    /// The machine, as it was at the start.
    pub machine: HostMachine,
    /// Where the machine is read and changed.
    pub system: System,
    /// The API server, for claims; `None` for a node of its own.
    pub api: Option<ApiServer>,
    /// The runtime.
    pub runtime: RuntimeClient,
    /// The runtime status of every pod.
    pub cache: PodCache,
    /// Recorder of events about the node.
    pub events: EventRecorder,
    /// Registry of the area's families.
    pub metrics: Metrics,
    /// Whether every source of pods has delivered.
    pub all_delivered: watch::Receiver<bool>,
    /// The pods whose requests count.
    pub active_pods: ActivePodsReader,
}
