//! The task of one worker: waits for an update or for its own timer, and calls the syncer.

use super::PodWorkersInner;
use super::state::{PodSyncCall, SyncOutcome};
use crate::base::panics::{PanicScope, catch_panic, catch_panic_sync};
use crate::base::{clock, error_chain, wait_until};
use crate::model::{GraceDeadline, PodUid};
use crate::pods::pod_sync::syncer::{NextSync, PodSyncer, SyncDelay, SyncPodOutcome, SyncPodType};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// A call of the syncer, with its cancellation and its grace period, which may get shorter while it runs.
pub(super) struct SyncJob {
    pub(super) call: PodSyncCall,
    pub(super) cancel: CancellationToken,
    pub(super) grace: watch::Receiver<GraceDeadline>,
}

pub(super) async fn run(
    shared: Arc<PodWorkersInner>,
    uid: PodUid,
    worker_id: u64,
    mut inbox: mpsc::Receiver<SyncPodType>,
) {
    let mut due = None;
    loop {
        let mut update = tokio::select! {
            biased;
            () = shared.shutdown.cancelled() => return,
            update = inbox.recv() => match update {
                Some(update) => Some(update),
                None => return,
            },
            () = wait_until(due) => inbox.try_recv().ok(),
        };
        loop {
            if shared.shutdown.is_cancelled() {
                return;
            }
            // Caught like a panic in the sync: otherwise this pod would never be synced again.
            let begin = || shared.begin_call(&uid, worker_id, update.take(), clock::instant());
            let ended = match catch_panic_sync(PanicScope::Sync, begin) {
                Ok(None) => return,
                Ok(Some(job)) => {
                    // Boxed, so that an idle worker does not hold the memory of a sync.
                    let outcome = Box::pin(run_job(&shared, job)).await;
                    let end = || shared.end_call(&uid, worker_id, outcome, clock::instant());
                    catch_panic_sync(PanicScope::Sync, end)
                }
                Err(panicked) => Err(panicked),
            };
            due = ended.unwrap_or_else(|panicked| {
                tracing::error!(podUID = %uid, err = %panicked, "Pod worker panicked, retrying");
                shared.recover(&uid, worker_id, clock::instant())
            });
            if due.is_some() {
                break;
            }
        }
    }
}

/// Calls the syncer. A panic in it is a failure of this call only.
async fn run_job(shared: &PodWorkersInner, job: SyncJob) -> SyncOutcome {
    let (call, cancel) = (job.call.clone(), job.cancel.clone());
    let span = span_of(&call);
    let work = async {
        let syncing = catch_panic(PanicScope::Sync, call_syncer(shared.syncer.as_ref(), job));
        let done = match &shared.observer {
            Some(observer) => observer.observe(&call, syncing).await,
            None => syncing.await,
        };
        let result = done.unwrap_or_else(|panicked| SyncPodOutcome {
            result: Err(panicked.into()),
            next: SyncDelay::Error.into(),
        });
        outcome(&call, result, cancel.is_cancelled())
    };
    work.instrument(span).await
}

async fn call_syncer(syncer: &dyn PodSyncer, job: SyncJob) -> SyncPodOutcome {
    let SyncJob { call, cancel, grace } = job;
    let result = match call {
        PodSyncCall::Sync(pod, _) => return syncer.sync_pod(pod, cancel).await,
        PodSyncCall::Terminating(pod, _, reason) => {
            syncer.sync_terminating_pod(pod, grace, reason).await
        }
        PodSyncCall::TerminatingRuntime(running, _) => {
            syncer.sync_terminating_runtime_pod(running, grace).await
        }
        PodSyncCall::Terminated(pod) => syncer.sync_terminated_pod(pod).await,
    };
    // `outcome` ignores the flag: only a sync reports whether the pod is terminal.
    SyncPodOutcome { result: result.map(|()| true), next: NextSync::default() }
}

/// Converts the result for the state machine, and logs a failure: it is not passed on, as the next call retries.
fn outcome(call: &PodSyncCall, done: SyncPodOutcome, cancelled: bool) -> SyncOutcome {
    let SyncPodOutcome { result, mut next } = done;
    let is_sync = matches!(call, PodSyncCall::Sync(..));
    if let Err(error) = &result {
        if next.delay == SyncDelay::Resync {
            next.delay = SyncDelay::Error;
        }
        if !(is_sync && cancelled) {
            tracing::warn!(err = %error_chain(error.as_ref()), "Error syncing pod, retrying");
        }
    }
    match result {
        Ok(terminal) if is_sync => SyncOutcome::SyncEnded { terminal, next },
        Err(_) if is_sync => SyncOutcome::SyncEnded { terminal: false, next },
        Ok(_) => SyncOutcome::StopSucceeded,
        Err(_) => SyncOutcome::StopFailed,
    }
}

/// Every line that is logged during a call names the pod.
fn span_of(call: &PodSyncCall) -> tracing::Span {
    let (namespace, name, uid) = call.pod();
    tracing::info_span!("sync", pod = format!("{namespace}/{name}"), podUID = %uid)
}
