//! Facts about this node, read once at the start.

use crate::host::HostMachine;
use std::net::IpAddr;

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

    /// Facts of a machine without reservations: everything is allocatable. `given` are the configured addresses.
    pub fn of(machine: &HostMachine, ephemeral_storage_bytes: u64, given: &[IpAddr]) -> Self {
        let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Self {
            memory_capacity_bytes: bytes(machine.memory_bytes),
            allocatable_milli_cpu: i64::from(machine.cpus).saturating_mul(1000),
            allocatable_memory_bytes: bytes(machine.memory_bytes),
            unreserved_memory_bytes: bytes(machine.memory_bytes),
            allocatable_ephemeral_storage_bytes: bytes(ephemeral_storage_bytes),
            hugepage_sizes: machine.hugepage_sizes.clone(),
            given_address: given.first().map(ToString::to_string),
            masked_paths: machine.thermal_paths.clone(),
            selinux: machine.selinux,
        }
    }
}
