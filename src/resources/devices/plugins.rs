//! Registered plugins and their devices.
//!
//! The kubelet does not reconnect when a plugin's stream ends, as upstream: the plugin has to register again.

use super::client::PluginClient;
use super::manager::{DeviceManager, PluginConnection};
use super::proto;
use super::request::is_extended_resource;
use super::state::{DeviceMap, PluginDevice, PluginId};
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{clock, spawn_scoped};
use crate::resources::plugin_manager::connection::go_status_text;
use crate::resources::plugin_manager::{Deregister, PluginHandler, RegisteredPlugin};
use futures::future::BoxFuture;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tokio::time::sleep;

/// Version of the device plugin API.
const VERSION: &str = "v1beta1";
/// Value of `health` for usable devices.
const HEALTHY: &str = "Healthy";
/// Minimum and maximum delay between two lists of one plugin.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// The lists of one plugin use at most 1/`TIME_SHARE_DIVISOR` of the time of one thread.
const TIME_SHARE_DIVISOR: u32 = 10;

/// Validates a registration request; texts as upstream's.
pub(super) fn check_request(version: &str, resource: &str) -> Result<(), String> {
    if version != VERSION {
        return Err(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is [\"{VERSION}\"]"
        ));
    }
    check_name(resource)
}

/// Validates a plugin that was found by the plugin watcher; texts as upstream's.
fn check_found(versions: &[String], resource: &str) -> Result<(), String> {
    if !versions.iter().any(|version| version == VERSION) {
        return Err(format!(
            "manager version, {VERSION}, is not among plugin supported versions [{}]",
            versions.join(" ")
        ));
    }
    check_name(resource).map_err(|error| format!("invalid name of device plugin socket: {error}"))
}

fn check_name(resource: &str) -> Result<(), String> {
    if is_extended_resource(resource) {
        Ok(())
    } else {
        Err(format!("the ResourceName {resource:?} is invalid"))
    }
}

/// The socket for the endpoint of a registration, which has to be in the directory.
pub(super) fn socket_of(directory: &Path, endpoint: &str) -> Result<PathBuf, String> {
    let relative = endpoint.trim_start_matches('/');
    let mut parts = Path::new(relative).components();
    if relative.is_empty()
        || parts.any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err(format!("the endpoint {endpoint:?} is not in the directory of device plugins"));
    }
    Ok(directory.join(relative))
}

impl PluginHandler for DeviceManager {
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String> {
        check_found(&plugin.versions, &plugin.name)
    }

    fn register(&self, plugin: RegisteredPlugin) -> BoxFuture<'_, Result<Deregister, String>> {
        Box::pin(async move {
            let id = self.connect(&plugin.name, &plugin.endpoint).await?;
            let manager = self.clone();
            let gone = async move { manager.disconnect(&plugin.name, id).await };
            Ok(Box::pin(gone) as Deregister)
        })
    }
}

impl DeviceManager {
    /// Connects to a plugin and watches its devices. Replaces an earlier plugin of the same resource.
    pub(super) async fn connect(&self, resource: &str, socket: &Path) -> Result<PluginId, String> {
        let id = self.state().next_plugin_id();
        let (client, options) = PluginClient::connect(socket).await?;
        {
            // The lock is held while the task is spawned, because the task needs its connection in the map.
            let mut plugins = self.0.plugins.lock();
            if !plugins.state.has_room_for(resource) {
                return Err("too many resources have been registered".into());
            }
            if !plugins.state.set_connected(resource, id, options) {
                return Err("another plugin has registered the resource since".into());
            }
            plugins.clients.retain(|_, known| known.resource != resource);
            let watch = self.clone().watch(resource.to_owned(), id, client.clone());
            let connection = PluginConnection {
                resource: resource.into(),
                client,
                _watch: spawn_scoped(PanicScope::Connection, watch),
            };
            plugins.clients.insert(id, connection);
        }
        tracing::info!(resourceName = resource, "Device plugin connected");
        self.publish([]).await;
        Ok(id)
    }

    async fn watch(self, resource: String, id: PluginId, client: PluginClient) {
        let reading =
            catch_panic(PanicScope::Connection, self.process_lists(&resource, id, client));
        let ended = tokio::select! {
            ended = reading => ended.unwrap_or_else(|error| error.to_string()),
            () = self.0.stop.cancelled() => return,
        };
        tracing::error!(
            resourceName = resource,
            err = ended,
            "ListAndWatch ended unexpectedly for device plugin"
        );
        self.disconnect(&resource, id).await;
    }

