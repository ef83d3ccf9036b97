//! Logins for pulls, and their owners. Pure.

use crate::cri::v1::AuthConfig;
use serde::{Deserialize, Serialize};

/// A login for a pull, with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::images) struct PullLogin {
    pub(in crate::images) auth: AuthConfig,
    /// `None` for a login of the node.
    pub(in crate::images) owner: Option<LoginOwner>,
}

/// The owner of a login: pods of the same owner may use images that were pulled with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::images) enum LoginOwner {
    Secret(ImagePullSecret),
    ServiceAccount(ImagePullServiceAccount),
}

/// A pull secret that has a login, as records of pulls identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(in crate::images) struct ImagePullSecret {
    pub(in crate::images) uid: String,
    pub(in crate::images) namespace: String,
    pub(in crate::images) name: String,
    pub(in crate::images) credential_hash: String,
}

/// A service account that a credential provider issued a login for, as records of pulls identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(in crate::images) struct ImagePullServiceAccount {
    pub(in crate::images) uid: String,
    pub(in crate::images) namespace: String,
    pub(in crate::images) name: String,
}
