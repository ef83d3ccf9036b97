//! Getting images onto the machine.
//!
//! * **Owns** the decision whether to pull ([`ImageManager`]), the queue of pulls, and the back-off of
//!   pulls that failed; reads image references ([`ImageName`]).
//! * **Woken by** a pod that is about to start a container.
//! * **Publishes** events about the container, and the reference to create it with.
//! * **Must never** remember that an image is present (someone may remove it), nor log credentials.
//! * **Answers to** upstream's `pkg/kubelet/images` and `pkg/util/parsers`.

mod backoff;
mod error;
mod flight;
mod image_name;
mod manager;
mod puller;
mod rate;

#[cfg(test)]
mod tests;

pub use error::ImageError;
pub use image_name::{ImageName, InvalidImageName};
pub use manager::{ImageManager, ImageRequest, PullPolicy, ReadyImage};
pub use puller::PullConfig;