    /// Processes device lists; returns why the stream ended.
    async fn process_lists(&self, resource: &str, id: PluginId, client: PluginClient) -> String {
        let mut stream = match client.list_and_watch().await {
            Ok(stream) => stream,
            Err(status) => return go_status_text(&status),
        };
        loop {
            let list = match stream.message().await {
                Ok(Some(list)) => list,
                Ok(None) => return "EOF".into(),
                Err(status) => return go_status_text(&status),
            };
            let began = clock::instant();
            let total = list.devices.len();
            let devices = device_map(list);
            let healthy = devices.values().filter(|device| device.healthy).count();
            let mut took = clock::since(began);
            let listed = {
                let mut state = self.state();
                let began = clock::instant();
                let listed = state.set_devices(resource, id, devices);
                took += clock::since(began);
                listed
            };
            let pods = match listed {
                Ok(pods) => pods,
                Err(error) => return error.to_string(),
            };
            tracing::debug!(
                resourceName = resource,
                totalCount = total,
                healthyCount = healthy,
                "Processed device updates for resource"
            );
            self.publish(pods).await;
            // Limits the rate of lists.
            sleep(pause_after(took)).await;
        }
    }

    /// Handles the end of a plugin's connection.
    pub(super) async fn disconnect(&self, resource: &str, id: PluginId) {
        let (counted, connection) = {
            let mut plugins = self.0.plugins.lock();
            let counted = plugins.state.set_disconnected(resource, id, clock::instant());
            (counted, plugins.clients.remove(&id))
        };
        if counted {
            tracing::info!(resourceName = resource, "Endpoint became unhealthy");
            self.0.housekeeping.notify_one();
            self.publish([]).await;
        }
        // Aborts the current task, if this runs in the plugin's own task.
        drop(connection);
    }
}

/// The delay after a list that took this time to process.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(TIME_SHARE_DIVISOR).clamp(MIN_INTERVAL, MAX_INTERVAL)
}

fn device_map(list: proto::ListAndWatchResponse) -> DeviceMap {
    let device = |device: proto::Device| {
        let nodes = device.topology.unwrap_or_default().nodes;
        let numa_nodes = nodes.into_iter().map(|node| node.id).collect();
        let healthy = device.health == HEALTHY;
        (device.id, PluginDevice { healthy, numa_nodes })
    };
    list.devices.into_iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_below_the_directory() {
        let directory = Path::new("/d");
        for (endpoint, expected) in [
            ("a.sock", Some("/d/a.sock")),
            ("/a.sock", Some("/d/a.sock")),
            ("sub/a.sock", Some("/d/sub/a.sock")),
            ("./a.sock", Some("/d/./a.sock")),
            ("../a.sock", None),
            ("sub/../../a.sock", None),
            ("", None),
            ("/", None),
        ] {
            let found = socket_of(directory, endpoint).ok();
            assert_eq!(found.as_deref(), expected.map(Path::new), "{endpoint}");
        }
    }

    #[test]
    fn a_plugin_that_floods_waits_in_proportion_but_never_long() {
        for (took, pause) in [(0, 100), (5, 100), (50, 500), (1000, 2000), (u64::MAX, 2000)] {
            let found = pause_after(Duration::from_millis(took));
            assert_eq!(found, Duration::from_millis(pause), "{took}");
        }
    }

    #[test]
    fn what_a_plugin_says_of_itself_is_checked_with_upstreams_texts() {
        assert_eq!(check_request("v1beta1", "example.com/gpu"), Ok(()));
        assert_eq!(
            check_request("v1alpha1", "example.com/gpu").unwrap_err(),
            r#"requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]"#
        );
        assert_eq!(
            check_request("v1beta1", "gpu").unwrap_err(),
            r#"the ResourceName "gpu" is invalid"#
        );
        let versions = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(check_found(&versions(&["v1", "v1beta1"]), "example.com/gpu"), Ok(()));
        assert_eq!(
            check_found(&versions(&["v1", "v2"]), "example.com/gpu").unwrap_err(),
            "manager version, v1beta1, is not among plugin supported versions [v1 v2]"
        );
        assert_eq!(
            check_found(&versions(&["v1beta1"]), "gpu").unwrap_err(),
            r#"invalid name of device plugin socket: the ResourceName "gpu" is invalid"#
        );
    }
}
