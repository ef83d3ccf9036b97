//! Images that are volumes: got like any other image, and mounted by the runtime.

use super::{
    KubeGenericRuntimeManager, generate::mounts::ImageVolumes, report::StartFailure,
    sandbox::Sandbox, sync_pod::Stopped, sync_pod::SyncRequest,
};
use crate::{
    cri::v1::ImageSpec,
    images::{ImageError, ImageRequest, PullPolicy},
    model::{Pod, PodExt},
    state::events::ObjectRef,
};
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource};

impl KubeGenericRuntimeManager {
    /// Gets the images that a container mounts. One that cannot be had keeps the container waiting with
    /// the reason that its own image would give.
    pub(super) async fn ensure_image_volumes(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        sandbox: &Sandbox,
    ) -> Result<ImageVolumes, Stopped> {
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
                sandbox_config: Some(&sandbox.config),
            };
            let image = self.get_image(request, container, &wanted).await?;
            let spec = image_spec(request.pod, image.reference, reference.to_string());
            images.insert(name.to_string(), spec);
        }
        Ok(images)
    }
}

/// What the runtime is to mount: an image as it calls it, which the user called otherwise.
fn image_spec(pod: &Pod, image: String, written: String) -> ImageSpec {
    let annotations = pod.metadata.annotations.clone();
    ImageSpec {
        image,
        user_specified_image: written,
        annotations: annotations.unwrap_or_default().into_iter().collect(),
        ..ImageSpec::default()
    }
}

/// A container that waits for an image.
pub(super) fn image_failure(container: &Container, error: ImageError) -> StartFailure {
    let retry_in = error
        .retry_at
        .map(|at| at.saturating_duration_since(tokio::time::Instant::now()));
    StartFailure {
        retry_in,
        ..StartFailure::new(&container.name, error.reason, error.message)
    }
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
