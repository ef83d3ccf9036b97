//! Device plugins: which devices the node has, and which containers use them.
//!
//! * Owns: the state of devices and allocations ([`state`], pure), its checkpoint, the connections to plugins.
//! * Woken by: plugins that register or send their devices; callers that allocate; a timer for plugins that are gone.
//! * Publishes: [`crate::state::device_capacity`]; which pods to check again ([`DeviceManager::changed`]).
//! * Must never give a device to two pods, wait for a plugin without a deadline, or block the admission of a pod.
//! * Answers to upstream's `pkg/kubelet/cm/devicemanager`.

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

pub use error::{DeviceAllocationError, Unallocated};
pub use manager::{Change, DeviceManager};
pub use request::{Affinities, is_extended_resource};
pub use run_options::RunOptions;
pub use state::DeviceHints;

/// The generated device plugin messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod proto {
    tonic::include_proto!("v1beta1");
}
