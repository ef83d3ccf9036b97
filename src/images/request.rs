//! The image that a container needs, and the image it gets.

use super::credentials::PullSecrets;
use crate::cri::v1::{Image, PodSandboxConfig};
use crate::model::Pod;
use crate::state::events::ObjectRef;

/// `imagePullPolicy` of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Check the registry every time.
    Always,
    /// Pull what is absent.
    IfNotPresent,
    /// Use what is there or fail.
    Never,
}

impl PullPolicy {
    /// Reads the API's spelling. Defaulting has filled an empty policy in before; anything else that
    /// is unknown pulls what is absent.
    pub fn of(policy: Option<&str>) -> PullPolicy {
        match policy {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        }
    }
}

/// An image that something of a pod needs.
#[derive(Clone, Copy)]
pub struct ImageRequest<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What events are about: the container, as a rule.
    pub object: &'a ObjectRef,
    /// The reference as the user wrote it.
    pub image: &'a str,
    /// Whether to pull.
    pub policy: PullPolicy,
    /// The pod's image pull secrets.
    pub secrets: &'a PullSecrets,
    /// The pod's sandbox configuration, where there is one.
    pub sandbox_config: Option<&'a PodSandboxConfig>,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyImage {
    /// What to create containers with.
    pub reference: String,
    /// The numeric user that the image wants to run as.
    pub uid: Option<i64>,
    /// The user that it wants to run as by name; empty when it has none.
    pub username: String,
}

impl ReadyImage {
    /// An image that the runtime has.
    pub fn of_status(image: &Image) -> Self {
        Self::of(image.id.clone(), Some(image))
    }

    pub(super) fn of(reference: String, image: Option<&Image>) -> Self {
        let uid = image
            .and_then(|image| image.uid.as_ref())
            .map(|uid| uid.value);
        let username = image
            .map(|image| image.username.clone())
            .unwrap_or_default();
        Self {
            reference,
            uid,
            username,
        }
    }
}
