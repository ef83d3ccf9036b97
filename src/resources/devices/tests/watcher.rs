//! Plugins that are found by their sockets.

use super::plugin::FakePlugin;
use super::{GPU, World, until};
use crate::resources::plugin_manager::tests::registrar::FakeRegistrar;
use crate::resources::plugin_manager::{self, PluginHandlers};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

fn watch(world: &World) -> (PathBuf, DropGuard) {
    let directory = world.root.path().join("plugins_registry");
    std::fs::create_dir(&directory).unwrap();
    let stop = CancellationToken::new();
    let mut handlers = PluginHandlers::new();
    handlers.insert("DevicePlugin", Arc::new(world.manager.clone()));
    let watching = plugin_manager::run(handlers, directory.clone(), stop.clone());
    tokio::spawn(watching);
    (directory, stop.drop_guard())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_types_that_are_not_served_yet_are_left_unanswered() {
    let world = World::start().await;
    let (directory, _stop) = watch(&world);
    let socket = directory.join("csi.sock");
    let registrar = FakeRegistrar::new("CSIPlugin", "driver.example", &socket, &["v1beta1"]);
    let registrar = registrar.listen(&socket);
    until("it describes itself", || registrar.infos() > 0).await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(registrar.statuses(), []);
    assert_eq!(registrar.infos(), 1, "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_is_registered_by_its_socket_or_a_link_to_it_until_that_is_gone() {
    let world = World::start().await;
    let plugin = FakePlugin::listen(world.root.path(), "gpu.sock");
    plugin.send(&["a"]);
    let elsewhere = world.root.path().join("registration.sock");
    let registrar = FakeRegistrar::new("DevicePlugin", GPU, &plugin.socket, &["v1beta1"]);
    let registrar = registrar.listen(&elsewhere);
    let (directory, _stop) = watch(&world);
    let link = directory.join("link.sock");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    world.until_amount(GPU, 1, 1).await;
    assert!(registrar.registered().await.plugin_registered);
    assert_eq!(registrar.statuses().len(), 1);
    std::fs::remove_file(&link).unwrap();
    world.until_amount(GPU, 1, 0).await;
}
