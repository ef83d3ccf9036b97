//! Makes the images of containers available (upstream's `ImageManager`).

mod prefetch;

use super::error::ImageError;
use super::getter::{ImageGetter, ImageManagerParts};
use super::request::{ImageRequest, ReadyImage};
use crate::model::PodUid;
use parking_lot::Mutex;
use prefetch::{Prefetch, PrefetchOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use prefetch::ImageToPrefetch;

/// Makes images available to pods; cheap to clone.
#[derive(Clone)]
pub struct ImageManager {
    getter: ImageGetter,
    prefetches: Arc<Mutex<HashMap<PodUid, Vec<Prefetch>>>>,
}

impl ImageManager {
    /// Builds the manager.
    pub fn new(parts: ImageManagerParts) -> ImageManager {
        ImageManager { getter: ImageGetter::new(parts), prefetches: Arc::default() }
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
        match self.take_prefetched(request).await {
            Some(PrefetchOutcome::Present(image)) => Ok(self.getter.report_present(request, image)),
            Some(PrefetchOutcome::Pulled(image)) => Ok(image),
            Some(PrefetchOutcome::Failed(error)) => Err(error),
            Some(PrefetchOutcome::Unknown) | None => self.getter.get(request).await,
        }
    }

    /// Cancels the prefetches of a pod that is being terminated.
    pub fn stop_prefetches(&self, pod: &PodUid) {
        let prefetches = self.prefetches.lock().remove(pod);
        // Dropped without the lock, because it aborts their tasks.
        drop(prefetches);
    }

    /// Forgets the back-off of a pod that is gone, and cancels its prefetches.
    pub fn forget_pod(&self, pod: &PodUid) {
        self.stop_prefetches(pod);
        self.getter.forget_pod(pod);
    }

    /// The time that image pulls of a pod took; forgets it.
    pub fn take_pulling_time(&self, pod: &PodUid) -> Duration {
        self.getter.take_pulling_time(pod)
    }

    /// Number of pulls with a back-off, including those whose delay has ended, and of pods with prefetches.
    pub fn sizes(&self) -> (usize, usize) {
        (self.getter.backing_off(), self.prefetches.lock().len())
    }
}
