//! `KubeGenericRuntimeManager`: makes a CRI runtime match a pod.
//!
//! * Owns: what is asked of the runtime about sandboxes and containers, and in which order; the
//!   restart back-off of containers and the back-off of sandbox replacements.
//! * Woken by: one turn of a pod's worker; clean-up.
//! * Publishes: touches to the pod cache, events, facts to the journal; a report per turn.
//! * Must never stop a sandbox before its containers were seen to have exited, create a second
//!   container or sandbox of one name while the outcome of the first is unknown, or be cut between
//!   creating a container and starting it.
//! * Answers to upstream's `pkg/kubelet/kuberuntime`.
//!
//! Pure: [`actions`], [`kill::plan`], [`gc::plan`], what generates configurations in [`generate`]. Effects: `sync_pod`,
//! `sandbox`, `container`, `kill::stop`, `gc::collect`, `generate::builder`, `log_links`.

pub mod actions;
mod container;
mod exits;
pub mod gc;
mod image_volumes;
pub mod kill;
pub mod labels;
mod log_links;
pub mod log_paths;
mod log_gc;
mod metrics;
mod report;
mod restart_all;
mod restart_back_off;
mod sandbox;
mod sandbox_back_off;
pub mod generate;
mod sync_pod;
pub mod termination;
pub mod translate;

#[cfg(test)]
mod fixtures;

use crate::{
    cri::{FeaturesReader, RuntimeClient},
    images::ImageManager,
    model::{NetworkMode, Pod, PodExt, PodStatus, PodUid},
    resources::NodeFacts,
    runtime::handlers::Hooks,
    state::events::EventRecorder,
    state::pod_cache::PodCache,
    state::pod_history::PodHistory,
    state::pod_state_store::PodStateStore,
    state::probe_results::ProbeResults,
    volumes::VolumeManager,
};
use generate::Builder;
use jiff::Timestamp;
use kill::StopTracker;
use log_links::LogLinks;
use restart_back_off::RestartBackOff;
use sandbox_back_off::SandboxBackOff;
use std::{ops::Deref, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

pub use gc::plan::Policy as GcPolicy;
pub use generate::{SpecSettings, UserNamespaces};
pub use metrics::StartMetrics;
pub use report::{StartFailure, SyncReport, short_id};
pub use restart_all::RestartAllStage;
pub use sync_pod::SyncRequest;

/// What the manager is built from.
pub struct Deps {
    /// The runtime.
    pub runtime: RuntimeClient,
    /// Images.
    pub images: ImageManager,
    /// The picture; told what was touched.
    pub cache: PodCache,
    /// Events.
    pub events: EventRecorder,
    /// What is decided about pods, and why.
    pub pod_history: PodHistory,
    /// Facts that survive a restart.
    pub state_store: PodStateStore,
    /// Probe verdicts.
    pub results: ProbeResults,
    /// Hooks.
    pub hooks: Hooks,
    /// Volumes, for sub-paths and for the config maps and secrets of variables.
    pub volumes: VolumeManager,
    /// Who has which ids.
    pub user_namespaces: UserNamespaces,
    /// What the runtime can do.
    pub features: FeaturesReader,
    /// The node's part of all configurations.
    pub settings: SpecSettings,
    /// Counts what is started.
    pub metrics: StartMetrics,
    /// The rest.
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
    /// Where log collectors look: `/var/log/containers`; `None` for no links.
    pub log_links: Option<PathBuf>,
}

/// What the next plan means for a pod's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// The pod has no sandbox that its containers could run in.
    pub needs_new_sandbox: bool,
    /// How far it is with restarting all of its containers.
    pub restart_all: RestartAllStage,
}

/// The manager; cheap to clone.
#[derive(Clone)]
pub struct KubeGenericRuntimeManager {
    inner: Arc<Inner>,
}

/// What the manager's parts share.
pub struct Inner {
    runtime: RuntimeClient,
    images: ImageManager,
    cache: PodCache,
    events: EventRecorder,
    pod_history: PodHistory,
    state_store: PodStateStore,
    results: ProbeResults,
    hooks: Hooks,
    builder: Builder,
    links: LogLinks,
    node: Arc<NodeFacts>,
    back_off: RestartBackOff,
    sandbox_back_off: SandboxBackOff,
    stops: StopTracker,
    starting: Semaphore,
    metrics: StartMetrics,
    gc_policy: GcPolicy,
}

