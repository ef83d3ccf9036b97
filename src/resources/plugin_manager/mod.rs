//! Plugins of the node, which are found by their sockets below `plugins_registry`.
//!
//! * Owns: which sockets there are, and the task of each.
//! * Woken by: the directory; a timer, in case an event of it was lost.
//! * Must never wait for one plugin with another one.
//! * Answers to upstream's `pkg/kubelet/pluginmanager`.

pub mod connection;
#[cfg(test)]
pub(crate) mod tests;
mod watcher;

pub use watcher::run;

use futures::future::BoxFuture;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// The generated plugin registration messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod registration_proto {
    tonic::include_proto!("pluginregistration");
}

/// A plugin as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name: a resource, or a driver.
    pub name: String,
    /// Where it serves.
    pub endpoint: PathBuf,
    /// The versions, or the services, that it supports.
    pub versions: Vec<String>,
}

/// What is to be done when a registered plugin is gone.
pub type Deregister = BoxFuture<'static, ()>;

/// Serves the plugins of one type.
pub trait PluginHandler: Send + Sync {
    /// Checks what a plugin says of itself.
    ///
    /// # Errors
    /// It cannot be served.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    /// Takes a plugin from now on.
    fn register(&self, plugin: Plugin) -> BoxFuture<'_, Result<Deregister, String>>;
}

/// Those who serve plugins, by type.
pub type PluginHandlers = BTreeMap<&'static str, Arc<dyn PluginHandler>>;
