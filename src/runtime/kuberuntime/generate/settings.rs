//! What every sandbox and container configuration depends on besides the pod.

use super::security_context::SecurityError;
use super::{env::EnvError, mounts::MountError, network::hostname::HostnameError};
use crate::resources::{BadAmount, CpuEnforcement, NodeFacts};
use crate::volumes::{KubeletRoot, UnsafeName};
use std::{net::IpAddr, path::PathBuf, sync::Arc};

/// The node's part of all configurations; settled at start.
#[derive(Clone, Debug)]
pub struct SpecSettings {
    /// The kubelet's root directory.
    pub root: KubeletRoot,
    /// `podLogsDir`, usually `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    /// `clusterDNS`; empty when there is none.
    pub cluster_dns: Vec<IpAddr>,
    /// `clusterDomain`; empty when there is none.
    pub cluster_domain: String,
    /// `seccompDefault`: containers without a profile get the runtime's instead of none.
    pub seccomp_default: bool,
    /// How CPU and memory limits are enforced.
    pub cpu: CpuEnforcement,
    /// Facts about the node.
    pub node: Arc<NodeFacts>,
}

/// A pod asks for something that cannot be made into a configuration. The text is what users see
/// as `CreateContainerConfigError` (or in a failed sandbox event).
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
    /// A name of the pod is no file name.
    #[error(transparent)]
    Name(#[from] UnsafeName),
}
