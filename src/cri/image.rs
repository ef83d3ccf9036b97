//! Client of the CRI image service.

use super::connection::{CriConnection, MAX_REPLY, unary};
use super::error::CriError;
use super::rpc::Rpc;
use super::transport::CriService;
use super::v1::image_service_client::ImageServiceClient;
use super::v1::{
    AuthConfig, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec,
    ImageStatusRequest, ListImagesRequest, PodSandboxConfig, PullImageRequest, RemoveImageRequest,
};

/// Calls of the image service. Clones share the connection.
#[derive(Clone)]
pub struct ImageClient {
    connection: CriConnection,
}

impl ImageClient {
    /// Calls over `connection`, which may be shared with the runtime service.
    pub fn new(connection: CriConnection) -> ImageClient {
        ImageClient { connection }
    }

    /// The generated client, with metrics, spans and deadlines.
    pub fn raw(&self) -> ImageServiceClient<CriService> {
        ImageServiceClient::new(self.connection.service()).max_decoding_message_size(MAX_REPLY)
    }

    /// Images that match `filter`; all of them without one.
    pub async fn list_images(&self, filter: Option<ImageSpec>) -> Result<Vec<Image>, CriError> {
        let filter = filter.map(|image| ImageFilter { image: Some(image) });
        let request = ListImagesRequest { filter };
        let reply = unary(Rpc::ListImages, self.raw().list_images(request)).await?;
        Ok(reply.images)
    }

    /// The status of an image; `None` if it is absent.
    pub async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>, CriError> {
        let rpc = Rpc::ImageStatus;
        let request = ImageStatusRequest { image: Some(image), verbose: false };
        match unary(rpc, self.raw().image_status(request)).await?.image {
            Some(image) if image.id.is_empty() => {
                Err(CriError::invalid(rpc, "image without an id"))
            }
            image => Ok(image),
        }
    }

    /// Pulls an image, without a timeout; returns the reference for creating containers. Dropping the future cancels
    /// the pull.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> Result<String, CriError> {
        let rpc = Rpc::PullImage;
        let request = PullImageRequest { image: Some(image), auth, sandbox_config };
        let reply = unary(rpc, self.raw().pull_image(request)).await?;
        if reply.image_ref.is_empty() {
            Err(CriError::invalid(rpc, "image_ref is empty"))
        } else {
            Ok(reply.image_ref)
        }
    }

    /// Removes an image; an absent one is no error.
    pub async fn remove_image(&self, image: ImageSpec) -> Result<(), CriError> {
        let request = RemoveImageRequest { image: Some(image) };
        unary(Rpc::RemoveImage, self.raw().remove_image(request)).await?;
        Ok(())
    }

    /// Usage of the file systems of images and writable layers.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, CriError> {
        let request = ImageFsInfoRequest {};
        unary(Rpc::ImageFsInfo, self.raw().image_fs_info(request)).await
    }
}
