//! Registry credentials for image pulls: those of the pod's secrets, then those of the node.
//!
//! * **Owns** the parser of docker's configuration files, which are searched in upstream's order, and the credential
//!   provider plugins.
//! * **Woken by** a pull. Files are read for every pull, so a changed file takes effect with the next one.
//! * **Publishes** the logins for one image, the most specific first.
//! * **Must never** expose a password in a log, an error or an event; nor fail a pull because of an unusable file,
//!   which is logged once and skipped.
//! * Upstream: `pkg/credentialprovider`.

mod auths;
mod docker_config;
mod keyring;
mod login;
mod matching;
mod plugins;
mod pull_secret;

pub use keyring::{Keyring, NodeFiles};
pub(super) use login::{ImagePullSecret, ImagePullServiceAccount, LoginOwner, PullLogin};
pub use plugins::CredentialPlugins;
#[cfg(test)]
pub(in crate::images) use plugins::tests as plugin_tests;
pub use pull_secret::{PullSecret, PullSecrets, pull_secret_keys, pull_secrets};
