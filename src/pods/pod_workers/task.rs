//! The task of one worker: waits for a message or for its own timer, and takes turns.

use super::{
    Shared,
    delay::Next,
    registry::{After, Job},
    state::{Outcome, Turn},
    update::Work,
};
use crate::{
    base::{
        chain,
        panics::{Place, contain, contain_blocking},
    },
    model::{PodExt, PodUid},
    pods::pod_sync::syncer::{PodSyncer, RetryDelay, SyncTurn},
};
use std::sync::Arc;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

pub(super) async fn run(
    shared: Arc<Shared>,
    uid: PodUid,
    generation: u64,
    mut inbox: mpsc::Receiver<Work>,
) {
    let mut due = None;
    loop {
        let mut work = tokio::select! {
            biased;
            () = shared.shutdown.cancelled() => return,
            work = inbox.recv() => match work {
                Some(work) => Some(work),
                None => return,
            },
            () = wait_until(due) => inbox.try_recv().ok(),
        };
        due = loop {
            if shared.shutdown.is_cancelled() {
                return;
            }
            // A panic in the bookkeeping is a failure of this pod, as one in its sync is.
            let begin = || shared.begin(&uid, generation, work.take(), Instant::now());
            let ended = match contain_blocking(Place::Sync, begin) {
                Ok(None) => return,
                Ok(Some(job)) => {
                    // Boxed, so that a resting worker does not keep room for a turn.
                    let outcome = Box::pin(take_turn(shared.syncer.clone(), job)).await;
                    let end = || shared.end(&uid, generation, outcome, Instant::now());
                    contain_blocking(Place::Sync, end)
                }
                Err(panicked) => Err(panicked),
            };
            let after = ended.unwrap_or_else(|panicked| {
                tracing::error!(podUID = %uid, err = %panicked, "Pod worker will try again");
                shared.recover(&uid, generation, Instant::now())
            });
            match after {
                After::Continue => {}
                After::Listen => break None,
                After::Rest(due) => break Some(due),
                After::Exit => return,
            }
        };
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Calls the syncer. A panic in it is a failed turn, nothing more.
async fn take_turn(syncer: Arc<dyn PodSyncer>, job: Job) -> Outcome {
    let turn = match &job {
        Job::Sync(turn, _) | Job::Stop(turn, _) | Job::CleanUp(turn) => turn.clone(),
    };
    let called = contain(Place::Sync, call(syncer.as_ref(), job)).await;
    called.unwrap_or_else(|panicked| {
        log_failure(&turn, &panicked.into());
        match turn {
            Turn::Sync(..) => Outcome::Synced {
                terminal: false,
                next: Next::ERROR,
            },
            _ => Outcome::Failed,
        }
    })
}

async fn call(syncer: &dyn PodSyncer, job: Job) -> Outcome {
    let (turn, result) = match job {
        Job::Sync(turn, cancel) => {
            let Turn::Sync(pod, kind) = &turn else {
                return Outcome::Failed;
            };
            let synced = syncer.sync_pod(pod.clone(), *kind, cancel.clone()).await;
            return sync_outcome(&turn, synced, cancel.is_cancelled());
        }
        Job::Stop(turn, grace) => {
            let result = match &turn {
                Turn::Terminate(pod, _, reason) => {
                    let (pod, reason) = (pod.clone(), reason.clone());
                    syncer.sync_terminating_pod(pod, grace, reason).await
                }
                Turn::TerminateRuntime(running, _) => {
                    let running = running.clone();
                    syncer.sync_terminating_runtime_pod(running, grace).await
                }
                Turn::Sync(..) | Turn::CleanUp(_) => Ok(()),
            };
            (turn, result)
        }
        Job::CleanUp(turn) => {
            let result = match &turn {
                Turn::CleanUp(pod) => syncer.sync_terminated_pod(pod.clone()).await,
                _ => Ok(()),
            };
            (turn, result)
        }
    };
    match result {
        Ok(()) => Outcome::Done,
        Err(error) => {
            log_failure(&turn, &error);
            Outcome::Failed
        }
    }
}

fn sync_outcome(turn: &Turn, synced: SyncTurn, cancelled: bool) -> Outcome {
    let SyncTurn {
        result,
        again,
        mut delay,
    } = synced;
    let terminal = match result {
        Ok(terminal) => terminal,
        Err(error) => {
            if delay == RetryDelay::Resync {
                delay = RetryDelay::Error;
            }
            if !cancelled {
                log_failure(turn, &error);
            }
            false
        }
    };
    Outcome::Synced {
        terminal,
        next: Next { again, delay },
    }
}

/// Failures of turns are handled here (the turn is tried again), so they are logged here.
fn log_failure(turn: &Turn, error: &anyhow::Error) {
    let (what, name, namespace, uid) = match turn {
        Turn::Sync(pod, _) => ("sync", pod.name(), pod.namespace(), pod.uid()),
        Turn::Terminate(pod, ..) => ("stop", pod.name(), pod.namespace(), pod.uid()),
        Turn::CleanUp(pod) => ("clean up", pod.name(), pod.namespace(), pod.uid()),
        Turn::TerminateRuntime(status, _) => (
            "stop",
            &*status.name,
            &*status.namespace,
            status.uid.clone(),
        ),
    };
    tracing::warn!(
        what,
        pod = name,
        namespace,
        pod_uid = %uid,
        err = %chain(error.as_ref()),
        "Pod worker will try again"
    );
}
