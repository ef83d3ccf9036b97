//! The image service: a table of images and scripted pulls.

use std::sync::Arc;
use std::time::Duration;

use kubelet::cri::v1;
use tonic::{Request, Response, Status};
use v1::image_service_server::ImageService;

use super::Shared;
use super::calls::{Rpc, Subject};

type Answer<T> = Result<Response<T>, Status>;
type Items<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

/// How a pull goes. The default succeeds at once.
#[derive(Debug, Clone, Default)]
pub struct Pull {
    pub delay: Duration,
    /// Fails with this code and text after the delay.
    pub error: Option<(tonic::Code, String)>,
    /// Only with this user and password; without them it fails as a registry would.
    pub credentials: Option<(String, String)>,
}

/// Scripted pulls by normalized image name, the newest first.
#[derive(Default)]
pub struct Pulls {
    scripts: Vec<(String, Pull)>,
}

impl Pulls {
    pub fn set(&mut self, image: &str, pull: Pull) {
        self.scripts.insert(0, (normalize(image), pull));
    }

    fn of(&self, image: &str) -> Pull {
        let scripted = self.scripts.iter().find(|(name, _)| name == image);
        scripted.map(|(_, pull)| pull.clone()).unwrap_or_default()
    }
}

/// `busybox` becomes `docker.io/library/busybox:latest`, as every CRI runtime has it.
pub fn normalize(name: &str) -> String {
    let (repository, suffix) = match name.split_once('@') {
        Some((repository, digest)) => (repository, format!("@{digest}")),
        None => match name.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, format!(":{tag}")),
            _ => (name, ":latest".to_owned()),
        },
    };
    let repository = match repository.split_once('/') {
        None => format!("docker.io/library/{repository}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => {
            repository.to_owned()
        }
        Some(_) => format!("docker.io/{repository}"),
    };
    repository + &suffix
}

/// A stable digest-like text for a name.
fn digest(name: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let mut rng = fastrand::Rng::with_seed(hasher.finish());
    let hex = (0..4).map(|_| format!("{:016x}", rng.u64(..))).collect::<String>();
    format!("sha256:{hex}")
}

/// The id of the image that a pull of this name gives.
pub fn image_id(name: &str) -> String {
    make_image(name).id
}

/// The image that a pull of this name gives.
pub fn make_image(name: &str) -> v1::Image {
    let full = normalize(name);
    let repository = full.split(['@']).next().unwrap_or(&full);
    let repository = repository.rsplit_once(':').map_or(repository, |(before, _)| before);
    v1::Image {
        id: digest(&full),
        repo_tags: if full.contains('@') { Vec::new() } else { vec![full.clone()] },
        repo_digests: vec![format!("{repository}@{}", digest(repository))],
        size: 1_000_000,
        uid: None,
        username: String::new(),
        spec: Some(v1::ImageSpec { image: full, ..Default::default() }),
        pinned: false,
    }
}

fn image_subject(image: &Option<v1::ImageSpec>) -> (String, Subject) {
    let name = image.clone().unwrap_or_default().image;
    let subject = Subject { id: name.clone(), ..Subject::default() };
    (name, subject)
}

pub struct Images(pub Arc<Shared>);

impl Images {
    fn matching(&self, filter: Option<&v1::ImageFilter>) -> Vec<v1::Image> {
        let world = self.0.world.lock();
        let wanted =
            filter.and_then(|filter| filter.image.as_ref()).map(|spec| spec.image.as_str());
        match wanted {
            Some(name) if !name.is_empty() => world.image(name).cloned().into_iter().collect(),
            _ => world.images.values().cloned().collect(),
        }
    }

    async fn pull(
        &self,
        name: String,
        auth: Option<v1::AuthConfig>,
    ) -> Result<v1::PullImageResponse, Status> {
        let full = normalize(&name);
        let script = self.0.pulls.lock().of(&full);
        tokio::time::sleep(script.delay).await;
        if let Some((code, message)) = script.error {
            return Err(Status::new(code, message));
        }
        if let Some((user, password)) = script.credentials {
            let given = auth.unwrap_or_default();
            if (given.username, given.password) != (user, password) {
                let text = format!(
                    "failed to pull and unpack image \"{full}\": pull access denied, unauthorized"
                );
                return Err(Status::unknown(text));
            }
        }
        let image = make_image(&name);
        let image_ref = image.id.clone();
        self.0.world.lock().images.insert(full, image);
        self.0.changed();
        Ok(v1::PullImageResponse { image_ref })
    }
}

#[tonic::async_trait]
impl ImageService for Images {
    type StreamImagesStream = Items<v1::StreamImagesResponse>;

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let filter = request.into_inner().filter;
        let work = async { Ok(v1::ListImagesResponse { images: self.matching(filter.as_ref()) }) };
        self.0.call(Rpc::ListImages, Subject::default(), String::new(), work).await
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Answer<Self::StreamImagesStream> {
        self.0.require_streaming()?;
        let filter = request.into_inner().filter;
        let work = async {
            let chunks = super::chunks(self.matching(filter.as_ref()));
            let items =
                chunks.map(|images| Ok(v1::StreamImagesResponse { images })).collect::<Vec<_>>();
            Ok(tokio_stream::iter(items))
        };
        self.0.call(Rpc::StreamImages, Subject::default(), String::new(), work).await
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let (name, subject) = image_subject(&request.into_inner().image);
        let work = async {
            let image = self.0.world.lock().image(&name).cloned();
            Ok(v1::ImageStatusResponse { image, info: Default::default() })
        };
        self.0.call(Rpc::ImageStatus, subject, name.clone(), work).await
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let request = request.into_inner();
        let (name, subject) = image_subject(&request.image);
        let detail = format!("{name} auth={}", request.auth.is_some());
        self.0.call(Rpc::PullImage, subject, detail, self.pull(name, request.auth)).await
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let (name, subject) = image_subject(&request.into_inner().image);
        let work = async {
            let mut world = self.0.world.lock();
            if let Some(id) = world.image(&name).map(|image| image.id.clone()) {
                world.images.retain(|_, image| image.id != id);
            }
            Ok(v1::RemoveImageResponse {})
        };
        self.0.call(Rpc::RemoveImage, subject, name.clone(), work).await
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        let work = async {
            let used = self.0.world.lock().images.values().map(|image| image.size).sum();
            let usage = v1::FilesystemUsage {
                timestamp: self.0.now(),
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: "/".to_owned() }),
                used_bytes: Some(v1::UInt64Value { value: used }),
                inodes_used: Some(v1::UInt64Value { value: 1 }),
            };
            let (images, containers) = (vec![usage.clone()], vec![usage]);
            Ok(v1::ImageFsInfoResponse {
                image_filesystems: images,
                container_filesystems: containers,
            })
        };
        self.0.call(Rpc::ImageFsInfo, Subject::default(), String::new(), work).await
    }
}
