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
//! Pure: [`actions`], [`kill::plan`], [`gc::plan`], the configuration generators. Effects: `sync_pod`,
//! `sandbox`, `container`, `kill::stop`, `gc::collect`, `container_files`, `log_links`.

pub mod actions;
mod builder;
mod container;
pub mod container_config;
pub mod container_files;
pub mod dns;
pub mod env;
pub mod expansion;
pub mod gc;
pub mod hostname;
pub mod kill;
pub mod labels;
mod log_links;
pub mod log_paths;
pub mod mounts;
mod report;
mod restart_back_off;
mod sandbox;
pub mod sandbox_config;
pub mod security_context;
pub mod settings;
mod sync_pod;
pub mod termination;
pub mod translate;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod spec_tests;

use crate::{
    base::backoff::Backoff,
    cri::RuntimeClient,
    events::EventRecorder,
    images::ImageManager,
    journal::Journal,
    lifecycle::Hooks,
    model::{Pod, PodExt, PodStatus, PodUid},
    pod_cache::PodCache,
    probe_results::ProbeResults,
    volumes::VolumeManager,
};
use builder::Builder;
use jiff::Timestamp;
use log_links::LogLinks;
use parking_lot::Mutex;
use restart_back_off::RestartBackOff;
use std::{ops::Deref, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::Instant};

pub use gc::plan::Policy as GcPolicy;
pub use report::{StartFailure, SyncReport, short_id};
pub use settings::SpecSettings;
pub use sync_pod::SyncRequest;

/// Back-off between replacements of one pod's sandbox (ours: upstream has none, P-18).
const SANDBOX_BACK_OFF: (Duration, Duration, Duration) = (
    Duration::from_secs(1),
    Duration::from_secs(60),
    Duration::from_secs(600),
);

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
    /// Facts that survive a restart.
    pub journal: Journal,
    /// Probe verdicts.
    pub results: ProbeResults,
    /// Hooks.
    pub hooks: Hooks,
    /// Volumes, for sub-paths.
    pub volumes: VolumeManager,
    /// The node's part of all configurations.
    pub settings: SpecSettings,
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
    journal: Journal,
    results: ProbeResults,
    hooks: Hooks,
    builder: Builder,
    links: LogLinks,
    back_off: RestartBackOff,
    sandbox_steps: Mutex<Backoff<PodUid, Instant>>,
    starting: Semaphore,
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
        let (base, cap, reset) = SANDBOX_BACK_OFF;
        let logs = deps.settings.pod_logs_dir.clone();
        let inner = Inner {
            builder: Builder::new(deps.settings, deps.volumes, deps.config.resolv_conf),
            links: LogLinks::new(logs, deps.config.log_links),
            back_off: RestartBackOff::new(deps.config.max_restart_back_off, deps.journal.clone()),
            sandbox_steps: Mutex::new(Backoff::new(base, cap, reset)),
            starting: Semaphore::new(sync_pod::STARTING),
            gc_policy: deps.config.gc_policy,
            runtime: deps.runtime,
            images: deps.images,
            cache: deps.cache,
            events: deps.events,
            journal: deps.journal,
            results: deps.results,
            hooks: deps.hooks,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Whether the pod has no sandbox that its containers could run in.
    pub fn needs_new_sandbox(&self, pod: &Pod, status: &PodStatus) -> bool {
        self.compute(pod, status).sandbox_change.is_some()
    }

    /// The message of a container's restart back-off if that holds it back at `now`.
    pub fn back_off_message(
        &self,
        pod: &Pod,
        name: &str,
        status: &PodStatus,
        now: Timestamp,
    ) -> Option<String> {
        let container = pod.container(name)?;
        let newest = status.newest(name)?;
        let (delay, _) = self.back_off.held(pod, container, newest, now)?;
        if self.back_off.is_answered(pod, container, newest) {
            return None;
        }
        Some(container::back_off_text(pod, name, delay))
    }

    /// Forgets what is remembered of a pod that is gone.
    pub fn forget_pod(&self, uid: &PodUid) {
        self.images.forget_pod(uid);
        self.sandbox_steps.lock().forget(uid);
    }
}
