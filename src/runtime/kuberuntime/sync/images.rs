//! The images that a container needs: its own, and those of its image volumes.

use super::request::{ReadySandbox, StartContainerError, StartFailure, SyncRequest};
use crate::base::clock;
use crate::cri::v1::{ImageSpec, PodSandboxConfig};
use crate::images::{
    ImageError, ImageManager, ImageRequest, ImageToPrefetch, PullPolicy, ReadyImage,
};
use crate::model::reasons::event;
use crate::model::{Pod, PodExt};
use crate::runtime::kuberuntime::actions::{PodActions, containers_to_prefetch};
use crate::runtime::kuberuntime::generate::mounts::ImageVolumes;
use crate::state::events::{EventRecorder, ObjectRef};
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource};

/// Gets images for containers; cheap to clone.
#[derive(Clone)]
pub(in crate::runtime::kuberuntime) struct ContainerImages {
    pub(in crate::runtime::kuberuntime) images: ImageManager,
    pub(in crate::runtime::kuberuntime) events: EventRecorder,
}

impl ContainerImages {
    /// Starts to pull the images of all containers that will be started, while the sandbox is created and containers
    /// start one after the other.
    pub(super) fn prefetch(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        sandbox: &PodSandboxConfig,
    ) {
        let wanted = containers_to_prefetch(request.pod, &request.status, actions);
        if wanted.is_empty() {
            return;
        }
        let images = wanted.into_iter().map(|container| ImageToPrefetch {
            object: ObjectRef::container(request.pod, &container.name),
            image: container.image.clone().unwrap_or_default(),
            policy: PullPolicy::of(container.image_pull_policy.as_deref()),
            secrets: request.secrets.clone(),
        });
        self.images.prefetch(request.pod, images.collect(), sandbox);
    }

    /// Gets the image that a container starts from.
    pub(super) async fn ensure_image(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        sandbox: &ReadySandbox,
    ) -> Result<ReadyImage, StartContainerError> {
        let object = ObjectRef::container(request.pod, &container.name);
        let wanted = ImageRequest {
            pod: request.pod,
            object: &object,
            image: container.image.as_deref().unwrap_or_default(),
            policy: PullPolicy::of(container.image_pull_policy.as_deref()),
            secrets: request.secrets,
            sandbox_config: Some(&sandbox.config),
        };
        self.get_image(request, container, &wanted).await
    }

    /// Gets the images of a container's image volumes. A failure has the waiting reason of a failed pull of the
    /// container's own image.
    pub(super) async fn ensure_image_volumes(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        sandbox: &ReadySandbox,
    ) -> Result<ImageVolumes, StartContainerError> {
        let mut images = ImageVolumes::new();
        for (name, source) in mounted_images(request.pod, container) {
            if images.contains_key(name) {
                continue;
            }
            let reference = source.reference.as_deref().unwrap_or_default();
            let wanted = ImageRequest {
                pod: request.pod,
                object: &ObjectRef::pod(request.pod),
                image: reference,
                policy: PullPolicy::of(source.pull_policy.as_deref()),
                secrets: request.secrets,
                sandbox_config: Some(&sandbox.config),
            };
            let image = self.get_image(request, container, &wanted).await?;
            let spec = image_spec(request.pod, image.reference, reference.to_string());
            images.insert(name.to_string(), spec);
        }
        Ok(images)
    }

    async fn get_image(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        wanted: &ImageRequest<'_>,
    ) -> Result<ReadyImage, StartContainerError> {
        // Biased, so that a result that is ready is reported even if the sync was cancelled: its event is emitted only
        // once.
        let result = tokio::select! {
            biased;
            result = self.images.ensure_image_exists(wanted) => result,
            () = request.cancel.cancelled() => return Err(StartContainerError::Cancelled),
        };
        result.map_err(|error| {
            let object = ObjectRef::container(request.pod, &container.name);
            let text = format!("Error: {}", error.reason);
            self.events.warning(&object, event::FAILED, text);
            image_failure(container, error).into()
        })
    }
}

/// The image of an image volume: the runtime's reference, and the one that the user wrote.
fn image_spec(pod: &Pod, image: String, written: String) -> ImageSpec {
    let annotations = pod.metadata.annotations.clone();
    ImageSpec {
        image,
        user_specified_image: written,
        annotations: annotations.unwrap_or_default().into_iter().collect(),
        ..ImageSpec::default()
    }
}

fn image_failure(container: &Container, error: ImageError) -> StartFailure {
    let retry_in = error.retry_at.map(|at| at.saturating_duration_since(clock::instant()));
    StartFailure { retry_in, ..StartFailure::new(&container.name, error.reason, error.message) }
}

/// The volumes of a container that are images, in the order of its mounts.
fn mounted_images<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref());
    let volumes = volumes.unwrap_or_default();
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    mounts.iter().filter_map(|mount| {
        let volume = volumes.iter().find(|volume| volume.name == mount.name)?;
        Some((volume.name.as_str(), volume.image.as_ref()?))
    })
}
