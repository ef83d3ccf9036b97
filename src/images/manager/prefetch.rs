//! Pulls images before the containers that need them start.
//!
//! Containers start one after the other, and their images need not wait for that. When a sync starts containers, the
//! images of all that follow are looked up and pulled in the background, in the order of the containers and through
//! the same queue as other pulls. The start of a container then takes the outcome from here.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::ImageManager;
use crate::base::clock::{self, Instant};
use crate::base::otel::in_current_context;
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::spawn;
use crate::cri::v1::PodSandboxConfig;
use crate::images::credentials::PullSecrets;
use crate::images::error::ImageError;
use crate::images::getter::{ImageDecision, ImageGetter};
use crate::images::request::{ImageRequest, PullPolicy, ReadyImage};
use crate::model::{Pod, PodExt};
use crate::state::events::ObjectRef;

/// How long the outcome of a prefetch is used. Later the image may have been removed, and `Always` requires a
/// registry check close to the container's start.
const TTL: Duration = Duration::from_secs(60);

/// An image that a container of a pod will need.
#[derive(Debug, Clone)]
pub struct ImageToPrefetch {
    /// The container, for events.
    pub object: ObjectRef,
    /// The reference as the user wrote it.
    pub image: String,
    /// Whether to pull.
    pub policy: PullPolicy,
    /// The pod's image pull secrets.
    pub secrets: PullSecrets,
}

/// The result of a prefetch.
#[derive(Debug, Clone)]
pub(super) enum PrefetchOutcome {
    /// The image is present and may be used; its event is not emitted yet.
    Present(ReadyImage),
    /// The image was pulled, and its events are emitted.
    Pulled(ReadyImage),
    /// The pull failed, and its events are emitted.
    Failed(ImageError),
    /// No outcome; the container's start has to pull the image itself.
    Unknown,
}

/// An outcome, and when it was reached.
#[derive(Debug, Clone)]
struct PrefetchResult {
    at: Instant,
    outcome: PrefetchOutcome,
}

impl PrefetchResult {
    /// Whether the outcome is still valid at `now`.
    fn is_valid(&self, now: Instant) -> bool {
        match &self.outcome {
            PrefetchOutcome::Present(_) | PrefetchOutcome::Pulled(_) => {
                now.saturating_duration_since(self.at) < TTL
            }
            PrefetchOutcome::Failed(error) => error.retry_at.is_some_and(|retry_at| now < retry_at),
            PrefetchOutcome::Unknown => false,
        }
    }
}

/// One prefetch. Dropping it cancels the pull, unless a container waits for it.
pub(super) struct Prefetch {
    image: ImageToPrefetch,
    result: Shared<BoxFuture<'static, PrefetchResult>>,
    task: AbortHandle,
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prefetch {
    fn is_for(&self, object: &ObjectRef, image: &str, policy: PullPolicy) -> bool {
        let prefetched = &self.image;
        prefetched.policy == policy && prefetched.image == image && prefetched.object == *object
    }

    /// Whether the prefetch need not be started again: it is in progress, in its back-off, or found the image. A
    /// found image may be outdated when the container starts, but a lookup now would not change that.
    fn is_current(&self, now: Instant) -> bool {
        let is_present = |result: &PrefetchResult| {
            matches!(result.outcome, PrefetchOutcome::Present(_) | PrefetchOutcome::Pulled(_))
        };
        let result = self.result.peek();
        result.is_none_or(|result| is_present(result) || result.is_valid(now))
    }
}

impl ImageManager {
    /// Starts to pull the images of containers that will be started, in this order. Prefetches of an earlier sync continue
    /// if they are listed again, and are cancelled otherwise.
    pub fn prefetch(
        &self,
        pod: &Arc<Pod>,
        images: Vec<ImageToPrefetch>,
        sandbox: &PodSandboxConfig,
    ) {
        let now = clock::instant();
        let mut pods = self.prefetches.lock();
        let mut prefetches = pods.remove(&pod.uid()).unwrap_or_default();
        prefetches.retain(|prefetch| {
            let is_listed = |image: &ImageToPrefetch| {
                prefetch.is_for(&image.object, &image.image, image.policy)
            };
            prefetch.is_current(now) && images.iter().any(is_listed)
        });
        let mut previous_queued = None;
        for image in images {
            let same = |prefetch: &Prefetch| {
                prefetch.image.image == image.image && prefetch.image.policy == image.policy
            };
            // A second container with the same image finds it present when it starts.
            let is_redundant = image.policy == PullPolicy::Never || prefetches.iter().any(same);
            if is_redundant || self.getter.is_in_back_off(&pod.uid(), &image.image) {
                continue;
            }
            let (queued, next) = oneshot::channel();
            let work = PrefetchWork {
                getter: self.getter.clone(),
                pod: pod.clone(),
                image: image.clone(),
                sandbox: sandbox.clone(),
            };
            let result = shared_result(work.run(previous_queued.replace(next), queued));
            let task = spawn(PanicScope::ImagePrefetch, result.clone().map(drop)).abort_handle();
            prefetches.push(Prefetch { image, result, task });
        }
        if !prefetches.is_empty() {
            pods.insert(pod.uid(), prefetches);
        }
    }

