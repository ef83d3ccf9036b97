//! Decides whether an image has to be pulled, and pulls it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::backoff::PullBackoff;
use super::credentials::{ImagePullServiceAccount, Keyring, LoginOwner, PullLogin};
use super::error::{ImageError, pull_text};
use super::image_name::ImageName;
use super::pull_metrics::PullMetrics;
use super::puller::{PullConfig, PullRequest, Pulled, Puller};
use super::records::PullRecords;
use super::request::{ImageRequest, PullPolicy, ReadyImage};
use crate::base::clock::{self, Instant};
use crate::base::{GoDuration, SingleFlight};
use crate::cri::v1::{Image, ImageSpec};
use crate::cri::{CriError, ImageClient};
use crate::model::{PodExt, PodUid, reasons};
use crate::state::events::{EventRecorder, ObjectRef};

/// For how long a status shows the error of a failed pull (`ErrImagePull`) before `ImagePullBackOff`.
const ERR_IMAGE_PULL_DURATION: Duration = Duration::from_secs(2);

/// The dependencies of the image manager.
pub struct ImageManagerParts {
    /// The image service.
    pub images: ImageClient,
    /// Events.
    pub events: EventRecorder,
    /// How images are pulled.
    pub pulls: PullConfig,
    /// The node's credentials.
    pub keyring: Keyring,
    /// Records of pulled images, by which access to them is verified.
    pub records: PullRecords,
    /// Metrics of pulls.
    pub metrics: PullMetrics,
}

/// Looks up images and pulls them; cheap to clone.
#[derive(Clone)]
pub(super) struct ImageGetter {
    shared: Arc<GetterParts>,
}

struct GetterParts {
    images: ImageClient,
    recorder: EventRecorder,
    puller: Puller,
    keyring: Keyring,
    records: PullRecords,
    lookups: SingleFlight<String, Result<Option<Image>, CriError>>,
    backoff: Mutex<PullBackoff>,
    metrics: PullMetrics,
}

/// Whether an image has to be pulled.
pub(super) enum ImageDecision {
    /// The image is present and may be used.
    Use(ReadyImage),
    /// It has to be pulled.
    Pull(PullPlan),
}

/// A pull that has to be made.
pub(super) struct PullPlan {
    name: ImageName,
    spec: ImageSpec,
    present: bool,
}

/// Why an image can neither be used nor pulled; its event is not emitted yet.
pub(super) struct ImageProblem {
    event: &'static str,
    error: ImageError,
}

impl ImageProblem {
    fn new(event: &'static str, reason: &'static str, message: String) -> ImageProblem {
        let error = ImageError::new(reason, message);
        ImageProblem { event, error }
    }

    fn pull_policy_never(image: &str) -> ImageProblem {
        let message = format!("Container image {image:?} is not present with pull policy of Never");
        let event = reasons::event::ERR_IMAGE_NEVER_PULL;
        ImageProblem::new(event, reasons::ERR_IMAGE_NEVER_PULL, message)
    }
}

impl ImageGetter {
    pub(super) fn new(parts: ImageManagerParts) -> ImageGetter {
        let shared = GetterParts {
            puller: Puller::new(parts.images.clone(), &parts.pulls, parts.records.clone()),
            images: parts.images,
            recorder: parts.events,
            keyring: parts.keyring,
            records: parts.records,
            lookups: SingleFlight::default(),
            metrics: parts.metrics,
            backoff: Mutex::new(PullBackoff::new()),
        };
        ImageGetter { shared: Arc::new(shared) }
    }

    /// Pulls the image if its pull policy requires it, and emits the events.
    pub(super) async fn get(&self, request: &ImageRequest<'_>) -> Result<ReadyImage, ImageError> {
        let object = request.object;
        let decided = self.decide(request).await;
        let (present, pull_required) = match &decided {
            Ok(ImageDecision::Use(_)) => (Some(true), Some(false)),
            Ok(ImageDecision::Pull(plan)) => (Some(plan.present), Some(true)),
            Err(_) => (None, None),
        };
        let metrics = &self.shared.metrics;
        metrics.requested(request.policy.as_str(), present, pull_required);
        let plan = match decided {
            Ok(ImageDecision::Use(image)) => return Ok(self.report_present(request, image)),
            Ok(ImageDecision::Pull(plan)) => plan,
            Err(ImageProblem { event, error }) => {
                self.shared.recorder.warning(object, event, &*error.message);
                return Err(error);
            }
        };
        self.check_back_off(request)?;
        let credentials = self.credentials(request, &plan).await;
        self.pull(request, plan, credentials).await
    }

    /// Forgets the back-off and the pulling time of a pod that is gone.
    pub(super) fn forget_pod(&self, pod: &PodUid) {
        self.shared.backoff.lock().forget_pod(pod);
        self.shared.metrics.forget(pod);
    }

