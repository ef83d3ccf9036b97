//! The loop through which desired becomes actual.
//!
//! * Owns: the board of desired pods (its only writer) and the decision what a change means.
//! * Woken by: messages of sources, pods whose picture or probe verdicts changed, workers that
//!   finished, a slow audit.
//! * Publishes: updates to pod workers; which sources have delivered.
//! * Must never wait for a pod: every branch is bookkeeping that takes microseconds. Must never clean
//!   up without proof that the picture is complete and that the source in question has delivered.
//! * Answers to upstream's `syncLoopIteration` and `HandlePodCleanups`.

pub mod dispatch;
mod cleanup;
pub mod orphans;

use crate::{
    base::DirtySet,
    model::{Pod, PodExt, PodOp, PodSource, PodStatus, PodUid, PodUpdate},
    pod_cache::PodCache,
    pod_config::SourcesReady,
    pod_manager::PodManagerWriter,
    pod_sync::{PodSync, syncer::UpdateKind},
    pod_workers::{PodWorkers, UpdateOptions},
    probe_results::ProbeResults,
};
use dispatch::{Step, dispatch};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// How often what nobody claims is looked for. Everything else is event-driven.
const AUDIT: Duration = Duration::from_secs(60);
/// How soon an audit runs after something that may have left remains.
const SOON: Duration = Duration::from_millis(100);
/// How soon it runs after remains that could not be removed.
const AGAIN: Duration = Duration::from_secs(10);
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
    /// For `/healthz`.
    pub heartbeat: Heartbeat,
    /// Pods whose remains are being removed.
    pub cleaning: HashSet<PodUid>,
    /// Pods whose remains have been looked after, and whether all of them are gone.
    pub cleaned: Arc<DirtySet<(PodUid, bool)>>,
    /// Pods of which an audit found something on disk, and nothing else.
    pub strays: Arc<DirtySet<PodUid>>,
}

impl SyncLoop {
    /// Turns until shutdown. Begins once the runtime has been listed in full.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let complete = tokio::select! {
            complete = self.cache.complete() => complete,
            () = shutdown.cancelled() => return Ok(()),
        };
        let mut audit_at = Instant::now() + SOON;
        loop {
            self.heartbeat.beat();
            let next_beat = Instant::now() + HEARTBEAT;
            tokio::select! {
                update = self.updates.recv() => match update {
                    Some(update) => {
                        self.on_update(update);
                        audit_at = audit_at.min(Instant::now() + SOON);
                    }
                    None => anyhow::bail!("all pod sources ended"),
                },
                uids = self.cache.changed() => {
                    if self.on_changed(uids) {
                        audit_at = audit_at.min(Instant::now() + SOON);
                    }
                }
                uids = self.results.changed() => self.on_verdicts(uids),
                uids = self.workers.finished() => self.on_finished(uids),
                uids = self.cleaned.take() => {
                    let pause = if self.on_cleaned(uids) { SOON } else { AGAIN };
                    audit_at = audit_at.min(Instant::now() + pause);
                }
                uids = self.strays.take() => self.on_strays(uids),
                () = sleep_until(audit_at) => {
                    self.audit(complete);
                    audit_at = Instant::now() + AUDIT;
                }
                () = sleep_until(next_beat) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    fn on_update(&mut self, update: PodUpdate) {
        let manager = self.manager.reader();
        // Looked up once per message: pods of an earlier kubelet are there at the start, if at all.
        let predecessors = self.predecessors(&update);
        for step in dispatch(&update, &|uid| manager.get(uid)) {
            match step {
                Step::Set(pod) => self.manager.set(pod),
                Step::Unset(uid) => {
                    self.manager.remove(&uid);
                }
                Step::Create(pod) => {
                    self.end_predecessors(&pod, &predecessors);
                    let seen = self.cache.latest(&pod.uid());
                    let uid = pod.uid();
                    self.tell(
                        &uid,
                        UpdateOptions::sync(UpdateKind::Create, pod).seen(seen),
                    );
                }
                Step::Update(pod) => {
                    let uid = pod.uid();
                    self.tell(&uid, UpdateOptions::sync(UpdateKind::Update, pod));
                }
                Step::Kill(pod) => self.end(pod),
            }
        }
        self.sources.mark_seen(update.source);
    }

    /// Active pods that no source wants (any more), if the message may bring their successors. One that
    /// was listed and not read yet may be active.
    fn predecessors(&self, update: &PodUpdate) -> Vec<Arc<PodStatus>> {
        if update.op != PodOp::Add || update.source == PodSource::Api {
            return Vec::new();
        }
        let wanted = self.manager.reader().uids();
        let mut pods = self.cache.pods();
        pods.retain(|pod| {
            let may_run = pod.is_active() || self.cache.try_settled(&pod.uid).is_none();
            may_run && !wanted.contains(&pod.uid)
        });
        pods
    }

    /// The picture of these pods is another one: their probes, statuses and workers want to know.
    /// True when one of them belongs to nobody.
    fn on_changed(&self, uids: HashSet<PodUid>) -> bool {
        let manager = self.manager.reader();
        let mut strangers = false;
        for uid in uids {
            self.pod_sync.probes.pod_changed(&uid);
            match manager.get(&uid) {
                Some(pod) => self.look_at(pod),
                None => strangers |= !self.workers.knows(&uid),
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
        self.pod_sync.statuses.publish(&pod);
        let uid = pod.uid();
        self.tell(&uid, UpdateOptions::sync(UpdateKind::Sync, pod));
    }

    /// Tells the pod's worker. While the remains of an earlier pod of this UID are being removed there
    /// is none, and there must be none, or the new pod would go with them: it is created after that.
    fn tell(&self, uid: &PodUid, options: UpdateOptions) {
        if self.workers.knows(uid) || !self.cleaning.contains(uid) {
            self.workers.update_pod(options);
        }
    }
}
