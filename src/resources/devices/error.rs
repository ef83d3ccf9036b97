//! Why a container does not get its devices; texts as upstream's where it has one.

use crate::resources::topology;

/// Why a pod does not have its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unallocated {
    /// Plugins are preparing devices; [`super::DeviceManager::changed`] reports when they are done.
    InProgress,
    /// The allocation failed.
    Failed(DeviceAllocationError),
    /// No devices match the NUMA affinity of the pod's other resources.
    Misaligned(topology::TopologyError),
}

/// Why a container does not get its devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceAllocationError {
    /// The container requests another number than it was given.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    Changed {
        /// UID of the pod.
        pod: String,
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// What it has.
        from: usize,
        /// What it requests.
        to: u64,
    },
    /// No plugin serves the resource any more.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// No device is healthy.
    #[error("no healthy devices present; cannot allocate unhealthy devices {resource}")]
    NoHealthy {
        /// The resource.
        resource: String,
        /// Its plugin has not registered (again) yet, or has not sent its devices.
        away: bool,
    },
    /// A device of the container is not healthy any more.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    NoLongerHealthy(String),
    /// There are not enough free devices.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        /// The resource.
        resource: String,
        /// How many more the container needs.
        requested: usize,
        /// How many are free.
        available: usize,
    },
    /// Running containers may have any device of the resource.
    #[error(
        "the checkpoint was damaged; it is not known which devices of {0} running containers have"
    )]
    UnknownDevices(String),
    /// The plugin of a resource is gone.
    #[error("endpoint of {0} has been stopped")]
    Stopped(String),
    /// The resource was served and is not any more.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    /// The plugin has not prepared the devices.
    #[error("{0}")]
    Allocate(String),
    /// The request for preferred devices failed.
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Prefer(String),
    /// The plugin has not prepared the container.
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
    /// The plugin's response has no container.
    #[error("no containers return in allocation response")]
    NoResponse,
    /// The checkpoint cannot be written.
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(String),
    /// The pod is being removed.
    #[error("the pod does not have its devices any more")]
    Released,
}

impl DeviceAllocationError {
    /// Whether a retry may succeed even if no other pod releases devices.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::NoHealthy { away: true, .. } | Self::UnknownDevices(_)
        )
    }

    /// The resource of which other pods have too many.
    pub fn short_of(&self) -> Option<&str> {
        match self {
            Self::Unavailable { resource, .. } => Some(resource),
            _ => None,
        }
    }
}
