//! Registrations with a handler that counts, and plugins that are real gRPC servers.

pub(crate) mod registrar;

use super::{Deregister, PluginHandler, PluginHandlers, RegisteredPlugin, registration_proto, run};
use crate::base::connections;
use futures::future::BoxFuture;
use registrar::FakeRegistrar;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(30);

/// How many plugins are registered.
#[derive(Clone, Default)]
struct Counting(watch::Sender<i32>);

impl PluginHandler for Counting {
    fn validate(&self, _: &RegisteredPlugin) -> Result<(), String> {
        Ok(())
    }

    fn register(&self, _: RegisteredPlugin) -> BoxFuture<'_, Result<Deregister, String>> {
        self.0.send_modify(|count| *count += 1);
        let count = self.0.clone();
        let deregister = async move { count.send_modify(|count| *count -= 1) };
        Box::pin(async { Ok(Box::pin(deregister) as Deregister) })
    }
}

impl Counting {
    async fn wait(&self, expected: i32) {
        let mut count = self.0.subscribe();
        let reached = timeout(LONG, count.wait_for(|count| *count == expected)).await;
        reached.expect("the count").unwrap();
    }
}

fn registrar(socket: &Path) -> FakeRegistrar {
    FakeRegistrar::new("DevicePlugin", "example.com/gpu", socket, &["v1beta1"])
}

#[tokio::test]
async fn the_registry_is_closed_to_other_users() {
    let dir = tempfile::tempdir().unwrap();
    let registry = dir.path().join("plugins_registry");
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(run(PluginHandlers::new(), registry.clone(), stop));
    let made = async {
        while !registry.exists() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, made).await.expect("a directory");
    let mode = std::fs::metadata(&registry).unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0, "{mode:o}");
}

#[tokio::test]
async fn a_plugin_whose_socket_goes_while_it_is_notified_is_deregistered() {
    let dir = tempfile::tempdir().unwrap();
    let counting = Counting::default();
    let mut handlers = PluginHandlers::new();
    handlers.insert("DevicePlugin", Arc::new(counting.clone()));
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(run(handlers, dir.path().to_owned(), stop));
    let socket = dir.path().join("gpu.sock");
    let plugin = registrar(&socket).silent().listen(&socket);
    assert!(plugin.registered().await.plugin_registered);
    counting.wait(1).await;
    std::fs::remove_file(&socket).unwrap();
    counting.wait(0).await;
}
