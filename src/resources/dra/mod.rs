//! Dynamic resource allocation: drivers prepare the devices of a pod's claims before it starts, and unprepare them
//! after its last container has ended.
//!
//! * Owns: the claims that pods on this node use (their checkpoint is upstream's `dra_manager_state`), the
//!   connections to drivers, the health that drivers report; the deletion of ResourceSlices of unusable drivers.
//! * Woken by: pods that start and end; drivers that register, connect, or report health.
//! * Publishes: the pods to check again ([`DraManager::changed`]).
//! * Must never unprepare a claim that another pod uses, wait for a driver without a deadline, or prepare a claim that
//!   is not in the checkpoint: it would never be unprepared.
//! * Answers to upstream's `pkg/kubelet/cm/dra`.

mod checkpoint;
mod claims;
mod client;
mod drivers;
mod error;
mod health;
mod keyed_lock;
mod lost;
mod manager;
mod metrics;
mod registry;
mod slices;
mod state;
#[cfg(test)]
mod tests;

pub use error::DraError;
pub use manager::DraManager;
pub use state::ContainerClaim;

/// The generated messages, clients and servers of drivers.
#[allow(
    missing_docs,
    clippy::all,
    unreachable_pub,
    clippy::indexing_slicing,
    dead_code
)]
pub mod proto {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

pub use super::v1alpha1 as health_proto;
