//! The table of registered drivers, as this module uses it.

use crate::resources::plugin_manager::RegisteredPlugin;
use crate::volumes::csi::{CsiDrivers, NodeInfo, RegistrationId};
use futures::future::BoxFuture;

/// The table of registered drivers. A driver may have several registrations at a time, while its socket is replaced.
pub trait DriverTable: Send + Sync {
    /// Checks whether a plugin may be registered.
    ///
    /// # Errors
    /// It may not; upstream's text where it has one.
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String>;

    /// Adds a plugin; from now on volumes may use it. Returns the ID of the registration.
    ///
    /// # Errors
    /// The plugin cannot be registered.
    fn register(&self, plugin: &RegisteredPlugin) -> Result<u64, String>;

    /// Calls `NodeGetInfo` of the last registration of a driver.
    fn node_info<'a>(&'a self, driver: &'a str) -> BoxFuture<'a, Result<NodeInfo, String>>;

    /// Removes a registration.
    fn deregister(&self, driver: &str, id: u64);
}

impl DriverTable for CsiDrivers {
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String> {
        self.validate(plugin)
    }

    fn register(&self, plugin: &RegisteredPlugin) -> Result<u64, String> {
        self.register(plugin).map(|id| id.0)
    }

    fn node_info<'a>(&'a self, driver: &'a str) -> BoxFuture<'a, Result<NodeInfo, String>> {
        Box::pin(async move {
            let client = self.require(driver).map_err(|error| error.to_string())?;
            client.info().await.map_err(|error| error.to_string())
        })
    }

    fn deregister(&self, driver: &str, id: u64) {
        self.deregister(driver, RegistrationId(id));
    }
}
