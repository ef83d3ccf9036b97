//! The loop through which desired becomes actual.
//!
//! * Owns: the board of desired pods (its only writer) and the decision what a change means.
//! * Woken by: messages of sources, pods whose picture or probe verdicts changed, workers that
//!   finished, a slow audit.
//! * Publishes: updates to pod workers; which sources have delivered.
//! * Must never wait for a pod: every branch is bookkeeping that takes microseconds. Must never clean
//!   up without proof that the picture is complete and that the source in question has delivered.
//! * Answers to upstream's `syncLoopIteration` and `HandlePodCleanups`.

pub mod admission;
mod audit;
mod cleanup;
pub mod dispatch;
mod metrics;
pub mod occupant;
pub mod orphans;

pub use audit::{Audits, PERIOD as AUDIT_PERIOD};
pub use metrics::LoopMetrics;

use crate::{
    base::DirtySet,
    cri::FeaturesReader,
    model::{Pod, PodExt, PodOp, PodSource, PodStatus, PodUid, PodUpdate},
    pods::pod_config::SourcesReady,
    pods::pod_sync::{PodSync, syncer::UpdateKind},
    pods::pod_workers::{PodWorkers, UpdateOptions},
    state::pod_cache::PodCache,
    state::pod_history::Action,
    state::pod_manager::PodManagerWriter,
    state::probe_results::ProbeResults,
};
use admission::{NodeView, admit, sysctls::Allowlist};
use dispatch::{Step, dispatch};
use occupant::{Occupant, occupant};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// How long the first look at everything may take before sources are heard all the same.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// The heartbeat's resolution: a loop that has not turned for long is reported by `/healthz`.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// When the loop last turned, for `/healthz`.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    started: Instant,
    turned: Arc<AtomicU64>,
}

impl Heartbeat {
    /// A heart that beats now.
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            turned: Arc::default(),
        }
    }

    fn beat(&self) {
        let seconds = self.started.elapsed().as_secs();
        self.turned.store(seconds, Ordering::Relaxed);
    }

    /// How long ago the loop last turned, to the second.
    pub fn age(&self) -> Duration {
        let turned = Duration::from_secs(self.turned.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(turned)
    }
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}

/// What decides whether a pod may run here.
pub struct Admission {
    /// Kernel parameters that pods may set.
    pub sysctls: Allowlist,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// What the runtime can do.
    pub features: FeaturesReader,
}

/// The loop and everything it tells.
pub struct SyncLoop {
    /// Messages of the sources.
    pub updates: mpsc::Receiver<PodUpdate>,
    /// Which sources have delivered.
    pub sources: SourcesReady,
    /// Desired pods.
    pub manager: PodManagerWriter,
    /// Workers.
    pub workers: PodWorkers,
    /// The runtime's picture.
    pub cache: PodCache,
    /// Probe verdicts.
    pub results: ProbeResults,
    /// What workers drive; here for statuses, probes and clean-up.
    pub pod_sync: Arc<PodSync>,
    /// Which pods this node refuses.
    pub admission: Admission,
    /// Counts what becomes of pods.
    pub metrics: LoopMetrics,
    /// For `/healthz`.
    pub heartbeat: Heartbeat,
    /// Pods whose remains are being removed.
    pub cleaning: HashSet<PodUid>,
    /// Pods whose remains have been looked after, and whether all of them are gone.
    pub cleaned: Arc<DirtySet<(PodUid, bool)>>,
    /// Pods that are wanted and have no worker, because of what the runtime has under their UID.
    pub held: HashSet<PodUid>,
    /// Pods of which an audit found something on disk, and nothing else.
    pub orphaned_logs: Arc<DirtySet<PodUid>>,
    /// When to look for what nobody claims.
    pub audits: Audits,
    /// Whether every source has delivered, and all that it wants is known.
    pub heard: watch::Sender<bool>,
    /// Notified when the runtime returns after it may have been away.
    pub runtime_returned: Arc<Notify>,
}

