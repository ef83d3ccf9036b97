//! Registered DRA drivers and their connections.
//!
//! A driver may have several plugins at the same time during a rolling update; the last registered one that is
//! connected is called.

use super::client::{DraDriver, DraService};
use super::error::DraError;
use super::health_proto::NodeWatchResourcesRequest;
use super::health_proto::dra_resource_health_client::DraResourceHealthClient;
use super::manager::DraManager;
use super::registry::RegisteredDraPlugin;
use super::slices;
use crate::base::panics::PanicScope;
use crate::base::{clock, spawn_scoped, wait_until};
use crate::model::validation::is_dns_subdomain;
use crate::resources::plugin_manager::connection::{CONNECT_TIMEOUT, dial_watched, go_status_text};
use crate::resources::plugin_manager::{Deregister, PluginHandler, RegisteredPlugin};
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Maximum number of drivers, and of plugins of one driver.
const MAX_DRIVERS: usize = 256;
const MAX_PLUGINS: usize = 16;
/// The delay before a reconnect, doubling from `FIRST_DELAY` to `MAX_DELAY`.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// How long a driver may be unusable before its ResourceSlices are deleted.
const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Delay after a health stream has ended, and minimum interval between two reports.
const HEALTH_RETRY: Duration = Duration::from_secs(5);
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

impl PluginHandler for DraManager {
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String> {
        choose_service(plugin).map(drop)
    }

    fn register(&self, plugin: RegisteredPlugin) -> BoxFuture<'_, Result<Deregister, String>> {
        let registered = self.add(&plugin).map(|id| {
            let manager = self.clone();
            let gone = async move { manager.remove(&plugin, id) };
            Box::pin(gone) as Deregister
        });
        Box::pin(async move { registered })
    }
}

fn choose_service(plugin: &RegisteredPlugin) -> Result<DraService, String> {
    // The name becomes part of a field selector.
    if !is_dns_subdomain(&plugin.name) {
        return Err(format!("the DRA driver name {:?} is invalid", plugin.name));
    }
    DraService::choose(&plugin.versions).map_err(|error| {
        format!(
            "invalid supported gRPC versions of DRA driver plugin {} at endpoint {}: {error}",
            plugin.name,
            plugin.endpoint.display()
        )
    })
}

impl DraManager {
    fn add(&self, plugin: &RegisteredPlugin) -> Result<u64, String> {
        let RegisteredPlugin { name, endpoint, .. } = plugin;
        let service = choose_service(plugin)?;
        let id = {
            let mut drivers = self.0.drivers.lock();
            let id = drivers.next_id;
            drivers.next_id += 1;
            let is_new = !drivers.plugins.contains_key(name);
            if is_new && drivers.plugins.len() >= MAX_DRIVERS {
                return Err("too many DRA drivers have been registered".into());
            }
            let plugins = drivers.plugins.entry(name.clone()).or_default();
            if plugins.iter().any(|known| known.endpoint == *endpoint) {
                return Err(format!(
                    "endpoint {} already registered for DRA driver plugin {name}",
                    endpoint.display()
                ));
            }
            if plugins.len() >= MAX_PLUGINS {
                return Err(format!("too many plugins of DRA driver {name}"));
            }
            let connecting = self.clone().maintain_connection(name.clone(), id, endpoint.clone());
            plugins.push(RegisteredDraPlugin {
                id,
                endpoint: endpoint.clone(),
                service,
                channel: watch::Sender::default(),
                reports_health: false,
                _task: spawn_scoped(PanicScope::Connection, connecting),
            });
            id
        };
        tracing::info!(driverName = name, endpoint = %endpoint.display(), "Registered DRA plugin");
        self.update_slice_deletion(name);
        Ok(id)
    }

    fn remove(&self, plugin: &RegisteredPlugin, id: u64) {
        let removed = {
            let mut drivers = self.0.drivers.lock();
            let Some(plugins) = drivers.plugins.get_mut(&plugin.name) else {
                return;
            };
            let removed = plugins.extract_if(.., |known| known.id == id);
            let removed: Vec<_> = removed.collect();
            if plugins.is_empty() {
                drivers.plugins.remove(&plugin.name);
            }
            removed
        };
        drop(removed);
        tracing::info!(driverName = plugin.name, endpoint = %plugin.endpoint.display(), "Unregistered DRA plugin");
        self.clear_health(&plugin.name, id);
        self.update_slice_deletion(&plugin.name);
    }

