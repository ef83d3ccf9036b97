//! `KubeGenericRuntimeManager`: makes a CRI runtime match a pod.
//!
//! * Owns: all requests about sandboxes and containers, and their order. The parts are [`actions`] (computes what to do),
//!   `sync` (carries it out), [`generate`] (CRI configurations), [`kill`] (stops) and [`gc`] (removals).
//! * Woken by: the syncs of a pod's worker; clean-up.
//! * Publishes: changed items to the pod cache (`touch`), events, records to the pod state store; a result per sync.
//! * Must never stop a sandbox before the runtime reported that its containers have exited.
//! * Upstream: `pkg/kubelet/kuberuntime`.

pub mod actions;
mod container_log_files;
mod exits;
pub mod gc;
pub mod generate;
pub mod kill;
pub mod labels;
pub mod log_paths;
mod metrics;
mod restart_back_off;
mod sandbox_back_off;
mod sandbox_lookup;
mod sync;
pub mod termination;
pub mod translate;

#[cfg(test)]
mod fixtures;

use crate::apiserver::ClusterObjects;
use crate::base::metrics::Metrics;
use crate::base::{EarlyReleaseSemaphore, clock};
use crate::cri::{FeaturesReader, RuntimeClient, transport};
use crate::images::ImageManager;
use crate::model::{GraceDeadline, Pod, PodExt, PodStatus, PodUid};
use crate::resources::allocation::Allocations;
use crate::resources::{DeviceManagers, ResourceArea};
use crate::runtime::handlers::{Hooks, runtime_exec};
use crate::state::Stores;
use crate::state::events::EventRecorder;
use crate::state::pod_cache::{PodRef, RuntimeListed};
use crate::state::pod_history::PodHistory;
use crate::state::pod_state_store::PodStateStore;
use crate::state::probe_results::ProbeResults;
use crate::volumes::VolumeManager;
use container_log_files::ContainerLogFiles;
use exits::ExitRecords;
use gc::ContainerGc;
use generate::ConfigBuilder;
use jiff::Timestamp;
use kill::PodKiller;
use restart_back_off::{RestartBackOff, back_off_text};
use sandbox_back_off::SandboxBackOff;
use sandbox_lookup::SandboxLookup;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use sync::{
    AllContainersRestarter, ContainerImages, ContainerStarter, PodCgroups, PodResizer, PostStart,
    SandboxCreator,
};
use tokio::sync::watch;

pub use exits::recorded_facts;
pub use gc::plan::ContainerGcPolicy as GcPolicy;
pub use generate::{GenerateSettings, UserNamespaces, UserNamespacesConfig};
use metrics::StartMetrics;
pub use sync::{PodSyncResult, RestartAllStage, StartFailure, SyncRequest, short_id};

/// The dependencies of the manager.
pub struct RuntimeManagerDeps {
    /// The runtime.
    pub runtime: RuntimeClient,
    /// Images.
    pub images: ImageManager,
    /// The stores.
    pub stores: Stores,
    /// Volumes: sub-paths, and the config maps and secrets of environment variables and pulls.
    pub volumes: VolumeManager,
    /// Allocates the host ids of user namespaces.
    pub user_namespaces: UserNamespaces,
    /// Cgroups, devices, exclusive resources and allocated amounts.
    pub resources: ResourceArea,
    /// The features of the runtime.
    pub features: FeaturesReader,
    /// The services of the cluster, for environment variables, and its runtime classes.
    pub cluster_objects: ClusterObjects,
    /// The node's part of all CRI configurations.
    pub settings: GenerateSettings,
    /// Registry of the metrics of started pods and containers.
    pub metrics: Metrics,
    /// Settings of the manager.
    pub config: Config,
}

/// Settings of the manager itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// Longest restart delay.
    pub max_restart_back_off: Duration,
    /// How many dead containers are kept.
    pub gc_policy: GcPolicy,
    /// The node's resolver configuration; `None` when pods are not to inherit any.
    pub resolv_conf: Option<PathBuf>,
    /// The directory of links for log collectors, `/var/log/containers`; `None` for no links.
    pub log_links: Option<PathBuf>,
}

/// What the status of a pod shows of its next actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodActionSummary {
    /// The pod has no sandbox that its containers could run in.
    pub needs_new_sandbox: bool,
    /// The progress of restarting all containers.
    pub restart_all: RestartAllStage,
}

