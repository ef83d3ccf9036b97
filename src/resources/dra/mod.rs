//! Dynamic resource allocation: DRA drivers prepare the devices of a pod's ResourceClaims before it starts, and
//! unprepare them after its containers have exited.
//!
//! * Owns: the claims that pods on this node use (in upstream's checkpoint `dra_manager_state`), connections to
//!   drivers, the device health that drivers report, and the deletion of ResourceSlices of unusable drivers.
//! * Woken by: pods that start and terminate; drivers that register, connect, or report health.
//! * Publishes: the pods whose drivers or device health changed ([`DraManager::changed`]).
//! * Must never unprepare a claim that another pod uses, call a driver without a timeout, or prepare a claim that is
//!   not in the checkpoint, because it would never be unprepared.
//! * Upstream: `pkg/kubelet/cm/dra`.

mod checkpoint;
mod claims;
mod client;
mod drivers;
mod error;
mod health;
mod manager;
mod metrics;
mod recover;
mod registry;
mod slices;
mod state;
mod unrecovered;
#[cfg(test)]
mod tests;

pub use error::DraError;
pub use manager::{CHECKPOINT, DraManager, check_claim_checkpoint};
pub use state::ContainerClaim;

/// The generated messages, clients and servers of drivers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing, dead_code)]
pub mod proto {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

pub use super::v1alpha1 as health_proto;
