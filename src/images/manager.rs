//! Makes sure that a container's image is there.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::backoff::PullBackoff;
use super::credentials::Keyring;
use super::error::{ImageError, pull_text};
use super::image_name::ImageName;
use super::prefetch::{Outcome, Prefetcher};
use super::pull_metrics::PullMetrics;
use super::puller::{PullConfig, PullOrder, Pulled, Puller};
use super::records::PullRecords;
use super::request::{ImageRequest, PullPolicy, ReadyImage};
use crate::base::{GoDuration, SingleFlight};
use crate::cri::v1::{AuthConfig, Image, ImageSpec};
use crate::cri::{CriError, ImageClient};
use crate::model::{PodExt, PodUid, reasons};
use crate::state::events::EventRecorder;

/// For how long a failed pull is shown as such. Asking again after that says that the next one waits,
/// and until when.
const FAILURE_SHOWN: Duration = Duration::from_secs(2);

/// What a manager is built from.
pub struct ImageManagerParts {
    /// The image service.
    pub images: ImageClient,
    /// Events.
    pub events: EventRecorder,
    /// How images are pulled.
    pub pulls: PullConfig,
    /// The node's credentials.
    pub keyring: Keyring,
    /// What was pulled.
    pub records: PullRecords,
    /// How long that took.
    pub metrics: PullMetrics,
}

/// Gets images for pods; cheap to clone.
#[derive(Clone)]
pub struct ImageManager {
    inner: Arc<Inner>,
}

struct Inner {
    images: ImageClient,
    recorder: EventRecorder,
    puller: Puller,
    keyring: Keyring,
    records: PullRecords,
    looks: SingleFlight<String, Result<Option<Image>, CriError>>,
    backoff: Mutex<PullBackoff>,
    metrics: PullMetrics,
    prefetcher: Prefetcher,
}

/// What policy and presence ask for.
pub(super) enum Verdict {
    /// The image is here and may be used.
    Use(ReadyImage),
    /// It has to be pulled.
    Pull(PullPlan),
}

/// A pull that is due.
pub(super) struct PullPlan {
    name: ImageName,
    spec: ImageSpec,
    present: bool,
}

/// Why an image can neither be used nor pulled, not told to anybody yet.
pub(super) struct Problem {
    event: &'static str,
    error: ImageError,
}

impl Problem {
    fn new(event: &'static str, reason: &'static str, message: String) -> Problem {
        let error = ImageError::new(reason, message);
        Problem { event, error }
    }

    fn never_pulled(image: &str) -> Problem {
        let message = format!("Container image {image:?} is not present with pull policy of Never");
        let event = reasons::event::ERR_IMAGE_NEVER_PULL;
        Problem::new(event, reasons::ERR_IMAGE_NEVER_PULL, message)
    }
}

impl ImageManager {
    /// A manager without history.
    pub fn new(parts: ImageManagerParts) -> ImageManager {
        let inner = Inner {
            puller: Puller::new(parts.images.clone(), &parts.pulls, parts.records.clone()),
            images: parts.images,
            recorder: parts.events,
            keyring: parts.keyring,
            records: parts.records,
            looks: SingleFlight::default(),
            metrics: parts.metrics,
            backoff: Mutex::new(PullBackoff::new()),
            prefetcher: Prefetcher::default(),
        };
        ImageManager {
            inner: Arc::new(inner),
        }
    }

