//! Errors of device allocations; texts as upstream's where it has one.

use crate::resources::topology;

/// Why a pod does not have its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocateError {
    /// Plugins are preparing devices; [`super::DeviceManager::changed`] reports when they are done.
    InProgress,
    /// The allocation failed.
    Failed(DeviceAllocationError),
    /// No devices match the NUMA affinity of the pod's other resources.
    Misaligned(topology::TopologyError),
}

/// Why a container cannot have its devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DeviceAllocationError {
    /// The container requests another number of devices than it was allocated.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    Changed {
        /// UID of the pod.
        pod: String,
        container: String,
        resource: String,
        /// The allocated number.
        from: usize,
        /// The requested number.
        to: u64,
    },
    /// No plugin serves the resource any more.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// No device is healthy.
    #[error("no healthy devices present; cannot allocate unhealthy devices {resource}")]
    NoHealthy {
        resource: String,
        /// Whether its plugin has not registered (again), or has not sent its devices yet.
        disconnected: bool,
    },
    /// A device that was allocated to the container is no longer healthy.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    NoLongerHealthy(String),
    /// There are not enough free devices.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        resource: String,
        /// Number of missing devices.
        requested: usize,
        /// Number of free devices.
        available: usize,
    },
    /// The checkpoint was damaged, and running containers may have any device of the resource.
    #[error(
        "the checkpoint was damaged; it is not known which devices of {0} running containers have"
    )]
    UnknownDevices(String),
    /// The plugin of the resource is not connected.
    #[error("endpoint of {0} has been stopped")]
    Stopped(String),
    /// The container has devices of the resource, and no plugin is registered for it any more.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    /// The `Allocate` call failed.
    #[error("{0}")]
    Allocate(String),
    /// The `GetPreferredAllocation` call failed.
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    GetPreferredAllocation(String),
    /// The `PreStartContainer` call failed.
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
    /// The plugin's response has no entry for the container.
    #[error("no containers return in allocation response")]
    NoResponse,
    /// The checkpoint cannot be written.
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(String),
    /// The pod's devices are being released.
    #[error("the pod does not have its devices any more")]
    Released,
}

impl DeviceAllocationError {
    /// Whether a retry may succeed even if no other pod releases devices.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NoHealthy { disconnected: true, .. } | Self::UnknownDevices(_))
    }

    /// The resource of which too few devices are free.
    pub fn exhausted_resource(&self) -> Option<&str> {
        match self {
            Self::Unavailable { resource, .. } => Some(resource),
            _ => None,
        }
    }
}