    /// The time that image pulls of a pod took; forgets it.
    pub(super) fn take_pulling_time(&self, pod: &PodUid) -> Duration {
        self.shared.metrics.take(pod)
    }

    /// Number of pulls with a back-off, including those whose delay has ended.
    pub(super) fn backing_off(&self) -> usize {
        self.shared.backoff.lock().len()
    }

    /// Emits the event for an image that is already present.
    pub(super) fn report_present(
        &self,
        request: &ImageRequest<'_>,
        image: ReadyImage,
    ) -> ReadyImage {
        let verified =
            if self.shared.records.is_enabled() { " and can be accessed by the pod" } else { "" };
        let image_name = request.image;
        let message =
            format!("Container image {image_name:?} already present on machine{verified}");
        let recorder = &self.shared.recorder;
        recorder.normal(request.object, reasons::event::PULLED, message);
        image
    }

    /// Looks up the image and decides whether to pull it. Emits no event.
    pub(super) async fn decide(
        &self,
        request: &ImageRequest<'_>,
    ) -> Result<ImageDecision, ImageProblem> {
        let ImageRequest { image, policy, .. } = *request;
        let (name, spec) = image_spec(request)?;
        let repo = name.repo.clone();
        let present = match self.look_up(&spec).await {
            Ok(present) => present,
            // With `Always` the registry decides; the lookup only chooses the queue.
            Err(_) if policy == PullPolicy::Always => None,
            Err(error) => {
                let message = format!("Failed to inspect image {image:?}: {}", pull_text(&error));
                let event = reasons::event::INSPECT_FAILED;
                return Err(ImageProblem::new(event, reasons::IMAGE_INSPECT_ERROR, message));
            }
        };
        let plan = |present| PullPlan { name, spec, present };
        match (policy, present) {
            (PullPolicy::IfNotPresent | PullPolicy::Never, Some(found))
                if !self.must_pull(request, &found, &repo).await =>
            {
                let image = ReadyImage::of(found.id.clone(), Some(&found));
                Ok(ImageDecision::Use(image))
            }
            // The same error for an image that is absent and for one that the pod may not use, so that pods cannot find out which
            // private images the node has.
            (PullPolicy::Never, _) => Err(ImageProblem::pull_policy_never(image)),
            (PullPolicy::Always | PullPolicy::IfNotPresent, present) => {
                Ok(ImageDecision::Pull(plan(present.is_some())))
            }
        }
    }

    /// Whether a present image has to be pulled again, because it was not pulled with credentials of this pod (upstream's
    /// `MustAttemptImagePull`).
    async fn must_pull(&self, request: &ImageRequest<'_>, image: &Image, repo: &str) -> bool {
        if request.secrets.allows_without_verification(image) {
            return false;
        }
        let secrets = || {
            let logins = request.secrets.iter().flat_map(|s| s.lookup(repo));
            let secret = |login: PullLogin| match login.owner {
                Some(LoginOwner::Secret(secret)) => Some(secret),
                _ => None,
            };
            logins.filter_map(secret).collect()
        };
        let records = &self.shared.records;
        records.must_pull(request.image, &image.id, secrets)
            && !self.may_use_by_account(request, image, repo).await
    }

    /// Whether the image was pulled for the service account of the pod, and a credential provider still has a login
    /// for it.
    async fn may_use_by_account(
        &self,
        request: &ImageRequest<'_>,
        image: &Image,
        repo: &str,
    ) -> bool {
        let (records, pod) = (&self.shared.records, request.pod);
        let spec = pod.spec();
        let name = spec.and_then(|spec| spec.service_account_name.as_deref());
        let accounts = records.accounts(request.image, &image.id);
        let is_of_pod = |account: &ImagePullServiceAccount| {
            account.namespace == pod.namespace() && Some(account.name.as_str()) == name
        };
        if !accounts.iter().any(is_of_pod) {
            return false;
        }
        let keyring = &self.shared.keyring;
        let logins = keyring.lookup(pod, repo, request.secrets).await;
        let mut of_account = logins.iter().filter_map(|login| match &login.owner {
            Some(LoginOwner::ServiceAccount(account)) => Some(account),
            _ => None,
        });
        of_account.any(|account| accounts.contains(account))
    }

    /// The image, if it is present. Concurrent lookups of one image share a single request.
    async fn look_up(&self, spec: &ImageSpec) -> Result<Option<Image>, CriError> {
        let begin = || {
            let (images, spec) = (self.shared.images.clone(), spec.clone());
            async move { images.image_status(spec).await }
        };
        self.shared.lookups.join(spec.image.clone(), begin).await
    }

    /// The logins to try for a pull, in order.
    pub(super) async fn credentials(
        &self,
        request: &ImageRequest<'_>,
        plan: &PullPlan,
    ) -> Vec<PullLogin> {
        let keyring = &self.shared.keyring;
        let repo = &plan.name.repo;
        keyring.lookup(request.pod, repo, request.secrets).await
    }

