//! Sends the statuses of pods to the API server, and deletes pods that have ended.
//!
//! * Owns: the last request and response about each pod; the back-off of failed requests.
//! * Woken by: statuses and pods that changed, requests that ended, timers of the back-off.
//! * Publishes: nothing in this process; it patches and deletes pods of the API server.
//! * Must never send a status that the API server has, delete a pod that still has containers or volumes here, or have
//!   two requests about one pod at once. A failed request loses nothing, because the status stays in its store.
//! * Upstream: `status_manager.go`, without its read before each write: a status is compared
//!   with the watched object, and the patch has the UID of that object as its precondition.

mod merge;
mod plan;
#[cfg(test)]
mod tests;

use super::mirror::{immediate_deletion, is_mirror_of};
use super::status::{Statuses, VersionedPodStatus};
use crate::apiserver::{ApiError, ApiServer, ResourcePath, StrategicPatch};
use crate::base::clock::{self, Instant};
use crate::base::metrics::{Histogram, Metrics};
use crate::base::panics::{self, catch_panic};
use crate::base::{DirtySet, WorkQueue, error_chain};
use crate::model::{Pod, PodExt, PodUid};
use crate::state::pod_manager::PodManager;
use plan::{NextStatusRequest, SentStatuses, StatusVersion};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 10;
/// Longest delay between two tries.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// What the writer reads.
pub struct StatusWriterDeps {
    /// The API server.
    pub api: ApiServer,
    /// Statuses of pods.
    pub statuses: Statuses,
    /// Pods and mirrors as the API server has them.
    pub pod_manager: PodManager,
    /// Whether containers of a pod may be running.
    pub may_be_running: Box<dyn Fn(&PodUid) -> bool + Send>,
    /// Pods whose status, object or mirror changed.
    pub changed: Arc<DirtySet<PodUid>>,
    /// Registry of the metrics.
    pub metrics: Metrics,
}

/// The writer.
pub struct StatusWriter {
    deps: StatusWriterDeps,
    queue: WorkQueue<PodUid>,
    sent_statuses: HashMap<PodUid, SentStatuses>,
    requests: JoinSet<EndedRequest>,
    /// From the change of a status to its arrival.
    sync_duration: Histogram,
}

