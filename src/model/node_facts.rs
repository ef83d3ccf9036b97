//! Facts about this node, read once at the start. Pure.

/// Facts about the node that the configuration of containers depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// All memory, bytes.
    pub memory_capacity_bytes: i64,
    /// CPU time for pods, thousandths of a CPU.
    pub allocatable_milli_cpu: i64,
    /// Memory for pods, bytes.
    pub allocatable_memory_bytes: i64,
    /// Memory that is not reserved for the system and for the kubelet, bytes.
    pub unreserved_memory_bytes: i64,
    /// Scratch space for pods, bytes.
    pub allocatable_ephemeral_storage_bytes: i64,
    /// Huge page sizes the kernel offers, bytes.
    pub hugepage_sizes: Vec<u64>,
    /// The configured address of the node, at which containers on the host network are reached.
    pub given_address: Option<String>,
    /// Paths that are masked in containers on this machine besides the usual ones.
    pub masked_paths: Vec<String>,
    /// The kernel enforces SELinux labels, so files that the kubelet creates for pods have to be labelled.
    pub selinux: bool,
}

impl NodeFacts {
    /// Where containers on the host network are reached: the configured address, else loopback.
    pub fn address(&self) -> &str {
        self.given_address.as_deref().unwrap_or("127.0.0.1")
    }
}