    /// Waits for the outcome of the container's prefetch and removes it. `None` if there is no prefetch, or its
    /// outcome has expired.
    pub(super) async fn take_prefetched(
        &self,
        request: &ImageRequest<'_>,
    ) -> Option<PrefetchOutcome> {
        let pod = request.pod.uid();
        let is_requested =
            |prefetch: &Prefetch| prefetch.is_for(request.object, request.image, request.policy);
        let result = {
            let pods = self.prefetches.lock();
            let mut prefetches = pods.get(&pod)?.iter();
            prefetches.find(|prefetch| is_requested(prefetch))?.result.clone()
        };
        let result = result.await;
        let mut pods = self.prefetches.lock();
        if let Some(prefetches) = pods.get_mut(&pod) {
            prefetches.retain(|prefetch| !is_requested(prefetch));
            if prefetches.is_empty() {
                pods.remove(&pod);
            }
        }
        result.is_valid(clock::instant()).then_some(result.outcome)
    }
}

/// A future of an outcome for several waiters. A panic of the work yields `Unknown`.
fn shared_result(
    work: impl Future<Output = PrefetchOutcome> + Send + 'static,
) -> Shared<BoxFuture<'static, PrefetchResult>> {
    let result = async {
        let outcome = catch_panic(PanicScope::ImagePrefetch, work).await;
        PrefetchResult {
            at: clock::instant(),
            outcome: outcome.unwrap_or(PrefetchOutcome::Unknown),
        }
    };
    in_current_context(result).boxed().shared()
}

/// The prefetch of one container's image.
struct PrefetchWork {
    getter: ImageGetter,
    pod: Arc<Pod>,
    image: ImageToPrefetch,
    sandbox: PodSandboxConfig,
}

impl PrefetchWork {
    /// Runs the prefetch. It starts once the previous container's pull is queued, so that pulls are queued in the
    /// containers' order, and signals when its own is.
    async fn run(
        self,
        previous_queued: Option<oneshot::Receiver<()>>,
        queued: oneshot::Sender<()>,
    ) -> PrefetchOutcome {
        if let Some(previous_queued) = previous_queued {
            // An error means that the previous prefetch ended without a pull or was cancelled.
            let _ = previous_queued.await;
        }
        self.outcome(queued).await
    }

    async fn outcome(&self, queued: oneshot::Sender<()>) -> PrefetchOutcome {
        let request = ImageRequest {
            pod: &self.pod,
            object: &self.image.object,
            image: &self.image.image,
            policy: self.image.policy,
            secrets: &self.image.secrets,
            sandbox_config: Some(&self.sandbox),
        };
        match self.getter.decide(&request).await {
            Ok(ImageDecision::Use(image)) => PrefetchOutcome::Present(image),
            Ok(ImageDecision::Pull(plan)) => {
                let credentials = self.getter.credentials(&request, &plan).await;
                let pull = self.getter.pull(&request, plan, credentials);
                tokio::pin!(pull);
                // The first poll enqueues the pull.
                let first = futures::poll!(pull.as_mut());
                drop(queued);
                let pulled = match first {
                    std::task::Poll::Ready(pulled) => pulled,
                    std::task::Poll::Pending => pull.await,
                };
                pulled.map_or_else(PrefetchOutcome::Failed, PrefetchOutcome::Pulled)
            }
            // The start of the container reports the error.
            Err(_) => PrefetchOutcome::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_prefetch_that_panics_has_no_outcome() {
        let result = shared_result(async { panic!("as scripted") });
        let both = tokio::join!(result.clone(), result);
        for result in [both.0, both.1] {
            assert!(matches!(result.outcome, PrefetchOutcome::Unknown), "{result:?}");
        }
    }
}