impl SyncLoop {
    /// Turns until shutdown. Begins once the runtime has been listed in full.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let complete = tokio::select! {
            complete = self.cache.complete() => complete,
            () = shutdown.cancelled() => return Ok(()),
        };
        tokio::select! {
            () = self.first_look() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        self.workers.observe_runtime(&self.cache.pods());
        // There may be none.
        self.heard.send_replace(self.sources.all_seen());
        loop {
            self.heartbeat.beat();
            let next_beat = Instant::now() + HEARTBEAT;
            tokio::select! {
                update = self.updates.recv() => match update {
                    Some(update) => {
                        self.on_update(update);
                        self.audits.soon();
                    }
                    None => anyhow::bail!("all pod sources ended"),
                },
                uids = self.cache.changed() => {
                    if self.on_changed(uids) {
                        self.audits.soon();
                    }
                }
                uids = self.results.changed() => self.on_verdicts(uids),
                uids = self.workers.finished() => self.on_finished(uids),
                uids = self.cleaned.take() => match self.on_cleaned(uids) {
                    true => self.audits.soon(),
                    false => self.audits.again(),
                },
                uids = self.orphaned_logs.take() => self.on_orphaned_logs(uids),
                () = self.runtime_returned.notified() => self.workers.runtime_returned(),
                () = self.audits.due() => self.audit(complete),
                () = sleep_until(next_beat) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Waits until everything that the first list named has been read. What sources bring after that
    /// is shown as it is from its first moment on. Something that hangs holds nobody up for long: it
    /// is as unread as it would be later.
    async fn first_look(&self) {
        let all_read = async {
            for pod in self.cache.pods() {
                self.cache.settled(&pod.uid).await;
            }
        };
        if tokio::time::timeout(FIRST_LOOK, all_read).await.is_err() {
            tracing::warn!("Not everything that the runtime has can be read soon; going on");
        }
    }

    fn on_update(&mut self, update: PodUpdate) {
        let manager = self.manager.reader();
        // Looked up once per message: pods of an earlier kubelet are there at the start, if at all.
        let predecessors = match update.op {
            PodOp::Add => self.predecessors(&update.pods),
            _ => Vec::new(),
        };
        for step in dispatch(&update, &|uid| manager.get(uid)) {
            match step {
                Step::Set(pod) => {
                    self.show(&pod);
                    self.manager.set(pod);
                }
                Step::Unset(uid) => {
                    self.manager.remove(&uid);
                }
                Step::Create(pod) => {
                    self.create_after(&predecessors, pod);
                }
                Step::Update(pod) => {
                    let update = UpdateOptions::sync(UpdateKind::Update, pod);
                    self.workers.update_known_pod(update);
                }
                Step::Kill(pod) => self.end(pod),
            }
        }
        self.sources.mark_seen(update.source, update.completeness);
        if self.sources.all_seen() {
            self.heard.send_replace(true);
        }
    }

    /// A pod has a status before it is shown for the first time. While another one of its UID is being
    /// ended or removed, that one's stays.
    fn show(&self, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let ending = self.workers.is_pod_termination_requested(&uid);
        if self.manager.reader().get(&uid).is_none()
            && !ending
            && !self.cleaning.contains(&uid)
            && self.occupant(pod) == Occupant::Itself
        {
            self.pod_sync.statuses.publish(pod);
        }
    }

    /// Whose the UID of a pod is: another pod may have had it, or have been edited, while no kubelet ran.
    fn occupant(&self, pod: &Pod) -> Occupant {
        let uid = pod.uid();
        let settled = self.cache.try_settled(&uid);
        let status = settled.clone().unwrap_or_else(|| self.cache.latest(&uid));
        self.pod_sync.state_store.read(&uid, |record| {
            let remembered = record
                .origin
                .as_ref()
                .and_then(|o| o.spec_digest.as_deref());
            occupant(pod, &status, settled.is_some(), remembered)
        })
    }

    /// Active pods that no source wants (any more), and that have the name of one of these static pods.
    /// One that was listed and not read yet may be active.
    fn predecessors(&self, of: &[Arc<Pod>]) -> Vec<Arc<PodStatus>> {
        let of = of.iter().filter(|pod| pod.is_static());
        let names: HashSet<(&str, &str)> = of.map(|pod| (pod.namespace(), pod.name())).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let wanted = self.manager.reader();
        let mut pods = self.cache.pods();
        pods.retain(|pod| {
            let may_run = || pod.is_active() || self.cache.try_settled(&pod.uid).is_none();
            names.contains(&(&*pod.namespace, &*pod.name))
                && (pod.source() != PodSource::Api || self.is_unread(pod))
                && !wanted.contains(&pod.uid)
                && may_run()
        });
        pods
    }

    /// The runtime status of these pods changed: their probes, statuses and workers want to know.
    /// True when one of them belongs to nobody.
    fn on_changed(&mut self, uids: HashSet<PodUid>) -> bool {
        let manager = self.manager.reader();
        let mut strangers = false;
        for uid in uids {
            self.pod_sync.probes.pod_changed(&uid);
            match manager.get(&uid) {
                Some(pod) if self.held.contains(&uid) => self.create_held(pod),
                Some(pod) => self.look_at(pod),
                None if self.workers.knows(&uid) => self.workers.status_changed(&uid),
                None => strangers = true,
            }
        }
        strangers
    }

    fn on_verdicts(&self, uids: HashSet<PodUid>) {
        let manager = self.manager.reader();
        for uid in uids {
            if let Some(pod) = manager.get(&uid) {
                self.look_at(pod);
            }
        }
    }

    fn look_at(&self, pod: Arc<Pod>) {
        let uid = pod.uid();
        // What is there may be of the pod before it, whose own worker publishes its status.
        let is_anothers = self.workers.wants_restart(&uid)
            || self.cleaning.contains(&uid)
            || self.held.contains(&uid);
        if !is_anothers {
            self.pod_sync.statuses.publish(&pod);
        }
        let look = UpdateOptions::sync(UpdateKind::Sync, pod);
        self.workers.update_known_pod(look);
    }

    /// Whether nothing is known yet of where a pod of the runtime came from.
    fn is_unread(&self, pod: &PodStatus) -> bool {
        pod.sandboxes.is_empty() && self.cache.try_settled(&pod.uid).is_none()
    }

    /// Gives a pod a worker once its predecessors end, or are known not to be its predecessors.
    fn create_after(&mut self, predecessors: &[Arc<PodStatus>], pod: Arc<Pod>) {
        if self.end_predecessors(&pod, predecessors) {
            self.create(pod);
        } else {
            self.hold(
                &pod,
                "the runtime status of a pod of its name is not known yet",
            );
        }
    }

    /// Tries again to give a worker to a pod that was held.
    fn create_held(&mut self, pod: Arc<Pod>) {
        self.held.remove(&pod.uid());
        let predecessors = self.predecessors(std::slice::from_ref(&pod));
        self.create_after(&predecessors, pod);
    }

    /// A pod that is wanted gets no worker for now: it is tried again when something changes.
    fn hold(&mut self, pod: &Pod, why: &str) {
        self.pod_sync.decide(pod, Action::Hold, why.into());
        self.held.insert(pod.uid());
    }

    /// Gives a pod a worker, which ends it at once if the node refuses it. One whose predecessor of the
    /// same UID is still ending is judged when that is gone.
    fn create(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid();
        if !self.workers.knows(&uid) && !self.has_its_uid(&pod) {
            return;
        }
        if self.manager.reader().contains(&uid) && !self.workers.knows(&uid) {
            self.metrics.created(&pod);
        }
        let waits = self.workers.knows(&uid) || self.cleaning.contains(&uid);
        if !waits && !pod.is_terminal() && !self.pod_sync.has_ended(&uid) {
            self.judge(&pod);
        }
        let seen = self.cache.try_settled(&uid);
        let options = UpdateOptions::sync(UpdateKind::Create, pod).seen(seen);
        self.tell(&uid, options);
    }

    /// Shows the pod as failed if the node refuses it; its worker then ends it.
    fn judge(&self, pod: &Arc<Pod>) {
        let admission = &self.admission;
        let node = NodeView {
            sysctls: &admission.sysctls,
            app_armor: admission.app_armor,
            features: *admission.features.borrow(),
        };
        if let Err(rejection) = admit(pod, &node) {
            self.metrics.rejected(rejection.reason);
            self.pod_sync
                .reject(pod, rejection.reason, &rejection.message);
        }
    }

    /// Tells the pod's worker. While the remains of an earlier pod of this UID are being removed there
    /// is none, and there must be none, or the new pod would go with them: it is created after that.
    fn tell(&self, uid: &PodUid, options: UpdateOptions) {
        if self.workers.knows(uid) || !self.cleaning.contains(uid) {
            self.workers.update_pod(options);
        }
    }
}
