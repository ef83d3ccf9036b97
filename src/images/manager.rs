//! Makes sure that a container's image is there.

use parking_lot::Mutex;
use tokio::time::Instant;

use super::backoff::PullBackoff;
use super::error::{ImageError, pull_text};
use super::flight::Flights;
use super::image_name::ImageName;
use super::puller::{PullConfig, Pulled, Puller};
use crate::base::GoDuration;
use crate::cri::v1::{AuthConfig, Image, ImageSpec, PodSandboxConfig};
use crate::cri::{CriError, ImageClient};
use crate::events::{EventRecorder, ObjectRef};
use crate::model::{Pod, PodExt, PodUid, reasons};

/// `imagePullPolicy` of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Ask the registry every time.
    Always,
    /// Pull what is absent.
    IfNotPresent,
    /// Use what is there or fail.
    Never,
}

impl PullPolicy {
    /// Reads the API's spelling. Defaulting has filled an empty policy in before; anything else that
    /// is unknown pulls what is absent.
    pub fn of(policy: Option<&str>) -> PullPolicy {
        match policy {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        }
    }
}

/// An image that something of a pod needs.
#[derive(Clone, Copy)]
pub struct ImageRequest<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What events are about: the container, as a rule.
    pub object: &'a ObjectRef,
    /// The reference as the user wrote it.
    pub image: &'a str,
    /// Whether to pull.
    pub policy: PullPolicy,
    /// Registry credentials to try in order; none for an anonymous pull.
    pub credentials: &'a [AuthConfig],
    /// The pod's sandbox configuration, where there is one.
    pub sandbox_config: Option<&'a PodSandboxConfig>,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyImage {
    /// What to create containers with.
    pub reference: String,
    /// The numeric user that the image wants to run as.
    pub uid: Option<i64>,
    /// The user that it wants to run as by name; empty when it has none.
    pub username: String,
}

impl ReadyImage {
    fn of(reference: String, image: Option<&Image>) -> Self {
        let uid = image
            .and_then(|image| image.uid.as_ref())
            .map(|uid| uid.value);
        let username = image
            .map(|image| image.username.clone())
            .unwrap_or_default();
        Self {
            reference,
            uid,
            username,
        }
    }
}

/// Gets images for pods.
pub struct ImageManager {
    images: ImageClient,
    recorder: EventRecorder,
    puller: Puller,
    looks: Flights<String, Result<Option<Image>, CriError>>,
    backoff: Mutex<PullBackoff>,
}

impl ImageManager {
    /// A manager without history.
    pub fn new(images: ImageClient, recorder: EventRecorder, config: &PullConfig) -> ImageManager {
        ImageManager {
            puller: Puller::new(images.clone(), config),
            images,
            recorder,
            looks: Flights::new(),
            backoff: Mutex::new(PullBackoff::new()),
        }
    }

    /// Returns the reference to create the container with, pulling the image if policy and presence
    /// ask for it, and records the events that users expect. Dropping the future gives a pull up
    /// that no one else waits for.
    pub async fn ensure_image_exists(
        &self,
        request: &ImageRequest<'_>,
    ) -> Result<ReadyImage, ImageError> {
        let ImageRequest {
            object,
            image,
            policy,
            ..
        } = *request;
        let spec = self.spec(request)?;
        let present = match self.look(&spec).await {
            Ok(present) => present,
            // With this policy the registry decides; the look only chose the lane.
            Err(_) if policy == PullPolicy::Always => None,
            Err(error) => {
                let message = format!("Failed to inspect image {image:?}: {}", pull_text(&error));
                self.recorder
                    .warning(object, reasons::event::INSPECT_FAILED, &*message);
                return Err(ImageError::new(reasons::IMAGE_INSPECT_ERROR, message));
            }
        };
        match (policy, present) {
            (PullPolicy::IfNotPresent | PullPolicy::Never, Some(found)) => {
                let message = format!("Container image {image:?} already present on machine");
                self.recorder
                    .normal(object, reasons::event::PULLED, message);
                Ok(ReadyImage::of(found.id.clone(), Some(&found)))
            }
            (PullPolicy::Never, None) => {
                let message =
                    format!("Container image {image:?} is not present with pull policy of Never");
                self.recorder
                    .warning(object, reasons::event::ERR_IMAGE_NEVER_PULL, &*message);
                Err(ImageError::new(reasons::ERR_IMAGE_NEVER_PULL, message))
            }
            (PullPolicy::Always | PullPolicy::IfNotPresent, present) => {
                self.pull(request, &spec, present.is_some()).await
            }
        }
    }

