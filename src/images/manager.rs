//! Makes sure that a container's image is there.

use super::{
    error::ImageError,
    getter::{ImageGetter, ImageManagerParts},
    prefetch::{PrefetchOutcome, Prefetcher, WantedImage},
    request::{ImageRequest, ReadyImage},
};
use crate::{
    cri::v1::PodSandboxConfig,
    model::{Pod, PodUid},
};
use std::{sync::Arc, time::Duration};

/// Gets images for pods; cheap to clone.
#[derive(Clone)]
pub struct ImageManager {
    getter: ImageGetter,
    prefetcher: Arc<Prefetcher>,
}

impl ImageManager {
    /// A manager without history.
    pub fn new(parts: ImageManagerParts) -> ImageManager {
        let getter = ImageGetter::new(parts);
        ImageManager {
            prefetcher: Arc::new(Prefetcher::new(getter.clone())),
            getter,
        }
    }

    /// Returns the reference to create the container with, pulling the image if policy and presence
    /// require it, and emits the events that users expect. Dropping the future cancels a pull that nothing
    /// else waits for.
    ///
    /// # Errors
    /// The image can neither be used nor pulled.
    pub async fn ensure_image_exists(
        &self,
        request: &ImageRequest<'_>,
    ) -> Result<ReadyImage, ImageError> {
        match self.prefetcher.take(request).await {
            Some(PrefetchOutcome::Present(image)) => Ok(self.getter.report_present(request, image)),
            Some(PrefetchOutcome::Pulled(image)) => Ok(image),
            Some(PrefetchOutcome::Failed(error)) => Err(error),
            Some(PrefetchOutcome::Unknown) | None => self.getter.get(request).await,
        }
    }

    /// Begins to pull the images of containers that will start one after the other, in that order. Pulls
    /// of an earlier sync continue; those that are no longer listed are cancelled.
    pub fn prefetch(&self, pod: &Arc<Pod>, wanted: Vec<WantedImage>, sandbox: &PodSandboxConfig) {
        self.prefetcher.prefetch(pod, wanted, sandbox);
    }

    /// Cancels the prefetches of a pod that ends.
    pub fn stop_prefetches(&self, pod: &PodUid) {
        self.prefetcher.forget(pod);
    }

    /// Forgets the back-off of a pod that is gone, and cancels its prefetches.
    pub fn forget_pod(&self, pod: &PodUid) {
        self.prefetcher.forget(pod);
        self.getter.forget_pod(pod);
    }

    /// For how long images were pulled for a pod; forgotten afterwards.
    pub fn take_pulling_time(&self, pod: &PodUid) -> Duration {
        self.getter.take_pulling_time(pod)
    }

    /// How many pulls back off, and for how many pods images are prefetched.
    pub fn sizes(&self) -> (usize, usize) {
        (self.getter.backing_off(), self.prefetcher.len())
    }
}
