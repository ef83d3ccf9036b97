//! Pulls images, and removes unused ones.
//!
//! * **Owns** the decision whether to pull ([`ImageManager`]), the queue of pulls, prefetches, and the back-off of failed
//!   pulls; the node's registry credentials ([`credentials`]); records of pulled images ([`records`]); the removal of
//!   unused images ([`gc`]); the parser of image references ([`ImageName`]).
//! * **Woken by** a pod that is about to start a container.
//! * **Publishes** events about the container, and the image reference to create it with.
//! * **Must never** use the result of a prefetch for longer than its TTL, because users may remove the image, nor log
//!   credentials.
//! * Upstream: `pkg/kubelet/images`, `pkg/credentialprovider` and `pkg/util/parsers`.

mod backoff;
pub mod credentials;
mod error;
mod image_name;
mod pull_metrics;
pub mod records;
pub mod gc;
mod puller;
mod request;
mod getter;
mod manager;
mod open;

#[cfg(test)]
mod tests;

pub use credentials::{PullSecret, PullSecrets, pull_secret_keys, pull_secrets};
pub use error::ImageError;
pub(crate) use gc::sandbox_image;
pub use getter::ImageManagerParts;
pub use image_name::{ImageName, InvalidImageName};
pub use manager::{ImageManager, ImageToPrefetch};
pub use open::{CredentialProviders, Images, ImagesConfig, check_credential_providers};
pub use pull_metrics::PullMetrics;
pub use puller::PullConfig;
pub use request::{ImageRequest, PullPolicy, ReadyImage};
