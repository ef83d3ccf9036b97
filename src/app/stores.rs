//! State and clients that exist before the runtime has answered.

use super::introspect::LiveComponents;
use crate::{
    apiserver::ApiServer,
    base::{metrics::Metrics, otel::Tracer},
    cri::{ImageClient, RuntimeClient},
    host::{HostMachine, SystemBus},
    images::{credentials::Keyring, records::PullRecords},
    pods::pod_config::PostedPods,
    pods::status::{StatusManager, Statuses},
    pods::sync_loop::Heartbeat,
    resources::pod_resources,
    server::HealthChecks,
    state::{
        events::EventRecorder,
        node_object::{NodeObject, NodeObjectWriter},
        node_pressure::{NodePressureReader, NodePressureWriter},
        node_shutdown::{NodeShutdownReader, NodeShutdownWriter},
        pod_cache::{PodCache, PodCacheWriter},
        pod_history::PodHistory,
        pod_manager::{PodChanges, PodManager, PodManagerWriter},
        pod_state_store::PodStateStore,
    },
    volumes::KubeletRoot,
};
use jiff::Timestamp;
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::watch;

/// What every component may read, and the clients it may use.
pub(super) struct Stores {
    /// The API server, unless this is a standalone node.
    pub(super) api: Option<ApiServer>,
    /// The Node object of the API server.
    pub(super) node_object: NodeObject,
    /// The resources that the node is short of.
    pub(super) pressure: NodePressureReader,
    /// Whether the machine is shutting down.
    pub(super) shutting_down: NodeShutdownReader,
    pub(super) metrics: Metrics,
    pub(super) tracer: Tracer,
    /// Families of probes, which have a page of their own.
    pub(super) probe_metrics: Metrics,
    /// Families of health checks, which have a page of their own.
    pub(super) sli_metrics: Metrics,
    pub(super) events: EventRecorder,
    pub(super) pod_history: PodHistory,
    pub(super) runtime: RuntimeClient,
    pub(super) images: ImageClient,
    pub(super) state_store: PodStateStore,
    pub(super) root: KubeletRoot,
    /// Desired pods.
    pub(super) pods: PodManager,
    pub(super) statuses: Statuses,
    /// Pods that changed, if there is an API server to report them to.
    pub(super) changes: Option<Arc<PodChanges>>,
    pub(super) cache: PodCache,
    pub(super) heartbeat: Heartbeat,
    pub(super) started_at: Timestamp,
    pub(super) machine: HostMachine,
    pub(super) keyring: Keyring,
    /// Components that exist once the runtime has answered.
    pub(super) live: Arc<OnceLock<LiveComponents>>,
    pub(super) records: PullRecords,
    /// Pods that clients posted, if that is allowed.
    pub(super) posted: Option<PostedPods>,
    /// Whether every source has delivered.
    pub(super) all_delivered: watch::Receiver<bool>,
    pub(super) system: System,
    /// The cgroup of all pods, once it exists.
    pub(super) pods_cgroup: Arc<OnceLock<String>>,
}

/// The writing side of the stores. Each has one owner, which [`super::start`] chooses.
pub(super) struct Writers {
    pub(super) node_object: NodeObjectWriter,
    pub(super) pressure: NodePressureWriter,
    pub(super) shutting_down: NodeShutdownWriter,
    pub(super) pods: PodManagerWriter,
    pub(super) statuses: StatusManager,
    pub(super) cache: PodCacheWriter,
    pub(super) all_delivered: watch::Sender<bool>,
    /// The socket of the PodResources API, which listens already.
    pub(super) pod_resources: pod_resources::PodResourcesSocket,
}

/// What of the machine tests replace: directories of the kernel's file systems, and the message bus.
pub(super) struct System {
    /// A directory of plain directories instead of the kernel's cgroups.
    pub(super) cgroups: Option<PathBuf>,
    /// `/sys`.
    pub(super) sys: PathBuf,
    /// `/proc`, for processes that are moved between cgroups.
    pub(super) proc: PathBuf,
    /// Where systemd and logind are.
    pub(super) bus: Arc<SystemBus>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            cgroups: None,
            sys: "/sys".into(),
            proc: "/proc".into(),
            bus: Arc::default(),
        }
    }
}

impl Stores {
    /// The checks of the read-only port.
    pub(super) fn health_checks(&self, sync_frequency: Duration) -> HealthChecks {
        let heartbeat = self.heartbeat.clone();
        let limit = (2 * sync_frequency).max(Duration::from_secs(300));
        HealthChecks::ping()
            .with("log", || Ok(()))
            .with("syncloop", move || {
                if heartbeat.age() > limit {
                    Err("sync Loop took longer than expected".to_owned())
                } else {
                    Ok(())
                }
            })
    }
}