/// The manager; cheap to clone.
#[derive(Clone)]
pub struct KubeGenericRuntimeManager {
    images: ImageManager,
    volumes: VolumeManager,
    events: EventRecorder,
    pod_history: PodHistory,
    state_store: PodStateStore,
    results: ProbeResults,
    metrics: StartMetrics,
    devices: DeviceManagers,
    exits: ExitRecords,
    killer: PodKiller,
    builder: Arc<ConfigBuilder>,
    log_files: Arc<ContainerLogFiles>,
    back_off: Arc<RestartBackOff>,
    gc: Arc<ContainerGc>,
    sandboxes: Arc<SandboxCreator>,
    starter: Arc<ContainerStarter>,
    restart_all: Arc<AllContainersRestarter>,
    resizer: Arc<PodResizer>,
    allocations: Allocations,
    start_permits: EarlyReleaseSemaphore,
}

impl KubeGenericRuntimeManager {
    /// Builds the manager; no request is sent to the runtime yet.
    pub fn new(deps: RuntimeManagerDeps) -> Self {
        let metrics = StartMetrics::register(&deps.metrics);
        let exec = runtime_exec(deps.runtime.clone());
        let hooks = Hooks::new(exec, deps.stores.events.clone(), &deps.metrics);
        let logs = deps.settings.pod_logs_dir.clone();
        let lookup =
            Arc::new(SandboxLookup::new(deps.runtime.clone(), deps.stores.pod_cache.clone()));
        let log_files = Arc::new(ContainerLogFiles::new(logs, deps.config.log_links.clone()));
        let back_off =
            RestartBackOff::new(deps.config.max_restart_back_off, deps.stores.state_store.clone());
        let back_off = Arc::new(back_off);
        let exits = ExitRecords {
            state_store: deps.stores.state_store.clone(),
            cache: deps.stores.pod_cache.clone(),
        };
        let images =
            ContainerImages { images: deps.images.clone(), events: deps.stores.events.clone() };
        let killer = PodKiller::new(&deps, hooks.clone(), lookup.clone());
        let gc = Arc::new(container_gc(&deps, &exits, &log_files, &killer));
        let post_start = post_start(&deps, hooks, &killer);
        let restart_all = all_containers_restarter(&deps, &killer, &gc, &back_off);
        let builder = Arc::new(ConfigBuilder {
            settings: deps.settings,
            volumes: deps.volumes.clone(),
            resolv_conf: deps.config.resolv_conf,
            user_namespaces: deps.user_namespaces,
            features: deps.features,
            services: deps.cluster_objects.services,
            runtime_classes: deps.cluster_objects.runtime_classes,
            devices: deps.resources.devices.clone(),
        });
        let cgroups = PodCgroups::new(
            deps.resources.cgroups,
            deps.runtime.clone(),
            deps.stores.events.clone(),
        );
        let sandboxes = SandboxCreator {
            cgroups,
            resources: deps.resources.managers.clone(),
            dra: deps.resources.devices.dra.clone(),
            allocations: deps.resources.allocations.clone(),
            runtime: deps.runtime.clone(),
            cache: deps.stores.pod_cache.clone(),
            events: deps.stores.events.clone(),
            builder: builder.clone(),
            images: images.clone(),
            metrics: metrics.clone(),
            back_off: SandboxBackOff::default(),
            lookup,
        };
        let sandboxes = Arc::new(sandboxes);
        let resizer = PodResizer {
            sandboxes: sandboxes.clone(),
            allocations: deps.resources.allocations.clone(),
            metrics: deps.resources.resize_metrics,
        };
        let starter = ContainerStarter {
            runtime: deps.runtime,
            cache: deps.stores.pod_cache,
            events: deps.stores.events.clone(),
            pod_history: deps.stores.pod_history.clone(),
            exits: exits.clone(),
            builder: builder.clone(),
            images,
            log_files: log_files.clone(),
            gc: gc.clone(),
            post_start,
            back_off: back_off.clone(),
            resources: deps.resources.managers,
            allocations: deps.resources.allocations.clone(),
            metrics: metrics.clone(),
        };
        Self {
            images: deps.images,
            volumes: deps.volumes,
            events: deps.stores.events,
            pod_history: deps.stores.pod_history,
            state_store: deps.stores.state_store,
            results: deps.stores.probe_results,
            metrics,
            devices: deps.resources.devices,
            exits,
            killer,
            builder,
            log_files,
            back_off,
            gc,
            sandboxes,
            starter: Arc::new(starter),
            restart_all: Arc::new(restart_all),
            resizer: Arc::new(resizer),
            allocations: deps.resources.allocations,
            start_permits: EarlyReleaseSemaphore::new(
                transport::max_heavy_calls(),
                sync::PERMIT_HOLD,
            ),
        }
    }