/// Upper bounds in seconds; upstream's.
const SYNC_DURATION_BUCKETS: [f64; 11] =
    [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// A request about a pod.
#[derive(Clone, Debug)]
enum StatusRequest {
    Patch(StatusVersion, Value),
    Delete,
}

struct EndedRequest {
    uid: PodUid,
    object: Arc<Pod>,
    request: StatusRequest,
    /// When the status that is sent changed.
    changed_at: Instant,
    /// The object as it is now, unless it was deleted; no result at all is a panic.
    result: Option<Result<Option<Pod>, ApiError>>,
}

impl StatusWriter {
    /// A writer that has sent nothing.
    pub fn new(deps: StatusWriterDeps) -> Self {
        Self {
            queue: WorkQueue::new(deps.changed.clone(), MAX_REQUESTS, MAX_DELAY),
            sync_duration: deps.metrics.register(
                "kubelet_pod_status_sync_duration_seconds",
                "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intervening changes to pod status occur.",
                Histogram::new(SYNC_DURATION_BUCKETS),
            ),
            deps,
            sent_statuses: HashMap::new(),
            requests: JoinSet::new(),
        }
    }

    /// Runs until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            let now = clock::instant();
            while let Some(uid) = self.queue.next(now) {
                self.begin(uid, now);
            }
            tokio::select! {
                uids = self.queue.woken() => {
                    for uid in uids {
                        let urgent = self.changes_readiness(&uid);
                        self.queue.add(uid, urgent, clock::instant());
                    }
                }
                Some(ended) = self.requests.join_next() => {
                    if let Ok(ended) = ended {
                        self.end(ended, clock::instant());
                    }
                }
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    fn changes_readiness(&self, uid: &PodUid) -> bool {
        let Some(entry) = self.deps.statuses.entry(uid) else {
            return false;
        };
        let object = self.object_of(&entry);
        let api_status = object.as_ref().and_then(|object| object.status.as_ref());
        api_status.is_some_and(|api_status| merge::changes_readiness(&entry.status, api_status))
    }

    /// The object that shows the status of a pod: its own, or its mirror.
    fn object_of(&self, entry: &VersionedPodStatus) -> Option<Arc<Pod>> {
        let pod = &entry.pod;
        if !pod.is_static() {
            return self.deps.pod_manager.get(&pod.uid());
        }
        let mirror = self.deps.pod_manager.mirror_of(&pod.full_name())?;
        (is_mirror_of(&mirror, pod) && !mirror.is_being_deleted()).then_some(mirror)
    }

    /// Sends what has to be sent about a pod, if anything.
    fn begin(&mut self, uid: PodUid, now: Instant) {
        let entry = self.deps.statuses.entry(&uid);
        let object = entry.as_ref().and_then(|entry| self.object_of(entry));
        let (Some(entry), Some(object)) = (entry, object) else {
            self.sent_statuses.remove(&uid);
            self.queue.done(&uid);
            return;
        };
        let may_be_running = (self.deps.may_be_running)(&uid);
        let sent_statuses = self
            .sent_statuses
            .entry(uid.clone())
            .and_modify(|known| {
                if !known.is_about(&object) {
                    *known = SentStatuses::new(&object);
                }
            })
            .or_insert_with(|| SentStatuses::new(&object));
        sent_statuses.watched(&object);
        let request = match sent_statuses.next(&entry, &object, may_be_running, now) {
            NextStatusRequest::Patch(version_sent, status) => {
                StatusRequest::Patch(version_sent, status)
            }
            NextStatusRequest::Delete => StatusRequest::Delete,
            NextStatusRequest::Nothing => return self.queue.done(&uid),
            NextStatusRequest::Later(at) => {
                self.queue.done(&uid);
                return self.queue.add_at(uid, at);
            }
            NextStatusRequest::Illegal(version_sent, error) => {
                tracing::error!(
                    pod = %entry.pod.log_name(),
                    podUID = %uid,
                    err = %error,
                    "Status update on pod aborted"
                );
                sent_statuses.rejected(version_sent, &object, now);
                return self.queue.done(&uid);
            }
        };
        let (api, changed_at) = (self.deps.api.clone(), entry.changed_at);
        self.requests.spawn(async move {
            let sending = send(&api, &object, &request);
            let result = catch_panic(panics::PanicScope::Other, sending).await.ok();
            EndedRequest { uid, object, request, changed_at, result }
        });
    }

    fn end(&mut self, ended: EndedRequest, now: Instant) {
        let EndedRequest { uid, object, request, changed_at, result } = ended;
        let (uid, request) = (&uid, &request);
        let Some(sent_statuses) = self.sent_statuses.get_mut(uid) else {
            return self.queue.done(uid);
        };
        let error = match (result, request) {
            (Some(Ok(Some(response))), StatusRequest::Patch(version_sent, patch)) => {
                let took = now.saturating_duration_since(changed_at);
                self.sync_duration.observe(took.as_secs_f64());
                sent_statuses.patched(*version_sent, patch, &object, response, now);
                self.queue.done(uid);
                return self.queue.add(uid.clone(), false, now);
            }
            (Some(Ok(_)), _) => {
                tracing::debug!(pod = %object.log_name(), podUID = %uid, "Pod fully terminated and removed from etcd");
                sent_statuses.deleted(now);
                self.queue.done(uid);
                return self.queue.add(uid.clone(), false, now);
            }
            (Some(Err(error)), request) if is_gone(&error, request) => {
                tracing::debug!(pod = %object.log_name(), podUID = %uid, "Pod does not exist on the server");
                if sent_statuses.deleted(now) {
                    self.deps.api.suspect_watches();
                }
                self.queue.done(uid);
                return self.queue.add(uid.clone(), false, now);
            }
            (Some(Err(error)), _) => error,
            (None, _) => {
                self.queue.failed(uid, now);
                return;
            }
        };
        let (pod, text) = (object.log_name(), error_chain(&error));
        match request {
            // The next try deletes the pod, if nothing of it is left.
            StatusRequest::Patch(version_sent, _)
                if error.is_forbidden() && sent_statuses.forbidden(&object, now) =>
            {
                sent_statuses.rejected(*version_sent, &object, now);
            }
            StatusRequest::Delete if error.is_forbidden() => sent_statuses.deletion_forbidden(),
            _ => {}
        }
        let is_reported = self.deps.api.is_reported(&error);
        match request {
            // A retry of the same patch would be rejected again.
            StatusRequest::Patch(version_sent, _) if is_permanent(&error) => {
                sent_statuses.rejected(*version_sent, &object, now);
                tracing::error!(pod = %pod, podUID = %uid, err = text, "Failed to update status for pod");
                self.queue.done(uid);
                self.queue.add(uid.clone(), false, now);
            }
            StatusRequest::Patch(..) if self.queue.failed(uid, now) && !is_reported => {
                tracing::warn!(pod = %pod, podUID = %uid, err = text, "Failed to update status for pod");
            }
            StatusRequest::Delete if self.queue.failed(uid, now) && !is_reported => {
                tracing::warn!(pod = %pod, podUID = %uid, err = text, "Failed to delete status for pod");
            }
            _ => {}
        }
    }
}

/// Whether the object no longer exists. A conflict of a deletion means the same, because the UID is its precondition.
fn is_gone(error: &ApiError, request: &StatusRequest) -> bool {
    error.is_not_found() || (error.is_conflict() && matches!(request, StatusRequest::Delete))
}

/// Whether a retry is useless. `Forbidden` is retried: the node authorizer also denies a node while it does not know
/// yet that the pod is bound to it.
fn is_permanent(error: &ApiError) -> bool {
    !error.is_transient() && !error.is_conflict() && !error.is_forbidden()
}

async fn send(
    api: &ApiServer,
    object: &Pod,
    request: &StatusRequest,
) -> Result<Option<Pod>, ApiError> {
    let at = ResourcePath::namespaced(object.namespace(), object.name());
    let uid = object.uid();
    match request {
        StatusRequest::Patch(_, status) => {
            let body = json!({"metadata": {"uid": uid.as_str()}, "status": status});
            let patched = api.patch(at, Some("status"), &StrategicPatch(body)).await;
            patched.map(|mut pod: Pod| {
                // Dropped to save memory: the largest parts of a pod, not used here.
                pod.metadata.managed_fields = None;
                pod.spec = None;
                Some(pod)
            })
        }
        StatusRequest::Delete => {
            let deleted = api.delete::<Pod>(at, &immediate_deletion(&uid)).await;
            deleted.map(|()| None)
        }
    }
}
