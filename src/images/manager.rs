//! Makes the images of containers available (upstream's `ImageManager`).

use super::{
    error::ImageError,
    getter::{ImageGetter, ImageManagerParts},
    prefetch::{ImageToPrefetch, PrefetchOutcome, Prefetcher},
    request::{ImageRequest, ReadyImage},
};
use crate::{
    cri::v1::PodSandboxConfig,
    model::{Pod, PodUid},
};
use std::{sync::Arc, time::Duration};

/// Makes images available to pods; cheap to clone.
#[derive(Clone)]
pub struct ImageManager {
    getter: ImageGetter,
    prefetcher: Arc<Prefetcher>,
}

impl ImageManager {
    /// Builds the manager.
    pub fn new(parts: ImageManagerParts) -> ImageManager {
        let getter = ImageGetter::new(parts);
        ImageManager {
            prefetcher: Arc::new(Prefetcher::new(getter.clone())),
            getter,
        }
    }

    /// Returns the image reference to create the container with, after pulling the image if needed, and emits upstream's
    /// events. Dropping the future cancels the pull, unless another caller waits for it.
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

    /// Starts to pull the images of containers that will be started, in this order. Prefetches of an earlier sync continue
    /// if they are listed again, and are cancelled otherwise.
    pub fn prefetch(
        &self,
        pod: &Arc<Pod>,
        images: Vec<ImageToPrefetch>,
        sandbox: &PodSandboxConfig,
    ) {
        self.prefetcher.prefetch(pod, images, sandbox);
    }

    /// Cancels the prefetches of a pod that is being terminated.
    pub fn stop_prefetches(&self, pod: &PodUid) {
        self.prefetcher.forget(pod);
    }

    /// Forgets the back-off of a pod that is gone, and cancels its prefetches.
    pub fn forget_pod(&self, pod: &PodUid) {
        self.prefetcher.forget(pod);
        self.getter.forget_pod(pod);
    }

    /// The time that image pulls of a pod took; forgets it.
    pub fn take_pulling_time(&self, pod: &PodUid) -> Duration {
        self.getter.take_pulling_time(pod)
    }

    /// Number of pulls with a back-off, including those whose delay has ended, and of pods with prefetches.
    pub fn sizes(&self) -> (usize, usize) {
        (self.getter.backing_off(), self.prefetcher.len())
    }
}