    /// Returns the reference to create the container with, pulling the image if policy and presence
    /// ask for it, and records the events that users expect. Dropping the future gives a pull up
    /// that no one else waits for.
    pub async fn ensure_image_exists(
        &self,
        request: &ImageRequest<'_>,
    ) -> Result<ReadyImage, ImageError> {
        match self.inner.prefetcher.take(request).await {
            Some(Outcome::Present(image)) => return Ok(self.tell_present(request, image)),
            Some(Outcome::Pulled(image)) => return Ok(image),
            Some(Outcome::Failed(error)) => return Err(error),
            Some(Outcome::Unknown) | None => {}
        }
        let object = request.object;
        let plan = match self.judge(request).await {
            Ok(Verdict::Use(image)) => return Ok(self.tell_present(request, image)),
            Ok(Verdict::Pull(plan)) => plan,
            Err(Problem { event, error }) => {
                self.inner.recorder.warning(object, event, &*error.message);
                return Err(error);
            }
        };
        self.hold_back(request)?;
        let credentials = self.credentials(&plan).await;
        self.pull(request, plan, credentials).await
    }

    /// Forgets the back-off of a pod that is gone, and gives up what is pulled ahead for it.
    pub fn forget_pod(&self, pod: &PodUid) {
        self.inner.backoff.lock().forget_pod(pod);
        self.inner.prefetcher.forget(pod);
        self.inner.metrics.forget(pod);
    }

    /// For how long images were pulled for a pod. It is not remembered any more after that.
    pub fn take_pulling_time(&self, pod: &PodUid) -> Duration {
        self.inner.metrics.take(pod)
    }

    /// How many pulls back off, and for how many pods images are pulled ahead.
    pub fn kept(&self) -> (usize, usize) {
        (self.inner.backoff.lock().len(), self.inner.prefetcher.len())
    }

    pub(super) fn prefetcher(&self) -> &Prefetcher {
        &self.inner.prefetcher
    }

    fn tell_present(&self, request: &ImageRequest<'_>, image: ReadyImage) -> ReadyImage {
        let verified = match self.inner.records.are_kept() {
            true => " and can be accessed by the pod",
            false => "",
        };
        let image_name = request.image;
        let message =
            format!("Container image {image_name:?} already present on machine{verified}");
        let recorder = &self.inner.recorder;
        recorder.normal(request.object, reasons::event::PULLED, message);
        image
    }

    /// Looks for the image and decides. Tells nobody.
    pub(super) async fn judge(&self, request: &ImageRequest<'_>) -> Result<Verdict, Problem> {
        let ImageRequest { image, policy, .. } = *request;
        let (name, spec) = image_spec(request)?;
        let present = match self.look(&spec).await {
            Ok(present) => present,
            // With this policy the registry decides; the look only chose the lane.
            Err(_) if policy == PullPolicy::Always => None,
            Err(error) => {
                let message = format!("Failed to inspect image {image:?}: {}", pull_text(&error));
                let event = reasons::event::INSPECT_FAILED;
                return Err(Problem::new(event, reasons::IMAGE_INSPECT_ERROR, message));
            }
        };
        let plan = |present| PullPlan {
            name,
            spec,
            present,
        };
        match (policy, present) {
            (PullPolicy::IfNotPresent | PullPolicy::Never, Some(found))
                if !self.inner.records.must_pull(image, &found.id) =>
            {
                let image = ReadyImage::of(found.id.clone(), Some(&found));
                Ok(Verdict::Use(image))
            }
            // One that is here and may not be used is not to be told from one that is absent.
            (PullPolicy::Never, _) => Err(Problem::never_pulled(image)),
            (PullPolicy::Always | PullPolicy::IfNotPresent, present) => {
                Ok(Verdict::Pull(plan(present.is_some())))
            }
        }
    }

    /// Whether the image is here. Pods that ask for the same image at the same time ask once.
    async fn look(&self, spec: &ImageSpec) -> Result<Option<Image>, CriError> {
        let begin = || {
            let (images, spec) = (self.inner.images.clone(), spec.clone());
            async move { images.image_status(spec).await }
        };
        self.inner.looks.join(spec.image.clone(), begin).await
    }

    /// The logins to try for a pull.
    pub(super) async fn credentials(&self, plan: &PullPlan) -> Vec<AuthConfig> {
        self.inner.keyring.lookup(&plan.name.repo).await
    }

