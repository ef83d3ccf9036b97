//! How many devices the node has of each resource of a device plugin.
//!
//! * Owns: the amounts, zero for resources whose plugins are gone.
//! * Woken by: the device manager, its one writer.
//! * Publishes: the amounts, for the status of the node.

use std::collections::BTreeMap;
use tokio::sync::watch;

/// Devices of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// All that there are.
    pub capacity: usize,
    /// Those that pods may have.
    pub allocatable: usize,
}

/// Devices by resource.
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
    /// A reader of it.
    pub fn reader(&self) -> DeviceCapacity {
        self.0.subscribe()
    }

    /// Publishes the amounts; readers are woken if they changed.
    pub fn set(&self, capacities: Capacities) {
        self.0.send_if_modified(|known| {
            let changed = *known != capacities;
            *known = capacities;
            changed
        });
    }
}