    /// The allocated resources of pods.
    pub fn allocations(&self) -> &Allocations {
        &self.allocations
    }

    /// Whether the resources of a running container still have to be changed to the allocated ones.
    pub fn is_resizing(&self, pod: &Pod, status: &PodStatus) -> bool {
        let actions = self.compute_pod_actions(pod, status);
        let mut kills = actions.containers_to_kill.iter();
        actions.resizes() || kills.any(|kill| kill.reason == actions::KillReason::Resize)
    }

    /// The device plugins and DRA drivers, and what they allocated.
    pub fn devices(&self) -> &DeviceManagers {
        &self.devices
    }

    /// Summary of the pod's next actions, for its status. Computed anew for each status, because a status may be older
    /// or newer than the last sync; only the actions that a sync computes itself are executed.
    pub fn action_summary(&self, pod: &Pod, status: &PodStatus) -> PodActionSummary {
        let actions = self.compute_pod_actions(pod, status);
        PodActionSummary {
            needs_new_sandbox: actions.sandbox_change.is_some(),
            restart_all: self.restart_all.stage(pod, &actions),
        }
    }

    /// The waiting message of a container that is in its restart back-off at `now`.
    pub fn back_off_message(
        &self,
        pod: &Pod,
        name: &str,
        status: &PodStatus,
        now: Timestamp,
    ) -> Option<String> {
        let (delay, _) = self.restart_back_off(pod, name, status, now)?;
        Some(back_off_text(pod, name, delay))
    }

    /// Whether the runtime handler of the pod can mount a whole tree read-only.
    pub fn supports_recursive_read_only(&self, pod: &Pod) -> bool {
        self.builder.supports_recursive_read_only(pod)
    }

    /// Releases the user namespace of a pod that has no processes left.
    pub async fn release_user_namespace(&self, uid: &PodUid) {
        self.builder.release_user_namespace(uid).await;
    }

    /// The time that image pulls of a pod took; forgets it.
    pub fn take_pulling_time(&self, uid: &PodUid) -> Duration {
        self.images.take_pulling_time(uid)
    }

    /// Cancels the image prefetches of a pod that ends.
    pub fn stop_prefetches(&self, uid: &PodUid) {
        self.images.stop_prefetches(uid);
    }

    /// The whole delay and the end of the restart back-off that a container is in at `now`.
    pub fn restart_back_off(
        &self,
        pod: &Pod,
        name: &str,
        status: &PodStatus,
        now: Timestamp,
    ) -> Option<(Duration, Timestamp)> {
        let container = pod.container(name)?;
        let Some(newest) = status.newest(name) else {
            // All containers were removed because an exit of this one restarts all: the delay counts from that exit.
            let restart = self.state_store.read(&pod.uid(), |r| r.restart_all.clone());
            let ended = restart.filter(|all| all.container == name)?.finished_at;
            let (delay, left) = self.back_off.in_back_off_since(pod, container, ended, now)?;
            return Some((delay, now + left));
        };
        let (delay, left) = self.back_off.in_back_off(pod, container, newest, now)?;
        let is_starting = self.back_off.is_starting(pod, container, newest);
        (!is_starting).then(|| (delay, now + left))
    }

    /// The earliest end of a restart back-off that a container of the pod is in at `now`.
    pub fn next_restart(&self, pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<Timestamp> {
        let containers = pod.init_containers().iter().chain(pod.containers());
        containers
            .filter_map(|c| self.restart_back_off(pod, &c.name, status, now))
            .map(|(_, ends)| ends)
            .min()
    }

    /// The runtime status for stopping a pod that has `left` of its grace period: the settled one, or, if that takes too
    /// long, the latest one completed from a list. Empty only if the runtime has nothing of the pod.
    ///
    /// # Errors
    /// A sandbox may have been created that cannot be looked up yet.
    pub async fn read_status_for_stop(
        &self,
        pod_ref: &PodRef,
        left: Duration,
    ) -> anyhow::Result<Arc<PodStatus>> {
        self.killer.reader.read_status_for_stop(pod_ref, left).await
    }

    /// Stops every container of a pod, then its sandboxes. The preStop hooks of an orphan (`pod` is `None`) are read from
    /// the annotations of its containers.
    ///
    /// # Errors
    /// Something of the pod may still run.
    pub async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        status: &PodStatus,
        grace: watch::Receiver<GraceDeadline>,
    ) -> anyhow::Result<()> {
        self.killer.kill_pod(pod, status, grace).await
    }

