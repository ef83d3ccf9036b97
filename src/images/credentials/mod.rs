//! Registry credentials: what a pull logs in with, from the pod's secrets and then from the node.
//!
//! * **Owns** the reading of docker configuration files, in upstream's places and order, and the programs
//!   that provide logins.
//! * **Woken by** a pull; files are read then, so a changed one counts from the next pull on.
//! * **Publishes** logins for one image, the most specific first.
//! * **Must never** show a password, in a log, an error or an event; nor fail a pull: a file that
//!   cannot be used is reported once and passed over.
//! * **Answers to** upstream's `pkg/credentialprovider`.

mod auths;
mod docker_config;
mod keyring;
mod login;
mod matching;
mod plugins;
mod pull_secret;

pub use keyring::{Keyring, NodeFiles};
pub(super) use login::{LoginOwner, PullLogin, UsedAccount, UsedSecret};
pub use plugins::CredentialPlugins;
#[cfg(test)]
pub(in crate::images) use plugins::tests as plugin_tests;
pub use pull_secret::{PullSecret, PullSecrets, pull_secret_keys, pull_secrets};
