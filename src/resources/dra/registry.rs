//! Registered DRA drivers, and the plugin to call for each.

use super::client::DraService;
use crate::base::ScopedTask;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::Channel;

/// One registered plugin of a driver.
pub(super) struct RegisteredDraPlugin {
    pub(super) id: u64,
    pub(super) endpoint: PathBuf,
    pub(super) service: DraService,
    /// The connection; `None` while disconnected.
    pub(super) channel: watch::Sender<Option<Channel>>,
    /// Whether its health stream has delivered a report and is still open.
    pub(super) reports_health: bool,
    pub(super) _task: ScopedTask,
}

impl RegisteredDraPlugin {
    fn is_connected(&self) -> bool {
        self.channel.borrow().is_some()
    }
}

/// The registered drivers.
#[derive(Default)]
pub(super) struct DraDrivers {
    pub(super) plugins: BTreeMap<String, Vec<RegisteredDraPlugin>>,
    pub(super) next_id: u64,
    /// Pending deletions of ResourceSlices, by driver.
    pub(super) wipes: HashMap<String, ScopedTask>,
    /// Overrides the delay of these deletions in tests.
    pub(super) wiping_delay: Option<Duration>,
}

impl DraDrivers {
    pub(super) fn is_usable(&self, driver: &str) -> bool {
        let mut plugins = self.plugins.get(driver).into_iter().flatten();
        plugins.any(RegisteredDraPlugin::is_connected)
    }

    /// The last registered plugin that is connected; if none is, the last registered one.
    pub(super) fn plugin_to_call(&self, driver: &str) -> Option<&RegisteredDraPlugin> {
        let plugins = self.plugins.get(driver)?;
        let connected = plugins.iter().rfind(|plugin| plugin.is_connected());
        connected.or_else(|| plugins.last())
    }

    pub(super) fn set_reporting(&mut self, driver: &str, id: u64, reports: bool) {
        if let Some(plugin) = self.find(driver, id) {
            plugin.reports_health = reports;
        }
    }

    /// Whether a plugin of the driver reports the health of devices.
    pub(super) fn is_reporting(&self, driver: &str) -> bool {
        let mut plugins = self.plugins.get(driver).into_iter().flatten();
        plugins.any(|plugin| plugin.reports_health)
    }

    pub(super) fn find(&mut self, driver: &str, id: u64) -> Option<&mut RegisteredDraPlugin> {
        let mut plugins = self.plugins.get_mut(driver)?.iter_mut();
        plugins.find(|plugin| plugin.id == id)
    }
}