    /// Pulls the image and emits the events. The first poll of the future enqueues the pull.
    pub(super) async fn pull(
        &self,
        request: &ImageRequest<'_>,
        plan: PullPlan,
        credentials: Vec<PullLogin>,
    ) -> Result<ReadyImage, ImageError> {
        let ImageRequest { object, image, .. } = *request;
        let pod = request.pod.uid();
        self.report_unusable_secrets(request);
        let (recorder, begin) = (&self.shared.recorder, clock::instant());
        recorder.normal(object, reasons::event::PULLING, format!("Pulling image {image:?}"));
        let pull_request = PullRequest {
            image,
            spec: plan.spec,
            present: plan.present,
            credentials,
            namespace: request.pod.namespace(),
            sandbox_config: request.sandbox_config,
        };
        match self.shared.puller.pull(pull_request).await {
            Ok(pulled) => {
                self.shared.backoff.lock().succeeded(&pod, image);
                let message = pulled_text(image, &pulled, begin);
                recorder.normal(object, reasons::event::PULLED, message);
                let size = pulled.image.as_ref().map_or(0, |image| image.size);
                let metrics = &self.shared.metrics;
                metrics.pulled(&pod, size, pulled.took, begin);
                Ok(ReadyImage::of(pulled.image_ref, pulled.image.as_ref()))
            }
            Err(text) => {
                let message = format!("Failed to pull image {image:?}: {text}");
                recorder.warning(object, reasons::event::FAILED, message);
                let error = ImageError::of_pull(image, &text);
                let last = format!("{}: {}", error.reason, error.message);
                let now = clock::instant();
                let mut backoff = self.shared.backoff.lock();
                let retry_at = backoff.failed(&pod, image, last, now);
                Err(error.until(retry_at.min(now + ERR_IMAGE_PULL_DURATION)))
            }
        }
    }

    /// Reports the pull secrets of the pod that cannot be used. The pull goes on without them.
    fn report_unusable_secrets(&self, request: &ImageRequest<'_>) {
        let (pod, unusable) = (request.pod, request.secrets.unusable());
        if unusable.is_empty() {
            return;
        }
        for (secret, error) in unusable {
            tracing::info!(
                pod = %pod.log_name(), secret, err = error,
                "Unable to retrieve pull secret, the image pull may not succeed."
            );
        }
        let names: Vec<&str> = unusable.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        let text = format!(
            "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
        );
        let reason = reasons::event::FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET;
        let recorder = &self.shared.recorder;
        recorder.warning(&ObjectRef::pod(pod), reason, text);
    }

    /// Whether pulls of this image are in their back-off.
    pub(super) fn is_in_back_off(&self, pod: &PodUid, image: &str) -> bool {
        let backoff = self.shared.backoff.lock();
        backoff.in_back_off(pod, image, clock::instant()).is_some()
    }

    /// Returns an error while pulls of this image are in their back-off.
    fn check_back_off(&self, request: &ImageRequest<'_>) -> Result<(), ImageError> {
        let ImageRequest { object, image, .. } = *request;
        let text = format!("Back-off pulling image {image:?}");
        let error = {
            let backoff = self.shared.backoff.lock();
            match backoff.in_back_off(&request.pod.uid(), image, clock::instant()) {
                Some((retry_at, last)) => {
                    let message = format!("{text}: {last}");
                    ImageError::new(reasons::IMAGE_PULL_BACK_OFF, message).until(retry_at)
                }
                None => return Ok(()),
            }
        };
        let recorder = &self.shared.recorder;
        recorder.normal(object, reasons::event::BACK_OFF, text);
        Err(error)
    }
}

/// The image reference, parsed, and as `ImageSpec` of CRI requests.
fn image_spec(request: &ImageRequest<'_>) -> Result<(ImageName, ImageSpec), ImageProblem> {
    let ImageRequest { image, pod, .. } = *request;
    let invalid = |error| {
        let message = format!("Failed to apply default image tag {image:?}: {error}");
        let event = reasons::event::INSPECT_FAILED;
        ImageProblem::new(event, reasons::INVALID_IMAGE_NAME, message)
    };
    let name = ImageName::parse(image).map_err(invalid)?;
    let annotations = pod.metadata.annotations.iter().flatten();
    let spec = ImageSpec {
        image: name.complete(image),
        annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
        ..ImageSpec::default()
    };
    Ok((name, spec))
}

fn pulled_text(image: &str, pulled: &Pulled, begin: Instant) -> String {
    let size = pulled.image.as_ref().map_or(0, |image| image.size);
    let truncated = |time| GoDuration::from(time).truncated_to_millis();
    let (took, waited) = (truncated(pulled.took), truncated(clock::since(begin)));
    format!(
        "Successfully pulled image {image:?} in {took} ({waited} including waiting). Image size: {size} bytes."
    )
}
