//! Registers plugins that create a socket below `plugins_registry`.
//!
//! * Owns: the known sockets, and one task for each.
//! * Woken by: inotify events of the directory; a timer, in case an event was lost.
//! * Must never let one plugin delay another one.
//! * Upstream: `pkg/kubelet/pluginmanager`.

pub mod connection;
#[cfg(test)]
pub(crate) mod tests;
mod watcher;

pub use watcher::run;

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The generated plugin registration messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod registration_proto {
    tonic::include_proto!("pluginregistration");
}

/// A plugin, as its `GetInfo` response describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredPlugin {
    /// Name of the resource or driver.
    pub name: String,
    /// Path of the socket to call.
    pub endpoint: PathBuf,
    /// Supported API versions or services.
    pub versions: Vec<String>,
}

/// Deregisters a plugin; has to be awaited when the plugin's socket is gone.
pub type Deregister = BoxFuture<'static, ()>;

/// Handles the plugins of one type.
pub trait PluginHandler: Send + Sync {
    /// Validates a plugin.
    ///
    /// # Errors
    /// The plugin cannot be registered.
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String>;

    /// Registers a plugin.
    fn register(&self, plugin: RegisteredPlugin) -> BoxFuture<'_, Result<Deregister, String>>;
}

/// Handlers by plugin type.
pub type PluginHandlers = BTreeMap<&'static str, Arc<dyn PluginHandler>>;
