//! Pulls that run ahead of the containers that will need them.
//!
//! Containers start one after the other; what they are made from need not wait for that. When a
//! pod's turn begins to start containers, the images of all that are still to come are looked for
//! and pulled in the background, in the order of the containers, through the same queue as any
//! other pull. The container's own turn then finds the outcome here instead of asking again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::error::ImageError;
use super::manager::{ImageManager, Verdict};
use super::request::{ImageRequest, PullPolicy, ReadyImage};
use crate::base::otel::carried;
use crate::base::panics::{Place, contain};
use crate::cri::v1::PodSandboxConfig;
use crate::model::{Pod, PodExt, PodUid};
use crate::state::events::ObjectRef;

/// For how long what was learnt ahead is believed. After that somebody may have removed the image,
/// and `Always` means a look at the registry when the container starts.
const TTL: Duration = Duration::from_secs(60);

/// An image that a container of a pod will need.
#[derive(Debug, Clone)]
pub struct WantedImage {
    /// The container, for events.
    pub object: ObjectRef,
    /// The reference as the user wrote it.
    pub image: String,
    /// Whether to pull.
    pub policy: PullPolicy,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// It was on the machine and may be used; nobody has been told yet.
    Present(ReadyImage),
    /// It was pulled, and the events have told so.
    Pulled(ReadyImage),
    /// The pull failed, and the events have told so.
    Failed(ImageError),
    /// Nothing was done; the container is to ask for itself.
    Unknown,
}

#[derive(Debug, Clone)]
struct Done {
    at: Instant,
    outcome: Outcome,
}

impl Done {
    /// Whether a container may go by it at `now`.
    fn holds(&self, now: Instant) -> bool {
        match &self.outcome {
            Outcome::Present(_) | Outcome::Pulled(_) => {
                now.saturating_duration_since(self.at) < TTL
            }
            Outcome::Failed(error) => error.retry_at.is_some_and(|again| now < again),
            Outcome::Unknown => false,
        }
    }
}

/// One pull ahead. Dropping it ends the pull, unless a container waits for it at that moment.
struct Job {
    wanted: WantedImage,
    done: Shared<BoxFuture<'static, Done>>,
    task: AbortHandle,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Job {
    fn is_for(&self, object: &ObjectRef, image: &str, policy: PullPolicy) -> bool {
        let own = &self.wanted;
        own.policy == policy && own.image == image && own.object == *object
    }

    /// Not to be begun again: under way, in its back-off, or with an image that was there. That may
    /// not be believed any more when the container starts, but looking now would not help it.
    fn stands(&self, now: Instant) -> bool {
        let is_there =
            |done: &Done| matches!(done.outcome, Outcome::Present(_) | Outcome::Pulled(_));
        let done = self.done.peek();
        done.is_none_or(|done| is_there(done) || done.holds(now))
    }
}

/// Pulls ahead by pod.
#[derive(Default)]
pub(super) struct Prefetcher {
    pods: Mutex<HashMap<PodUid, Vec<Job>>>,
}

impl Prefetcher {
    /// Waits for the outcome of what was begun for this container, and takes it out. `None` when
    /// nothing was begun, or nothing came of it that may be gone by.
    pub(super) async fn take(&self, request: &ImageRequest<'_>) -> Option<Outcome> {
        let pod = request.pod.uid();
        let mine = |job: &Job| job.is_for(request.object, request.image, request.policy);
        let done = {
            let pods = self.pods.lock();
            pods.get(&pod)?.iter().find(|job| mine(job))?.done.clone()
        };
        let done = done.await;
        let mut pods = self.pods.lock();
        if let Some(jobs) = pods.get_mut(&pod) {
            jobs.retain(|job| !mine(job));
            if jobs.is_empty() {
                pods.remove(&pod);
            }
        }
        done.holds(Instant::now()).then_some(done.outcome)
    }

    /// For how many pods.
    pub(super) fn len(&self) -> usize {
        self.pods.lock().len()
    }

