//! Errors of the generation of a configuration.

use super::{
    env::EnvError, hostname::HostnameError, mounts::MountError, security_context::SecurityError,
};
use crate::{model::requests::BadAmount, volumes::UnsafeName};

/// A pod for which no configuration can be generated. Users see the text with the reason `CreateContainerConfigError`, or
/// in a FailedCreatePodSandBox event.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An environment variable has no value.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A volume mount is impossible.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The security context cannot be met.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The host name cannot be formed.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// A resource amount cannot be read.
    #[error(transparent)]
    Amount(#[from] BadAmount),
    /// A name of the pod is not a file name.
    #[error(transparent)]
    Name(#[from] UnsafeName),
}
