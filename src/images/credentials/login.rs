//! Logins for pulls, and their owners. Pure.

use crate::cri::v1::AuthConfig;

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
    Secret(UsedSecret),
    ServiceAccount(UsedAccount),
}

/// The identity of a pull secret in records of pulls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::images) struct UsedSecret {
    pub(in crate::images) uid: String,
    pub(in crate::images) namespace: String,
    pub(in crate::images) name: String,
    pub(in crate::images) credential_hash: String,
}

/// A service account that a credential provider issued a login for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::images) struct UsedAccount {
    pub(in crate::images) uid: String,
    pub(in crate::images) namespace: String,
    pub(in crate::images) name: String,
}
