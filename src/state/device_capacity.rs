//! Number of devices that device plugins offer, by resource.
//!
//! * Owns: capacity and allocatable of each extended resource. Allocatable becomes zero when the plugin disconnects,
//!   capacity after a grace period, and a day later the resource is removed.
//! * Woken by: the device manager, the only writer.
//! * Publishes: the amounts, for the node status.

use std::collections::BTreeMap;
use tokio::sync::watch;

/// The devices of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// All devices.
    pub capacity: usize,
    /// Healthy devices of a connected plugin.
    pub allocatable: usize,
    /// The plugin went long ago: once its capacity is zero in the Node, the resource is removed from it.
    pub is_forgotten: bool,
}

/// Devices by resource name.
pub type Capacities = BTreeMap<String, Capacity>;

/// Reading end; cheap to clone.
pub type DeviceCapacity = watch::Receiver<Capacities>;

/// Writing end, for the device manager alone.
#[derive(Debug)]
pub struct DeviceCapacityWriter(watch::Sender<Capacities>);

impl Default for DeviceCapacityWriter {
    fn default() -> Self {
        Self(watch::Sender::new(Capacities::new()))
    }
}

impl DeviceCapacityWriter {
    /// Returns a reading end.
    pub fn reader(&self) -> DeviceCapacity {
        self.0.subscribe()
    }

    /// Publishes the amounts; wakes readers only if they changed.
    pub fn set(&self, capacities: Capacities) {
        self.0.send_if_modified(|known| {
            let changed = *known != capacities;
            *known = capacities;
            changed
        });
    }
}