impl Deref for KubeGenericRuntimeManager {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl KubeGenericRuntimeManager {
    /// Builds the manager; nothing is asked of the runtime yet.
    pub fn new(deps: Deps) -> Self {
        let logs = deps.settings.pod_logs_dir.clone();
        let inner = Inner {
            node: deps.settings.node.clone(),
            builder: Builder::new(
                deps.settings,
                deps.volumes,
                deps.config.resolv_conf,
                deps.user_namespaces,
                deps.features,
            ),
            links: LogLinks::new(logs, deps.config.log_links),
            back_off: RestartBackOff::new(
                deps.config.max_restart_back_off,
                deps.state_store.clone(),
            ),
            sandbox_back_off: SandboxBackOff::default(),
            stops: StopTracker::new(deps.state_store.clone()),
            starting: Semaphore::new(sync_pod::STARTING),
            metrics: deps.metrics,
            gc_policy: deps.config.gc_policy,
            runtime: deps.runtime,
            images: deps.images,
            cache: deps.cache,
            events: deps.events,
            pod_history: deps.pod_history,
            state_store: deps.state_store,
            results: deps.results,
            hooks: deps.hooks,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// What the pod's status has to know of its next plan.
    pub fn outlook(&self, pod: &Pod, status: &PodStatus) -> Outlook {
        let actions = self.compute(pod, status);
        Outlook {
            needs_new_sandbox: actions.sandbox_change.is_some(),
            restart_all: self.restart_all_stage(pod, &actions),
        }
    }

    /// The message of a container's restart back-off if that holds it back at `now`.
    pub fn back_off_message(
        &self,
        pod: &Pod,
        name: &str,
        status: &PodStatus,
        now: Timestamp,
    ) -> Option<String> {
        let (delay, _) = self.restart_back_off(pod, name, status, now)?;
        Some(container::back_off_text(pod, name, delay))
    }

    /// Takes back the ids of a pod none of whose processes is left.
    pub async fn release_user_namespace(&self, uid: &PodUid) {
        self.builder.release_user_namespace(uid).await;
    }

    /// For how long images were pulled for a pod. It is not remembered any more after that.
    pub fn take_pulling_time(&self, uid: &PodUid) -> Duration {
        self.images.take_pulling_time(uid)
    }

    /// Gives up the pulls that run ahead for a pod that ends.
    pub fn stop_prefetches(&self, uid: &PodUid) {
        self.images.stop_prefetches(uid);
    }

    /// The whole restart back-off of a container and when it ends, if that holds it back at `now`.
    pub fn restart_back_off(
        &self,
        pod: &Pod,
        name: &str,
        status: &PodStatus,
        now: Timestamp,
    ) -> Option<(Duration, Timestamp)> {
        let container = pod.container(name)?;
        let Some(newest) = status.newest(name) else {
            // It was removed with all others, and its exit is what they wait after.
            let restart = self.state_store.read(&pod.uid(), |r| r.restart_all.clone());
            let ended = restart.filter(|all| all.container == name)?.finished_at;
            let (delay, left) = self.back_off.held_after(pod, container, ended, now)?;
            return Some((delay, now + left));
        };
        let (delay, left) = self.back_off.held(pod, container, newest, now)?;
        let answered = self.back_off.is_answered(pod, container, newest);
        (!answered).then(|| (delay, now + left))
    }

    /// When the next of the pod's restart back-offs ends, of those that hold containers back at `now`.
    pub fn next_restart(&self, pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<Timestamp> {
        let containers = pod.init_containers().iter().chain(pod.containers());
        containers
            .filter_map(|c| self.restart_back_off(pod, &c.name, status, now))
            .map(|(_, ends)| ends)
            .min()
    }

    /// Where the pod's containers are reached, for hooks: the pod's address, or the node's for a pod on
    /// the node's network. What is not in the spec is told from the sandbox.
    fn address(&self, pod: Option<&Pod>, status: &PodStatus) -> Option<String> {
        let on_node = || {
            let sandbox = status.newest_sandbox();
            sandbox.is_some_and(|s| s.network == NetworkMode::Node)
        };
        match pod.map_or_else(on_node, PodExt::host_network) {
            true => Some(self.node.address().into()),
            false => status.ips().first().cloned(),
        }
    }

    /// How much is remembered of pods, by what it is.
    pub fn kept(&self) -> [(&'static str, usize); 5] {
        let (backing_off, prefetcher) = self.images.kept();
        [
            ("restart_back_off", self.back_off.len()),
            ("sandbox_back_off", self.sandbox_back_off.len()),
            ("stops", self.stops.len()),
            ("pull_back_off", backing_off),
            ("pulls_ahead", prefetcher),
        ]
    }

    /// Forgets what is remembered of a pod that is gone. Before its record in the journal goes.
    pub fn forget_pod(&self, uid: &PodUid) {
        self.back_off.forget(uid);
        self.images.forget_pod(uid);
        self.stops.forget(uid);
        self.sandbox_back_off.forget(uid);
        self.pod_history.forget(uid);
    }
}
