//! The queue of pulls: limits their concurrency and rate, and pulls each image only once at a time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::credentials::{LoginOwner, PullLogin};
use super::error::pull_text;
use super::records::PullRecords;
use crate::base::panics::PanicScope;
use crate::base::{SingleFlight, TokenBucket, clock, spawn};
use crate::cri::v1::{AuthConfig, Image, ImageSpec, PodSandboxConfig};
use crate::cri::{CriError, ImageClient};

/// How images are pulled. Pulls of absent images and of present images wait in two separate queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullConfig {
    /// `serializeImagePulls`: one pull at a time in each queue.
    pub serialize: bool,
    /// `maxParallelImagePulls`, for each queue, when pulls are not serialized. Without it eight run at once in each,
    /// because an unlimited number may overload the runtime.
    pub max_parallel: Option<u32>,
    /// `registryPullQPS`; `None` for no limit. A pull over the limit waits, and fails only if it would wait longer than
    /// `MAX_QPS_WAIT` (upstream fails it at once).
    pub qps: Option<u32>,
    /// `registryBurst`.
    pub burst: u32,
}

const DEFAULT_MAX_PARALLEL: u32 = 8;

/// Longest wait for `registryPullQPS`.
const MAX_QPS_WAIT: Duration = Duration::from_secs(60);

/// An image that was pulled.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pulled {
    /// The image reference for CreateContainer.
    pub(super) image_ref: String,
    /// Duration of the pull without the time in the queue.
    pub(super) took: Duration,
    /// The image's status, if the runtime returned one.
    pub(super) image: Option<Image>,
}

/// The key for sharing pulls: pulls of the same image with different credentials are not shared, nor are those of pods in
/// different namespaces or for different runtime handlers, for which the runtime may have different policies.
type PullKey = (String, String, String, Vec<PullLogin>);

pub(super) struct PullRequest<'a> {
    /// The image as the user wrote it.
    pub(super) image: &'a str,
    /// The image to request from the runtime.
    pub(super) spec: ImageSpec,
    /// The image is already present.
    pub(super) present: bool,
    /// Logins to try in order; empty for an anonymous pull.
    pub(super) credentials: Vec<PullLogin>,
    /// The pod's namespace.
    pub(super) namespace: &'a str,
    /// The pod's sandbox configuration, where there is one.
    pub(super) sandbox_config: Option<&'a PodSandboxConfig>,
}

pub(super) struct Puller {
    images: ImageClient,
    flights: SingleFlight<PullKey, Result<Pulled, String>>,
    queues: PullQueues,
    rate: Arc<Mutex<TokenBucket>>,
    records: PullRecords,
}

/// Separate queues for absent and present images: a pull of a present image usually only checks its manifest, and
/// should not wait for downloads.
struct PullQueues {
    /// Pulls of images that are absent.
    download: Arc<Semaphore>,
    /// Pulls of images that are present.
    refresh: Arc<Semaphore>,
}

impl Puller {
    pub(super) fn new(images: ImageClient, config: &PullConfig, records: PullRecords) -> Puller {
        let max_concurrent = if config.serialize {
            1
        } else {
            config.max_parallel.unwrap_or(DEFAULT_MAX_PARALLEL).max(1)
        };
        let queue = || Arc::new(Semaphore::new(max_concurrent as usize));
        let rate = TokenBucket::new(config.qps.map_or(0.0, f64::from), config.burst);
        Puller {
            images,
            flights: SingleFlight::default(),
            queues: PullQueues { download: queue(), refresh: queue() },
            rate: Arc::new(Mutex::new(rate)),
            records,
        }
    }

