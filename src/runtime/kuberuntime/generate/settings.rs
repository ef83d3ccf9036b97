//! The node's settings that all sandbox and container configurations depend on.

use crate::model::NodeFacts;
use crate::resources::ResourceEnforcement;
use crate::state::node_object::HostIps;
use crate::volumes::KubeletRoot;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The node's part of all configurations.
#[derive(Clone, Debug)]
pub struct GenerateSettings {
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
    pub enforcement: ResourceEnforcement,
    /// Facts about the node.
    pub node: Arc<NodeFacts>,
    /// The node's addresses, which may change.
    pub host_ips: HostIps,
}