    /// Forgets the back-off of a pod that is gone.
    pub fn forget_pod(&self, pod: &PodUid) {
        self.backoff.lock().forget_pod(pod);
    }

    fn spec(&self, request: &ImageRequest<'_>) -> Result<ImageSpec, ImageError> {
        let ImageRequest {
            object, image, pod, ..
        } = *request;
        match ImageName::with_default_tag(image) {
            Ok(image) => Ok(ImageSpec {
                image,
                annotations: pod
                    .metadata
                    .annotations
                    .iter()
                    .flatten()
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
                ..ImageSpec::default()
            }),
            Err(error) => {
                let message = format!("Failed to apply default image tag {image:?}: {error}");
                self.recorder
                    .warning(object, reasons::event::INSPECT_FAILED, &*message);
                Err(ImageError::new(reasons::INVALID_IMAGE_NAME, message))
            }
        }
    }

    /// Whether the image is here. Pods that ask for the same image at the same time ask once.
    async fn look(&self, spec: &ImageSpec) -> Result<Option<Image>, CriError> {
        let begin = || {
            let (images, spec) = (self.images.clone(), spec.clone());
            async move { images.image_status(spec).await }
        };
        self.looks.run(spec.image.clone(), begin).await
    }

    async fn pull(
        &self,
        request: &ImageRequest<'_>,
        spec: &ImageSpec,
        present: bool,
    ) -> Result<ReadyImage, ImageError> {
        let ImageRequest { object, image, .. } = *request;
        let pod = request.pod.uid();
        self.held_back(request, &pod)?;
        self.recorder.normal(
            object,
            reasons::event::PULLING,
            format!("Pulling image {image:?}"),
        );
        let begin = Instant::now();
        let pulled = self
            .puller
            .pull(spec, present, request.credentials, request.sandbox_config)
            .await;
        match pulled {
            Ok(Pulled {
                image_ref,
                took,
                image: found,
            }) => {
                self.backoff.lock().worked(&pod, image);
                let size = found.as_ref().map_or(0, |image| image.size);
                let shown = |time| GoDuration::from(time).truncated_to_millis();
                let (took, waited) = (shown(took), shown(begin.elapsed()));
                let message = format!(
                    "Successfully pulled image {image:?} in {took} ({waited} including waiting). Image size: {size} bytes."
                );
                self.recorder
                    .normal(object, reasons::event::PULLED, message);
                Ok(ReadyImage::of(image_ref, found.as_ref()))
            }
            Err(text) => {
                let message = format!("Failed to pull image {image:?}: {text}");
                self.recorder
                    .warning(object, reasons::event::FAILED, message);
                let error = ImageError::of_pull(image, &text);
                let told = format!("{}: {}", error.reason, error.message);
                let again = self
                    .backoff
                    .lock()
                    .failed(&pod, image, told, Instant::now());
                Err(error.until(again))
            }
        }
    }

    /// Refuses a pull that failed a short while ago.
    fn held_back(&self, request: &ImageRequest<'_>, pod: &PodUid) -> Result<(), ImageError> {
        let ImageRequest { object, image, .. } = *request;
        let text = format!("Back-off pulling image {image:?}");
        let error = match self.backoff.lock().held(pod, image, Instant::now()) {
            Some((again, last)) => {
                ImageError::new(reasons::IMAGE_PULL_BACK_OFF, format!("{text}: {last}"))
                    .until(again)
            }
            None => return Ok(()),
        };
        self.recorder.normal(object, reasons::event::BACK_OFF, text);
        Err(error)
    }
}