    /// Pulls an image with the first login that works. The error is the text for events. Dropping the future cancels
    /// the pull, unless another caller waits for it.
    pub(super) async fn pull(&self, request: PullRequest<'_>) -> Result<Pulled, String> {
        let key = (
            request.image.to_owned(),
            request.namespace.to_owned(),
            request.spec.runtime_handler.clone(),
            request.credentials.clone(),
        );
        let begin = || {
            let queue = if request.present {
                self.queues.refresh.clone()
            } else {
                self.queues.download.clone()
            };
            let pull = Pull {
                images: self.images.clone(),
                records: self.records.clone(),
                image: request.image.to_owned(),
                spec: request.spec,
                credentials: request.credentials,
                sandbox_config: request.sandbox_config.cloned(),
            };
            let rate = self.rate.clone();
            async move {
                // The semaphore is never closed.
                let _permit = queue.acquire_owned().await.ok();
                let wait = rate.lock().take(clock::instant(), MAX_QPS_WAIT);
                sleep(wait.ok_or("pull QPS exceeded")?).await;
                pull.run().await
            }
        };
        self.flights.join(key, begin).await
    }
}

struct Pull {
    images: ImageClient,
    records: PullRecords,
    image: String,
    spec: ImageSpec,
    credentials: Vec<PullLogin>,
    sandbox_config: Option<PodSandboxConfig>,
}

struct PullFailure {
    text: String,
    /// The runtime may have pulled the image, or may go on.
    outcome_is_unknown: bool,
}

impl Pull {
    async fn run(mut self) -> Result<Pulled, String> {
        let intent = self.records.record_pull_intent(&self.image).await;
        let intent = intent.map_err(|error| {
            format!(
                "failed to record image pull intent for container image {:?}: {error}",
                self.image
            )
        })?;
        let begin = clock::instant();
        let (image_ref, owner) = match self.with_any_credentials().await {
            Ok(pulled) => pulled,
            Err(error) => {
                if !error.outcome_is_unknown {
                    intent.record_image_pull_failed().await;
                }
                return Err(error.text);
            }
        };
        let took = clock::since(begin);
        let (images, spec, reference) = (self.images, self.spec, image_ref.clone());
        let record = async move {
            // Without its ID the image cannot be recorded; the intent stays.
            let image = images.image_status(spec).await.ok()?;
            // Records are keyed by image ID, but CRI-O returns the manifest's digest from PullImage.
            let id = image.as_ref().map(|image| image.id.as_str());
            let id = id.filter(|id| !id.is_empty()).unwrap_or(&reference);
            intent.record_image_pulled(id, owner).await;
            image
        };
        // A task, because the image is there even if the caller is cancelled now.
        let recorded = spawn(PanicScope::Other, record).await;
        let image = recorded.ok().and_then(Result::ok).flatten();
        Ok(Pulled { image_ref, took, image })
    }

    /// The runtime's image reference, and the owner of the login that worked.
    async fn with_any_credentials(&mut self) -> Result<(String, Option<LoginOwner>), PullFailure> {
        let logins = std::mem::take(&mut self.credentials).into_iter();
        let mut logins: Vec<_> =
            logins.map(|PullLogin { auth, owner }| (Some(auth), owner)).collect();
        if logins.is_empty() {
            logins.push((None, None));
        }
        let (mut errors, mut outcome_is_unknown) = (Vec::new(), false);
        for (auth, owner) in logins {
            match self.once(auth).await {
                Ok(image_ref) => return Ok((image_ref, owner)),
                Err(error) => {
                    outcome_is_unknown |= matches!(error, CriError::OutcomeUnknown { .. });
                    // Identical errors are reported once.
                    let text = pull_text(&error);
                    if !errors.contains(&text) {
                        errors.push(text);
                    }
                }
            }
        }
        Err(PullFailure {
            text: match errors.as_slice() {
                [only] => only.clone(),
                many => format!("[{}]", many.join(", ")),
            },
            outcome_is_unknown,
        })
    }

    async fn once(&self, auth: Option<AuthConfig>) -> Result<String, CriError> {
        self.images.pull_image(self.spec.clone(), auth, self.sandbox_config.clone()).await
    }
}
