//! The registered drivers.
//!
//! During an update, two sockets of one driver are registered for a while. The one that registered last is called, and
//! if it is removed first, as after a failed update, the one before it is called again.

use super::client::NodeClient;
use super::error::CsiError;
use super::metrics::CsiMetrics;
use super::registration::{CsiVersion, check_replacement, highest_version};
use crate::resources::plugin_manager::RegisteredPlugin;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum number of drivers, and of sockets of one driver.
const MAX_DRIVERS: usize = 256;
const MAX_SOCKETS: usize = 16;

/// Identifies a registration of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationId(pub u64);

/// The table of registered drivers. Clones share it.
#[derive(Clone)]
pub struct CsiDrivers(Arc<CsiDriversInner>);

struct CsiDriversInner {
    table: Mutex<DriverTable>,
    changes: watch::Sender<u64>,
    metrics: CsiMetrics,
}

/// The registrations of each driver, oldest first; none is empty.
#[derive(Default)]
struct DriverTable {
    drivers: BTreeMap<String, Vec<DriverRegistration>>,
    next_id: u64,
}

struct DriverRegistration {
    id: RegistrationId,
    version: CsiVersion,
    client: NodeClient,
}

impl DriverTable {
    /// The registration that is in use.
    fn current(&self, name: &str) -> Option<&DriverRegistration> {
        self.drivers.get(name)?.last()
    }

    /// Checks a registration; `caller` is the operation that an error names.
    fn check(&self, caller: &str, plugin: &RegisteredPlugin) -> Result<CsiVersion, String> {
        let version = highest_version(caller, plugin)?;
        match self.drivers.get(&plugin.name) {
            None if self.drivers.len() >= MAX_DRIVERS => {
                return Err("too many CSI drivers have been registered".into());
            }
            Some(registrations) if registrations.len() >= MAX_SOCKETS => {
                return Err(format!("too many sockets of CSI driver {}", plugin.name));
            }
            _ => {}
        }
        if let Some(current) = self.current(&plugin.name) {
            check_replacement(caller, &plugin.name, &current.version, &version)?;
        }
        Ok(version)
    }
}

impl CsiDrivers {
    /// An empty table.
    pub fn new(metrics: CsiMetrics) -> Self {
        Self(Arc::new(CsiDriversInner {
            table: Mutex::default(),
            changes: watch::Sender::default(),
            metrics,
        }))
    }

    /// Checks whether a driver can be registered.
    ///
    /// # Errors
    /// Its name, endpoint or versions are invalid, a higher version of it is registered, or there are too many.
    pub fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String> {
        let table = self.0.table.lock();
        table.check("ValidatePlugin", plugin).map(drop)
    }

    /// Registers a driver. From now on its calls go to this socket. Needs a running tokio runtime.
    ///
    /// # Errors
    /// As [`Self::validate`].
    pub fn register(&self, plugin: &RegisteredPlugin) -> Result<RegistrationId, String> {
        let RegisteredPlugin { name, endpoint, .. } = plugin;
        let id = {
            let mut table = self.0.table.lock();
            let version = table.check("RegisterPlugin", plugin)?;
            let id = RegistrationId(table.next_id);
            table.next_id += 1;
            let client = NodeClient::new(name, endpoint, self.0.metrics.clone());
            let registrations = table.drivers.entry(name.clone()).or_default();
            registrations.push(DriverRegistration { id, version, client });
            id
        };
        tracing::info!(driverName = name, endpoint = %endpoint.display(), "Registered CSI driver");
        self.changed();
        Ok(id)
    }

    /// Removes a registration. The driver stays while another socket of it is registered. Returns whether the driver is
    /// gone by this.
    pub fn deregister(&self, name: &str, id: RegistrationId) -> bool {
        let (removed, is_gone) = {
            let mut table = self.0.table.lock();
            let Some(registrations) = table.drivers.get_mut(name) else {
                return false;
            };
            let removed = registrations.extract_if(.., |known| known.id == id);
            let removed: Vec<_> = removed.collect();
            let is_gone = registrations.is_empty();
            if is_gone {
                table.drivers.remove(name);
            }
            (removed, is_gone)
        };
        if removed.is_empty() {
            return false;
        }
        tracing::info!(driverName = name, isGone = is_gone, "Deregistered CSI driver");
        self.changed();
        is_gone
    }

    /// The driver of this name.
    pub fn get(&self, name: &str) -> Option<NodeClient> {
        let table = self.0.table.lock();
        table.current(name).map(|driver| driver.client.clone())
    }

    /// As [`Self::get`].
    ///
    /// # Errors
    /// [`CsiError::NotRegistered`].
    pub fn require(&self, name: &str) -> Result<NodeClient, CsiError> {
        let driver = self.get(name);
        driver.ok_or_else(|| CsiError::NotRegistered(name.to_owned()))
    }

    /// Changes with each registration and deregistration.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// The names of all drivers, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.table.lock().drivers.keys().cloned().collect()
    }

    fn changed(&self) {
        let changes = &self.0.changes;
        changes.send_modify(|number| *number = number.wrapping_add(1));
    }
}
