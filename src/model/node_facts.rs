//! Properties of the node, read once at start. Pure.

use std::path::PathBuf;

/// Properties of the node that container configurations depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Total memory in bytes.
    pub memory_capacity_bytes: i64,
    /// Allocatable CPU in millicores.
    pub allocatable_milli_cpu: i64,
    /// Allocatable memory in bytes.
    pub allocatable_memory_bytes: i64,
    /// Memory that is not reserved for the system or the kubelet, in bytes.
    pub unreserved_memory_bytes: i64,
    /// Allocatable ephemeral storage in bytes.
    pub allocatable_ephemeral_storage_bytes: i64,
    /// Supported huge page sizes in bytes.
    pub hugepage_sizes: Vec<u64>,
    /// The configured address of the node, for containers on the host network.
    pub configured_address: Option<String>,
    /// Additional paths that are masked in containers on this machine.
    pub masked_paths: Vec<String>,
    /// SELinux is enabled, so files that the kubelet creates for pods have to be relabelled.
    pub selinux: bool,
    /// The SELinux context of files of containers, if SELinux is enabled and its policy has one.
    pub selinux_file_context: Option<String>,
    /// The directory with the drivers of flexVolumes.
    pub volume_plugin_dir: PathBuf,
    /// The controller attaches volumes, and says so in the Node object.
    pub controller_attach: bool,
}

impl NodeFacts {
    /// The address of containers on the host network: the configured one, else loopback.
    pub fn address(&self) -> &str {
        self.configured_address.as_deref().unwrap_or("127.0.0.1")
    }
}
