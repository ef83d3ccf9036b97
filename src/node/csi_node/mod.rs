//! Registers CSI drivers: the CSINode object of this node, and what the Node object shows of its drivers.
//!
//! A driver creates its socket below `plugins_registry`. The plugin manager calls [`NodeInfoManager`], which adds the
//! driver to the driver table, asks it for its node ID, topology and maximum number of volumes, and writes these to the
//! Node object (annotation and labels) and to the CSINode object. Only then is the driver registered; if a step fails,
//! the driver leaves the table, and the plugin manager tries again later. While no API server responds, registration
//! waits instead: volumes can be unmounted without one. When the socket goes, the driver leaves the table at once, and
//! the CSINode object a minute later, unless it has registered again: the scheduler ignores the volume limit of a driver
//! that is missing there, so an update of the driver must not remove it.
//!
//! * Owns: the CSINode object; the node ID annotation and the topology labels of the Node object.
//! * Woken by: sockets of drivers; the UID of the Node object; timers; drivers that have reached their maximum.
//! * Publishes: whether the CSINode object is there, for the node's readiness.
//! * Must never write what a driver reports unchecked, or remove one driver because of another one.
//! * Upstream: `pkg/volume/csi/nodeinfomanager` and `RegistrationHandler` of `pkg/volume/csi/csi_plugin.go`.

mod driver_table;
mod facts;
mod objects;
mod registrations;
mod writer;
mod manager;
mod registration_handler;
#[cfg(test)]
mod tests;

pub use driver_table::DriverTable;
pub use manager::{NodeInfoDeps, NodeInfoManager};