    /// Pulls, and tells how that went. When the future is polled for the first time, the pull takes
    /// its place in the queue.
    pub(super) async fn pull(
        &self,
        request: &ImageRequest<'_>,
        plan: PullPlan,
        credentials: Vec<AuthConfig>,
    ) -> Result<ReadyImage, ImageError> {
        let ImageRequest { object, image, .. } = *request;
        let pod = request.pod.uid();
        let (recorder, begin) = (&self.inner.recorder, Instant::now());
        recorder.normal(
            object,
            reasons::event::PULLING,
            format!("Pulling image {image:?}"),
        );
        let order = PullOrder {
            image,
            spec: plan.spec,
            present: plan.present,
            credentials,
            sandbox_config: request.sandbox_config,
        };
        match self.inner.puller.pull(order).await {
            Ok(pulled) => {
                self.inner.backoff.lock().worked(&pod, image);
                let message = pulled_text(image, &pulled, begin);
                recorder.normal(object, reasons::event::PULLED, message);
                let size = pulled.image.as_ref().map_or(0, |image| image.size);
                let metrics = &self.inner.metrics;
                metrics.pulled(&pod, size, pulled.took, begin);
                Ok(ReadyImage::of(pulled.image_ref, pulled.image.as_ref()))
            }
            Err(text) => {
                let message = format!("Failed to pull image {image:?}: {text}");
                recorder.warning(object, reasons::event::FAILED, message);
                let error = ImageError::of_pull(image, &text);
                let told = format!("{}: {}", error.reason, error.message);
                let now = Instant::now();
                let mut backoff = self.inner.backoff.lock();
                let again = backoff.failed(&pod, image, told, now);
                Err(error.until(again.min(now + FAILURE_SHOWN)))
            }
        }
    }

    /// Whether a pull failed a short while ago, so that the next has to wait.
    pub(super) fn is_held_back(&self, pod: &PodUid, image: &str) -> bool {
        let backoff = self.inner.backoff.lock();
        backoff.held(pod, image, Instant::now()).is_some()
    }

    /// Refuses a pull that failed a short while ago.
    fn hold_back(&self, request: &ImageRequest<'_>) -> Result<(), ImageError> {
        let ImageRequest { object, image, .. } = *request;
        let text = format!("Back-off pulling image {image:?}");
        let error = {
            let backoff = self.inner.backoff.lock();
            match backoff.held(&request.pod.uid(), image, Instant::now()) {
                Some((again, last)) => {
                    let message = format!("{text}: {last}");
                    ImageError::new(reasons::IMAGE_PULL_BACK_OFF, message).until(again)
                }
                None => return Ok(()),
            }
        };
        let recorder = &self.inner.recorder;
        recorder.normal(object, reasons::event::BACK_OFF, text);
        Err(error)
    }
}

/// What to ask the runtime for.
fn image_spec(request: &ImageRequest<'_>) -> Result<(ImageName, ImageSpec), Problem> {
    let ImageRequest { image, pod, .. } = *request;
    let invalid = |error| {
        let message = format!("Failed to apply default image tag {image:?}: {error}");
        let event = reasons::event::INSPECT_FAILED;
        Problem::new(event, reasons::INVALID_IMAGE_NAME, message)
    };
    let name = ImageName::parse(image).map_err(invalid)?;
    let annotations = pod.metadata.annotations.iter().flatten();
    let spec = ImageSpec {
        image: name.complete(image),
        annotations: annotations
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        ..ImageSpec::default()
    };
    Ok((name, spec))
}

fn pulled_text(image: &str, pulled: &Pulled, begin: Instant) -> String {
    let size = pulled.image.as_ref().map_or(0, |image| image.size);
    let shown = |time| GoDuration::from(time).truncated_to_millis();
    let (took, waited) = (shown(pulled.took), shown(begin.elapsed()));
    format!(
        "Successfully pulled image {image:?} in {took} ({waited} including waiting). Image size: {size} bytes."
    )
}
