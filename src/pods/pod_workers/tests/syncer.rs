//! A syncer that does what it is told when it is told, and watches the rules meanwhile.

use super::super::*;
use crate::{
    model::{GraceDeadline, Pod, PodExt},
    pods::pod_sync::syncer::{RetryDelay, SyncTurn, TerminationReason, UpdateKind},
};
use futures::{FutureExt, future::BoxFuture};
use std::{collections::HashMap, time::Duration};
use tokio::sync::{oneshot, watch};

/// How a turn is to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    Well,
    Terminal,
    Badly,
    NetworkNotReady,
    AgainIn(Duration),
    Panic,
}

/// A turn that waits to be ended.
struct Waiting {
    what: String,
    end: oneshot::Sender<How>,
    grace: Option<watch::Receiver<GraceDeadline>>,
    cancel: Option<CancellationToken>,
}

#[derive(Default)]
struct Seen {
    turns: HashMap<PodUid, Waiting>,
    /// Every turn that began, `<turn>:<uid>`.
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
    /// Ends the turn of a pod; false when there is none.
    pub(super) fn end(&self, uid: &str, how: How) -> bool {
        let turn = self.seen.lock().turns.remove(uid);
        turn.is_some_and(|turn| turn.end.send(how).is_ok())
    }

    /// The turn that runs for a pod.
    pub(super) fn turn(&self, uid: &str) -> Option<String> {
        Some(self.seen.lock().turns.get(uid)?.what.clone())
    }

    pub(super) fn busy(&self) -> Vec<PodUid> {
        self.seen.lock().turns.keys().cloned().collect()
    }

    pub(super) fn is_cancelled(&self, uid: &str) -> bool {
        let seen = self.seen.lock();
        let cancel = seen.turns.get(uid).and_then(|turn| turn.cancel.as_ref());
        cancel.is_some_and(CancellationToken::is_cancelled)
    }

    /// Time left of a stop.
    pub(super) fn time_left(&self, uid: &str) -> Duration {
        let seen = self.seen.lock();
        let grace = seen.turns[uid].grace.as_ref().unwrap().borrow().deadline;
        grace - Instant::now()
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.seen.lock().log.clone()
    }

    /// A pod was collected: the same UID may begin anew.
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut seen = self.seen.lock();
        seen.stopped.remove(uid);
        seen.graces.remove(uid);
    }

    /// Rules that were broken so far. Looks at running stops, too.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut seen = self.seen.lock();
        let Seen {
            turns,
            graces,
            broken,
            ..
        } = &mut *seen;
        for (uid, turn) in turns {
            let Some(grace) = &turn.grace else { continue };
            let deadline = grace.borrow().deadline;
            let before = graces.entry(uid.clone()).or_insert(deadline);
            if deadline > *before {
                broken.push(format!("grace of {uid} grew"));
            }
            *before = deadline;
        }
        broken.clone()
    }

    fn turn_begins(&self, what: &str, uid: PodUid, turn: Turn) -> Running {
        let (end, wait) = oneshot::channel();
        let mut seen = self.seen.lock();
        seen.log.push(format!("{what}:{uid}"));
        let starts = what.starts_with("sync");
        if starts && seen.stopped.contains(&uid) {
            seen.broken.push(format!("{uid} started after its end"));
        }
        if let Some(name) = turn.static_name.clone().filter(|_| starts) {
            let holder = seen
                .running
                .entry(name)
                .or_insert_with(|| uid.clone())
                .clone();
            if holder != uid {
                seen.broken.push(format!("{uid} runs beside {holder}"));
            }
        }
        let waiting = Waiting {
            what: what.into(),
            end,
            grace: turn.grace,
            cancel: turn.cancel,
        };
        if seen.turns.insert(uid.clone(), waiting).is_some() {
            seen.broken.push(format!("two turns of {uid}"));
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
struct Turn {
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
            Ok(How::Badly) => anyhow::bail!("told to fail"),
            Ok(How::Panic) => quiet_panic(),
            _ => Ok(()),
        }
    }
}

impl PodSyncer for Scripted {
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        kind: UpdateKind,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, SyncTurn> {
        async move {
            let turn = Turn {
                static_name: pod.is_static().then(|| pod.full_name()),
                cancel: Some(cancel.clone()),
                ..Turn::default()
            };
            let running = self.turn_begins(&format!("sync-{kind:?}"), pod.uid(), turn);
            let how = running.wait.await.unwrap_or(How::Well);
            let mut turn = SyncTurn {
                result: Ok(false),
                again: None,
                delay: RetryDelay::Resync,
            };
            match how {
                How::Well => {}
                How::Terminal => turn.result = Ok(true),
                How::Badly => turn.result = Err(anyhow::anyhow!("told to fail")),
                How::NetworkNotReady => {
                    turn.result = Err(anyhow::anyhow!("told so"));
                    turn.delay = RetryDelay::NetworkNotReady;
                }
                How::AgainIn(delay) => turn.again = Some(Instant::now() + delay),
                How::Panic => quiet_panic(),
            }
            turn
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
            let turn = Turn {
                grace: Some(grace),
                ..Turn::default()
            };
            self.turn_begins("stop", pod.uid(), turn).end().await?;
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
            let turn = Turn {
                grace: Some(grace),
                ..Turn::default()
            };
            let uid = running.uid.clone();
            self.turn_begins("stop-runtime", uid.clone(), turn)
                .end()
                .await?;
            self.seen.lock().graces.remove(&uid);
            Ok(())
        }
        .boxed()
    }

    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        async move {
            let running = self.turn_begins("clean-up", pod.uid(), Turn::default());
            running.end().await
        }
        .boxed()
    }
}

/// Unwinds without a message on the terminal.
fn quiet_panic() -> ! {
    std::panic::resume_unwind(Box::new("told to panic"))
}

/// Lets every task run until all of them wait, without letting time pass.
pub(super) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