    /// Waits until the exit of every container of a stopped pod has been read. An item that cannot be read, and that is
    /// not running according to a list, counts as ended with an unknown exit.
    ///
    /// # Errors
    /// Something may still run, or there is no list.
    pub async fn settle_stopped(&self, uid: &PodUid) -> anyhow::Result<()> {
        self.killer.reader.settle_stopped(uid).await
    }

    /// Removes the superseded dead containers and sandboxes of one pod; with `remove_all`, all of them. Sends no request
    /// if there is nothing to remove.
    ///
    /// # Errors
    /// Something could not be removed.
    pub async fn remove_dead_containers(
        &self,
        status: &Arc<PodStatus>,
        remove_all: bool,
    ) -> anyhow::Result<()> {
        self.gc.remove_dead_containers(status, remove_all).await
    }

    /// Garbage collection: removes superseded containers that no worker removed, except those of pods of the API
    /// server, and all dead containers of pods for which `has_ended` is true. The proof says that the runtime statuses
    /// come from a complete list.
    ///
    /// # Errors
    /// Something could not be removed.
    pub async fn garbage_collect(
        &self,
        pods: &[Arc<PodStatus>],
        has_ended: &(dyn Fn(&PodUid) -> bool + Send + Sync),
        proof: RuntimeListed,
    ) -> anyhow::Result<()> {
        self.back_off.gc(clock::timestamp());
        self.gc.garbage_collect(pods, has_ended, proof).await
    }

    /// Removes all logs of a UID, whatever the names of the pods that had it.
    pub async fn remove_logs_of(&self, uid: &PodUid) {
        self.log_files.remove_logs_of(uid).await;
    }

    /// Numbers of entries by kind, for metrics.
    pub fn sizes(&self) -> [(&'static str, usize); 5] {
        let (backing_off, prefetches) = self.images.sizes();
        [
            ("restart_back_off", self.back_off.len()),
            ("sandbox_back_off", self.sandboxes.back_off.len()),
            ("stops", self.killer.stops.len()),
            ("pull_back_off", backing_off),
            ("image_prefetches", prefetches),
        ]
    }

    /// Drops the in-memory state of a removed pod. Must be called before its record in the pod state store is removed,
    /// because the keys of its back-offs are in there.
    pub fn forget_pod(&self, uid: &PodUid) {
        self.back_off.forget(uid);
        self.images.forget_pod(uid);
        self.killer.stops.forget(uid);
        self.sandboxes.back_off.forget(uid);
        self.sandboxes.lookup.forget(uid);
        self.sandboxes.cgroups.forget(uid);
        self.pod_history.forget(uid);
        self.allocations.remove(uid);
    }
}

fn container_gc(
    deps: &RuntimeManagerDeps,
    exits: &ExitRecords,
    log_files: &Arc<ContainerLogFiles>,
    killer: &PodKiller,
) -> ContainerGc {
    ContainerGc {
        runtime: deps.runtime.clone(),
        cache: deps.stores.pod_cache.clone(),
        state_store: deps.stores.state_store.clone(),
        exits: exits.clone(),
        log_files: log_files.clone(),
        killer: killer.clone(),
        policy: deps.config.gc_policy,
    }
}

fn post_start(deps: &RuntimeManagerDeps, hooks: Hooks, killer: &PodKiller) -> PostStart {
    PostStart {
        hooks,
        killer: killer.clone(),
        cache: deps.stores.pod_cache.clone(),
        events: deps.stores.events.clone(),
        pod_history: deps.stores.pod_history.clone(),
        state_store: deps.stores.state_store.clone(),
        node: deps.settings.node.clone(),
    }
}

fn all_containers_restarter(
    deps: &RuntimeManagerDeps,
    killer: &PodKiller,
    gc: &Arc<ContainerGc>,
    back_off: &Arc<RestartBackOff>,
) -> AllContainersRestarter {
    AllContainersRestarter {
        events: deps.stores.events.clone(),
        state_store: deps.stores.state_store.clone(),
        killer: killer.clone(),
        gc: gc.clone(),
        back_off: back_off.clone(),
    }
}
