//! Mirror pods: what the API server shows of static pods.
//!
//! * Owns: which mirrors were just created or deleted, and the back-off of requests that failed.
//! * Woken by: static pods and mirrors that came, changed or went; requests that ended; timers.
//! * Publishes: nothing here; mirrors come back through the source of API pods.
//! * Must never act on a static pod, delete a mirror while a static pod of its name is still terminating, or take a
//!   mirror for an orphan before the sources of static pods have delivered.
//! * Upstream: `pkg/kubelet/pod/mirror_client.go`.

mod plan;
#[cfg(test)]
mod tests;

pub use plan::is_mirror_of;

use crate::apiserver::{ApiError, ApiServer, ResourcePath};
use crate::base::backoff::Backoff;
use crate::base::clock::{self, Instant};
use crate::base::panics::{self, catch_panic};
use crate::base::{DirtySet, WorkQueue, error_chain};
use crate::model::{Pod, PodExt, PodFullName, PodUid};
use crate::state::node_object::NodeObject;
use crate::state::pod_manager::PodManager;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use plan::{KnownMirror, MirrorStep, plan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Requests under way at once.
const MAX_REQUESTS: usize = 5;
/// Longest delay between two tries.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// How long the watch may take to show a mirror that was created.
const WATCH_DELAY: Duration = Duration::from_secs(10);
/// The minimum time between two creations of a mirror: another client may delete it as soon as it appears. Doubled with
/// each creation up to the maximum, and reset after a while without one.
const CREATION_INTERVAL: Duration = Duration::from_secs(1);
const MAX_CREATION_INTERVAL: Duration = Duration::from_secs(60);
const CREATION_RESET: Duration = Duration::from_secs(120);
/// How often a name is checked in which an earlier pod still ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Whether a worker has a pod of this name, one pod left out.
pub type NameInUse = Box<dyn Fn(&PodFullName, Option<&PodUid>) -> bool + Send>;

/// What mirrors are made from.
pub struct MirrorDeps {
    /// The API server.
    pub api: ApiServer,
    /// This node's name.
    pub node_name: String,
    /// This node's object.
    pub node: NodeObject,
    /// Static pods and mirrors.
    pub pod_manager: PodManager,
    /// Which names are in use by pods that have not ended.
    pub name_in_use: NameInUse,
    /// Whether the API server has delivered its pods.
    pub mirrors_known: Box<dyn Fn() -> bool + Send>,
    /// Whether every source of static pods has delivered all of its pods.
    pub pods_known: Box<dyn Fn() -> bool + Send>,
    /// Names of static pods and mirrors that changed.
    pub changed: Arc<DirtySet<PodFullName>>,
}

/// Keeps the mirrors.
pub struct MirrorPods {
    deps: MirrorDeps,
    queue: WorkQueue<PodFullName>,
    /// Mirrors that the watch has not shown yet.
    created: HashMap<PodFullName, (Arc<Pod>, Instant)>,
    /// Mirrors that the watch still shows.
    deleted: HashMap<PodFullName, PodUid>,
    /// When mirrors were created, by the name and the UID of their static pod.
    creations: Backoff<(PodFullName, PodUid), Instant>,
    /// Why the last try of a name failed.
    reported: HashMap<PodFullName, String>,
    /// Whether mirrors and static pods were known when all names were checked.
    known: [bool; 2],
    requests: JoinSet<EndedMirrorRequest>,
}

/// A request about a mirror.
#[derive(Clone, Debug)]
enum MirrorRequest {
    Create(Arc<Pod>),
    Delete(Arc<Pod>),
}

struct EndedMirrorRequest {
    name: PodFullName,
    request: MirrorRequest,
    /// The mirror as it was created; no result at all is a panic.
    result: Option<Result<Option<Pod>, ApiError>>,
}

impl MirrorPods {
    /// No mirrors yet.
    pub fn new(deps: MirrorDeps) -> Self {
        Self {
            queue: WorkQueue::new(deps.changed.clone(), MAX_REQUESTS, MAX_DELAY),
            deps,
            created: HashMap::new(),
            deleted: HashMap::new(),
            creations: Backoff::new(CREATION_INTERVAL, MAX_CREATION_INTERVAL, CREATION_RESET),
            reported: HashMap::new(),
            known: [false; 2],
            requests: JoinSet::new(),
        }
    }

    /// Runs until shutdown. `delivered` is sent to when a source has delivered.
    pub async fn run(
        mut self,
        mut delivered: tokio::sync::watch::Receiver<bool>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        loop {
            let now = clock::instant();
            while let Some(name) = self.queue.next(now) {
                self.begin(name, now);
            }
            tokio::select! {
                names = self.queue.woken() => {
                    for name in names {
                        self.queue.add(name, false, clock::instant());
                    }
                }
                Some(ended) = self.requests.join_next() => {
                    if let Ok(ended) = ended {
                        self.end(ended, clock::instant());
                    }
                }
                Ok(()) = delivered.changed() => self.check_all(),
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Checks every name once it is known what may be created, and what may be deleted.
    fn check_all(&mut self) {
        let known = [(self.deps.mirrors_known)(), (self.deps.pods_known)()];
        if known == self.known {
            return;
        }
        self.known = known;
        let (pods, mirrors) = (self.deps.pod_manager.pods(), self.deps.pod_manager.mirrors());
        let pods = pods.iter().filter(|pod| pod.is_static());
        let names: HashSet<_> = pods.chain(&mirrors).map(|pod| pod.full_name()).collect();
        for name in names {
            self.queue.add(name, false, clock::instant());
        }
    }

    /// The mirror of a name: a request of this kubelet counts before the watch shows it.
    fn mirror(&mut self, name: &PodFullName, now: Instant) -> Option<Arc<Pod>> {
        let watched = self.deps.pod_manager.mirror_of(name);
        let Some(watched) = watched else {
            self.deleted.remove(name);
            let created = self.created.get(name).filter(|(_, until)| now < *until);
            return created.map(|(mirror, _)| mirror.clone());
        };
        if self.deleted.get(name) != Some(&watched.uid()) {
            self.deleted.remove(name);
            self.created.remove(name);
            return Some(watched);
        }
        let created = self.created.get(name).filter(|(_, until)| now < *until);
        created.map(|(mirror, _)| mirror.clone())
    }

    fn begin(&mut self, name: PodFullName, now: Instant) {
        let mirror = self.mirror(&name, now);
        let deps = &self.deps;
        let pod = deps.pod_manager.static_of(&name);
        let uid = pod.as_ref().map(|pod| pod.uid());
        let known = KnownMirror {
            pod: pod.as_deref(),
            mirror: mirror.as_deref(),
            mirrors_known: (deps.mirrors_known)(),
            pods_known: (deps.pods_known)(),
            name_in_use: (deps.name_in_use)(&name, uid.as_ref()),
        };
        let request = match plan(known) {
            MirrorStep::Create => {
                let created = pod.as_ref().map(|pod| (name.clone(), pod.uid()));
                if let Some(at) = created.and_then(|key| self.creation_due(&key, now)) {
                    self.queue.done(&name);
                    return self.queue.add_at(name, at);
                }
                pod.map(MirrorRequest::Create)
            }
            MirrorStep::Delete => mirror.map(MirrorRequest::Delete),
            MirrorStep::Nothing => None,
            MirrorStep::Wait => {
                self.queue.done(&name);
                return self.queue.add_at(name, now + CHECK_INTERVAL);
            }
        };
        let Some(request) = request else {
            self.queue.done(&name);
            return self.forget(&name, now);
        };
        let (api, node) = (deps.api.clone(), deps.node.clone());
        let node_name = deps.node_name.clone();
        self.requests.spawn(async move {
            let sending = send(&api, &node, &node_name, &request, &name);
            let result = catch_panic(panics::PanicScope::Other, sending).await.ok();
            EndedMirrorRequest { name, request, result }
        });
    }

    /// When a mirror that was created before may be created again, unless that is now.
    fn creation_due(&self, key: &(PodFullName, PodUid), now: Instant) -> Option<Instant> {
        let last = self.creations.entry(key)?.last_update;
        Some(now + self.creations.remaining(key, last, now)?)
    }

    /// Drops the bookkeeping of a name without pending work, except a creation mark that has not expired.
    fn forget(&mut self, name: &PodFullName, now: Instant) {
        self.reported.remove(name);
        if let Some((_, until)) = self.created.get(name) {
            if now < *until {
                self.queue.add_at(name.clone(), *until);
            } else {
                self.created.remove(name);
            }
        }
    }

    fn end(&mut self, ended: EndedMirrorRequest, now: Instant) {
        let EndedMirrorRequest { name, request, result } = ended;
        let (name, request) = (&name, &request);
        let error = match (result, request) {
            (Some(Ok(created)), MirrorRequest::Create(pod)) => {
                let is_recent = |last: Instant| now.duration_since(last) < CREATION_RESET;
                self.creations.retain(|_, entry| is_recent(entry.last_update));
                self.creations.advance((name.clone(), pod.uid()), now, now);
                let until = now + WATCH_DELAY;
                let mirror = created.map(Arc::new);
                self.created.extend(mirror.map(|mirror| (name.clone(), (mirror, until))));
                return self.finish(name, now);
            }
            (Some(Ok(_)), MirrorRequest::Delete(mirror)) => {
                return self.gone(name, &mirror.uid(), now);
            }
            (Some(Err(error)), MirrorRequest::Delete(mirror)) if error.is_not_found() => {
                return self.gone(name, &mirror.uid(), now);
            }
            (Some(Err(error)), _) if self.deps.api.is_reported(&error) => {
                self.queue.failed(name, now);
                return;
            }
            (Some(Err(error)), MirrorRequest::Create(_)) => {
                if error.is_already_exists() {
                    // What the watch shows counts again, whatever became of earlier requests.
                    self.deleted.remove(name);
                    self.created.remove(name);
                }
                error_chain(&error)
            }
            (Some(Err(error)), MirrorRequest::Delete(_)) => error_chain(&error),
            (None, _) => "panicked".to_owned(),
        };
        self.queue.failed(name, now);
        if self.reported.get(name) != Some(&error) {
            let text = match request {
                MirrorRequest::Create(_) => "Failed creating a mirror pod",
                MirrorRequest::Delete(_) => "Failed deleting a mirror pod",
            };
            tracing::warn!(pod = %name.log_name(), err = error, "{text}");
            self.reported.insert(name.clone(), error);
        }
    }

    fn gone(&mut self, name: &PodFullName, uid: &PodUid, now: Instant) {
        let was_created = |(mirror, _): &(Arc<Pod>, Instant)| mirror.uid() == *uid;
        if self.created.get(name).is_some_and(was_created) {
            self.created.remove(name);
        }
        self.deleted.insert(name.clone(), uid.clone());
        self.finish(name, now);
    }

    fn finish(&mut self, name: &PodFullName, now: Instant) {
        self.queue.done(name);
        self.queue.add(name.clone(), false, now);
    }
}

/// The UID of this node's object, which changes if the node is registered again.
async fn node_uid(api: &ApiServer, node: &NodeObject, name: &str) -> Result<String, ApiError> {
    let known = node.borrow().clone();
    let node = match known {
        Some(node) => node,
        None => Arc::new(api.get::<Node>(ResourcePath::cluster(name)).await?),
    };
    Ok(node.metadata.uid.clone().unwrap_or_default())
}

async fn send(
    api: &ApiServer,
    node: &NodeObject,
    node_name: &str,
    request: &MirrorRequest,
    name: &PodFullName,
) -> Result<Option<Pod>, ApiError> {
    match request {
        MirrorRequest::Create(pod) => {
            let node_uid = node_uid(api, node, node_name).await?;
            let mirror = plan::mirror_of(pod, node_name, &node_uid);
            tracing::debug!(pod = %name.log_name(), "Creating a mirror pod for static pod");
            let created = api.create(Some(pod.namespace()), &mirror).await;
            created.map(Some)
        }
        MirrorRequest::Delete(mirror) => {
            let uid = mirror.uid();
            tracing::info!(pod = %name.log_name(), podUID = %uid, "Deleting mirror pod");
            let at = ResourcePath::namespaced(mirror.namespace(), mirror.name());
            let deleted = api.delete::<Pod>(at, &immediate_deletion(&uid)).await;
            deleted.map(|()| None)
        }
    }
}

/// Options that delete exactly this object, without a grace period, because nothing of it is left on the node.
pub(in crate::pods) fn immediate_deletion(uid: &PodUid) -> DeleteOptions {
    DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(uid.to_string()), resource_version: None }),
        ..DeleteOptions::default()
    }
}