    /// Maintains a connection to a plugin until the task is aborted.
    async fn maintain_connection(self, driver: String, id: u64, endpoint: PathBuf) {
        let mut delay = FIRST_DELAY;
        let mut last_error = None;
        loop {
            match dial_watched(&endpoint).await {
                Ok((channel, lost)) => {
                    self.set_connection(&driver, id, Some(channel.clone()));
                    let watching = self.watch_health(&driver, id, channel);
                    let _: Option<()> = lost.run_until_cancelled(watching).await;
                    self.set_connection(&driver, id, None);
                    self.clear_health(&driver, id);
                    delay = FIRST_DELAY;
                    last_error = None;
                }
                Err(error) => {
                    if last_error.as_ref() != Some(&error) {
                        tracing::warn!(driverName = driver, endpoint = %endpoint.display(), err = error, "Failed to connect to DRA plugin, will retry");
                    }
                    last_error = Some(error);
                }
            }
            sleep(delay).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    fn set_connection(&self, driver: &str, id: u64, channel: Option<Channel>) {
        let connected = channel.is_some();
        if let Some(plugin) = self.0.drivers.lock().find(driver, id) {
            plugin.channel.send_replace(channel);
        }
        tracing::debug!(driverName = driver, connected, "Connection changed");
        self.update_slice_deletion(driver);
        if connected {
            self.wake_waiting(driver);
        }
    }

    /// Schedules the deletion of an unusable driver's ResourceSlices, or cancels it.
    fn update_slice_deletion(&self, driver: &str) {
        let Some(api) = self.0.api.clone() else {
            return;
        };
        let mut drivers = self.0.drivers.lock();
        if drivers.is_usable(driver) {
            drivers.wipes.remove(driver);
            return;
        }
        if drivers.wipes.contains_key(driver) {
            return;
        }
        let (manager, name) = (self.clone(), driver.to_owned());
        let delay = drivers.wiping_delay.unwrap_or(WIPING_DELAY);
        let wiping = async move {
            sleep(delay).await;
            slices::wipe(&api, &manager.0.node_name, Some(&name)).await;
            manager.0.drivers.lock().wipes.remove(&name);
        };
        let stop = self.0.stop.clone();
        let task = spawn_scoped(PanicScope::Other, async move {
            stop.run_until_cancelled(wiping).await;
        });
        drivers.wipes.insert(driver.to_owned(), task);
    }

    #[cfg(test)]
    pub(super) fn set_wiping_delay(&self, delay: Duration) {
        self.0.drivers.lock().wiping_delay = Some(delay);
    }

    /// Whether a driver has registered.
    pub(super) fn is_registered(&self, driver: &str) -> bool {
        self.0.drivers.lock().plugins.contains_key(driver)
    }

    /// Waits until a driver is connected, with a timeout.
    pub(super) async fn driver(&self, name: &str) -> Result<DraDriver, DraError> {
        let (service, mut channel) = {
            let drivers = self.0.drivers.lock();
            let plugin = drivers.plugin_to_call(name);
            let plugin = plugin.ok_or_else(|| DraError::NotRegistered(name.to_owned()))?;
            (plugin.service, plugin.channel.subscribe())
        };
        let connected = timeout(CONNECT_TIMEOUT, channel.wait_for(Option::is_some)).await;
        let channel = match connected {
            Ok(Ok(channel)) => channel.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let channel = channel.ok_or_else(|| DraError::NotConnected(name.to_owned()))?;
        Ok(DraDriver { name: name.to_owned(), service, channel, metrics: self.0.metrics.clone() })
    }

    /// Watches the device health that a plugin reports, until the task is aborted.
    async fn watch_health(&self, driver: &str, id: u64, channel: Channel) {
        loop {
            let status = self.health_reports(driver, id, channel.clone()).await;
            self.clear_health(driver, id);
            if status.code() == Code::Unimplemented {
                return std::future::pending().await;
            }
            tracing::debug!(
                driverName = driver,
                err = go_status_text(&status),
                "WatchResources health stream has ended"
            );
            sleep(HEALTH_RETRY).await;
        }
    }

    /// Processes the reports of one stream; returns why it ended.
    async fn health_reports(&self, driver: &str, id: u64, channel: Channel) -> Status {
        let mut client = DraResourceHealthClient::new(channel);
        let stream = client.node_watch_resources(NodeWatchResourcesRequest {});
        let mut stream = match stream.await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return status,
        };
        loop {
            let expiry = self.0.health.lock().next_expiry(driver);
            let report = tokio::select! {
                report = stream.message() => Some(report),
                () = wait_until(expiry) => None,
            };
            let now = clock::instant();
            let changed = match report {
                None => self.0.health.lock().expire(driver, now),
                Some(Ok(Some(report))) => {
                    self.0.drivers.lock().set_reporting(driver, id, true);
                    self.0.health.lock().report(driver, report.devices, now)
                }
                Some(Ok(None)) => return Status::unavailable("EOF"),
                Some(Err(status)) => return status,
            };
            self.health_changed(driver, &changed);
            // Limits the rate of reports.
            sleep(HEALTH_INTERVAL).await;
        }
    }

    /// Clears the health of a driver after a plugin's stream has ended. If another plugin of the driver still reports,
    /// as in a rolling update, the health is kept until it expires.
    fn clear_health(&self, driver: &str, id: u64) {
        let is_reported = {
            let mut drivers = self.0.drivers.lock();
            drivers.set_reporting(driver, id, false);
            drivers.is_reporting(driver)
        };
        if is_reported {
            return;
        }
        let changed = self.0.health.lock().clear(driver);
        self.health_changed(driver, &changed);
    }
}
