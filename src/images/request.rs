//! A request for an image, and the image that it returns.

use super::credentials::PullSecrets;
use crate::base::named_enum;
use crate::cri::v1::{Image, PodSandboxConfig};
use crate::model::Pod;
use crate::state::events::ObjectRef;

named_enum! {
    /// `imagePullPolicy` of a container, with the names that metrics show.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PullPolicy {
        /// Check the registry every time.
        Always = "always",
        /// Pull if the image is absent.
        IfNotPresent = "ifnotpresent",
        /// Never pull; fail if the image is absent.
        Never = "never",
    }
}

impl PullPolicy {
    /// Parses the field. An empty policy was defaulted before; an unknown one counts as `IfNotPresent`.
    pub fn of(policy: Option<&str>) -> PullPolicy {
        match policy {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        }
    }
}

/// A request for the image of a container or of an image volume.
#[derive(Clone, Copy)]
pub struct ImageRequest<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The object of events: the container, or the pod for an image volume.
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

/// An image that is present and may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyImage {
    /// The reference for CreateContainer.
    pub reference: String,
    /// The numeric user in the image's configuration.
    pub uid: Option<i64>,
    /// The user name in the image's configuration; empty without one.
    pub username: String,
}

impl ReadyImage {
    pub(super) fn of(reference: String, image: Option<&Image>) -> Self {
        let uid = image.and_then(|image| image.uid.as_ref()).map(|uid| uid.value);
        let username = image.map(|image| image.username.clone()).unwrap_or_default();
        Self { reference, uid, username }
    }
}
