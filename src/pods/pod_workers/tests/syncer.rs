//! A syncer that ends its calls on command, and checks the rules meanwhile.

use super::super::*;
use crate::base::clock;
use crate::model::{GraceDeadline, Pod, PodExt};
use crate::pods::pod_sync::syncer::{NextSync, SyncDelay, SyncPodOutcome, TerminationReason};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How a sync is to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    Well,
    Terminal,
    Badly,
    NetworkNotReady,
    AgainIn(Duration),
    Panic,
}

/// A sync that waits to be ended.
struct Waiting {
    what: String,
    end: oneshot::Sender<How>,
    grace: Option<watch::Receiver<GraceDeadline>>,
    cancel: Option<CancellationToken>,
}

#[derive(Default)]
struct Seen {
    syncs: HashMap<PodUid, Waiting>,
    /// Every sync that began, `<sync>:<uid>`.
    log: Vec<String>,
    /// Static pods between their first sync and the end of their stop.
    running: HashMap<PodFullName, PodUid>,
    /// UIDs whose stop was acknowledged (successfully ended).
    stopped: HashSet<PodUid>,
    graces: HashMap<PodUid, Instant>,
    broken: Vec<String>,
}

#[derive(Clone, Default)]
pub(super) struct Scripted {
    seen: Arc<Mutex<Seen>>,
}

impl Scripted {
    /// Ends the sync of a pod; false when none runs.
    pub(super) fn end(&self, uid: &str, how: How) -> bool {
        let sync = self.seen.lock().syncs.remove(uid);
        sync.is_some_and(|sync| sync.end.send(how).is_ok())
    }

    /// The sync that runs for a pod.
    pub(super) fn running(&self, uid: &str) -> Option<String> {
        Some(self.seen.lock().syncs.get(uid)?.what.clone())
    }

    pub(super) fn busy(&self) -> Vec<PodUid> {
        self.seen.lock().syncs.keys().cloned().collect()
    }

    pub(super) fn is_cancelled(&self, uid: &str) -> bool {
        let seen = self.seen.lock();
        let cancel = seen.syncs.get(uid).and_then(|sync| sync.cancel.as_ref());
        cancel.is_some_and(CancellationToken::is_cancelled)
    }

    /// Time left of a stop.
    pub(super) fn time_left(&self, uid: &str) -> Duration {
        let seen = self.seen.lock();
        let grace = seen.syncs[uid].grace.as_ref().unwrap().borrow().deadline;
        grace - clock::instant()
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.seen.lock().log.clone()
    }

    /// A pod was collected: the same UID may begin again.
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut seen = self.seen.lock();
        seen.stopped.remove(uid);
        seen.graces.remove(uid);
    }

    /// Rules that were broken so far, by running stops too.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut seen = self.seen.lock();
        let Seen { syncs, graces, broken, .. } = &mut *seen;
        for (uid, sync) in syncs {
            let Some(grace) = &sync.grace else { continue };
            let deadline = grace.borrow().deadline;
            let before = graces.entry(uid.clone()).or_insert(deadline);
            if deadline > *before {
                broken.push(format!("grace of {uid} grew"));
            }
            *before = deadline;
        }
        broken.clone()
    }

    fn begins(&self, what: &str, uid: PodUid, call: Call) -> Running {
        let (end, wait) = oneshot::channel();
        let mut seen = self.seen.lock();
        seen.log.push(format!("{what}:{uid}"));
        let starts = what.starts_with("sync");
        if starts && seen.stopped.contains(&uid) {
            seen.broken.push(format!("{uid} started after its end"));
        }
        if let Some(name) = call.static_name.clone().filter(|_| starts) {
            let holder = seen.running.entry(name).or_insert_with(|| uid.clone()).clone();
            if holder != uid {
                seen.broken.push(format!("{uid} runs beside {holder}"));
            }
        }
        let waiting = Waiting { what: what.into(), end, grace: call.grace, cancel: call.cancel };
        if seen.syncs.insert(uid.clone(), waiting).is_some() {
            seen.broken.push(format!("two syncs of {uid}"));
        }
        Running { wait }
    }

    fn stopped(&self, pod: &Pod) {
        let mut seen = self.seen.lock();
        seen.stopped.insert(pod.uid());
        let uid = pod.uid();
        seen.running.retain(|_, holder| *holder != uid);
    }
}

#[derive(Default)]
struct Call {
    static_name: Option<PodFullName>,
    grace: Option<watch::Receiver<GraceDeadline>>,
    cancel: Option<CancellationToken>,
}

struct Running {
    wait: oneshot::Receiver<How>,
}

impl Running {
    async fn end(self) -> anyhow::Result<()> {
        match self.wait.await {
            Ok(How::Badly) => anyhow::bail!("failed on purpose"),
            Ok(How::Panic) => quiet_panic(),
            _ => Ok(()),
        }
    }
}

impl PodSyncer for Scripted {
    fn sync_pod(&self, pod: Arc<Pod>, cancel: CancellationToken) -> BoxFuture<'_, SyncPodOutcome> {
        async move {
            let call = Call {
                static_name: pod.is_static().then(|| pod.full_name()),
                cancel: Some(cancel.clone()),
                ..Call::default()
            };
            let running = self.begins("sync", pod.uid(), call);
            let how = running.wait.await.unwrap_or(How::Well);
            let mut done = SyncPodOutcome { result: Ok(false), next: NextSync::default() };
            match how {
                How::Well => {}
                How::Terminal => done.result = Ok(true),
                How::Badly => done.result = Err(anyhow::anyhow!("failed on purpose")),
                How::NetworkNotReady => {
                    done.result = Err(anyhow::anyhow!("the network is not ready"));
                    done.next = SyncDelay::NetworkNotReady.into();
                }
                How::AgainIn(delay) => done.next.at = Some(clock::instant() + delay),
                How::Panic => quiet_panic(),
            }
            done
        }
        .boxed()
    }

    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        _reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        async move {
            let call = Call { grace: Some(grace), ..Call::default() };
            self.begins("stop", pod.uid(), call).end().await?;
            self.stopped(&pod);
            Ok(())
        }
        .boxed()
    }

    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        async move {
            let call = Call { grace: Some(grace), ..Call::default() };
            let uid = running.uid.clone();
            self.begins("stop-runtime", uid.clone(), call).end().await?;
            self.seen.lock().graces.remove(&uid);
            Ok(())
        }
        .boxed()
    }

    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        async move {
            let running = self.begins("clean-up", pod.uid(), Call::default());
            running.end().await
        }
        .boxed()
    }
}

/// Unwinds without a message on the terminal.
fn quiet_panic() -> ! {
    std::panic::resume_unwind(Box::new("panicked on purpose"))
}

/// Lets every task run until all of them wait, without letting time pass.
pub(super) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
