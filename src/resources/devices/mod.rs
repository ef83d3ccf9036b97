//! The device manager: device plugins, and the allocation of their devices to containers.
//!
//! * Owns: the state of devices and allocations ([`state`], pure), its checkpoint, and the connections to plugins.
//! * Woken by: plugins that register or send device lists; callers that allocate; a timer for disconnected plugins.
//! * Publishes: [`crate::state::device_capacity`]; the pods whose devices changed ([`DeviceManager::changed`]).
//! * Must never give a device to two pods, call a plugin without a timeout, or block the admission of a pod.
//! * Upstream: `pkg/kubelet/cm/devicemanager`.

pub mod allocation;
pub mod checkpoint;
mod client;
mod entries;
mod error;
mod housekeeping;
mod manager;
mod metrics;
mod plugins;
mod registration;
mod request;
mod run_options;
pub mod state;
#[cfg(test)]
mod tests;

pub use error::{AllocateError, DeviceAllocationError};
pub use manager::{CHECKPOINT, DeviceChange, DeviceManager, check_device_checkpoint};
pub use request::{Affinities, is_claimed, is_dra_extended_resource, is_extended_resource};
pub use run_options::RunOptions;
pub use state::DeviceHints;

/// The generated device plugin messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod proto {
    tonic::include_proto!("v1beta1");
}