    /// Nobody wants the pod's images any more.
    pub(super) fn forget(&self, pod: &PodUid) {
        let jobs = self.pods.lock().remove(pod);
        drop(jobs);
    }
}

impl ImageManager {
    /// Begins to get the images of containers that will start one after the other, in that order.
    /// What was begun in an earlier turn goes on; what is in no list any more is given up.
    pub fn prefetch(&self, pod: &Arc<Pod>, wanted: Vec<WantedImage>, sandbox: &PodSandboxConfig) {
        let now = Instant::now();
        let mut pods = self.prefetcher().pods.lock();
        let mut jobs = pods.remove(&pod.uid()).unwrap_or_default();
        jobs.retain(|job| {
            let again = |w: &WantedImage| job.is_for(&w.object, &w.image, w.policy);
            job.stands(now) && wanted.iter().any(again)
        });
        let mut before = None;
        for wanted in wanted {
            let same =
                |job: &Job| job.wanted.image == wanted.image && job.wanted.policy == wanted.policy;
            // A second container of the same image finds it there in its own turn.
            let later = wanted.policy == PullPolicy::Never || jobs.iter().any(same);
            if later || self.is_held_back(&pod.uid(), &wanted.image) {
                continue;
            }
            let (queued, next) = oneshot::channel();
            let work = Work {
                manager: self.clone(),
                pod: pod.clone(),
                wanted: wanted.clone(),
                sandbox: sandbox.clone(),
            };
            let done = done(work.run(before.replace(next), queued));
            let task = tokio::spawn(done.clone().map(drop)).abort_handle();
            jobs.push(Job { wanted, done, task });
        }
        if !jobs.is_empty() {
            pods.insert(pod.uid(), jobs);
        }
    }

    /// Gives up what is pulled ahead for a pod that ends.
    pub fn stop_prefetches(&self, pod: &PodUid) {
        self.prefetcher().forget(pod);
    }
}

/// What several may wait for. A panic of the work is not theirs.
fn done(work: impl Future<Output = Outcome> + Send + 'static) -> Shared<BoxFuture<'static, Done>> {
    let done = async {
        let outcome = contain(Place::ImagePrefetch, work).await;
        Done {
            at: Instant::now(),
            outcome: outcome.unwrap_or(Outcome::Unknown),
        }
    };
    carried(done).boxed().shared()
}

/// The image of one container.
struct Work {
    manager: ImageManager,
    pod: Arc<Pod>,
    wanted: WantedImage,
    sandbox: PodSandboxConfig,
}

impl Work {
    /// Looks once the container before has its place in the queue, so that pulls queue in the order
    /// in which their containers start, and says when it has its own.
    async fn run(
        self,
        before: Option<oneshot::Receiver<()>>,
        queued: oneshot::Sender<()>,
    ) -> Outcome {
        if let Some(before) = before {
            // An error says that the one before needs no place, or has been given up.
            let _ = before.await;
        }
        self.outcome(queued).await
    }

    async fn outcome(&self, queued: oneshot::Sender<()>) -> Outcome {
        let request = ImageRequest {
            pod: &self.pod,
            object: &self.wanted.object,
            image: &self.wanted.image,
            policy: self.wanted.policy,
            sandbox_config: Some(&self.sandbox),
        };
        match self.manager.judge(&request).await {
            Ok(Verdict::Use(image)) => Outcome::Present(image),
            Ok(Verdict::Pull(plan)) => {
                let credentials = self.manager.credentials(&plan).await;
                let pull = self.manager.pull(&request, plan, credentials);
                tokio::pin!(pull);
                // The first look at it takes its place in the queue.
                let first = futures::poll!(pull.as_mut());
                drop(queued);
                let pulled = match first {
                    std::task::Poll::Ready(pulled) => pulled,
                    std::task::Poll::Pending => pull.await,
                };
                pulled.map_or_else(Outcome::Failed, Outcome::Pulled)
            }
            // The container's own turn says what is wrong.
            Err(_) => Outcome::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pull_ahead_that_panics_tells_its_container_nothing() {
        let done = done(async { panic!("as scripted") });
        let both = tokio::join!(done.clone(), done);
        for done in [both.0, both.1] {
            assert!(matches!(done.outcome, Outcome::Unknown), "{done:?}");
        }
    }
}
