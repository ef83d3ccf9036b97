//! The device manager with plugins that are real gRPC servers.

mod plugin;
mod watcher;

use super::{Affinities, AllocateError, DeviceAllocationError, DeviceManager, checkpoint, proto};
use crate::base::metrics::Metrics;
use crate::model::{Pod, fixture};
use crate::resources::topology;
use crate::state::device_capacity::Capacity;
use plugin::{FakePlugin, VERSION};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

const GPU: &str = "example.com/gpu";

/// Devices may be anywhere.
fn unaligned() -> Result<Affinities, topology::TopologyError> {
    Ok(Affinities::new())
}

/// A manager that serves registrations in a directory of its own.
struct World {
    manager: DeviceManager,
    metrics: Metrics,
    plugins: PathBuf,
    _stop: DropGuard,
    root: tempfile::TempDir,
}

impl World {
    async fn start() -> World {
        let root = tempfile::tempdir().unwrap();
        let metrics = Metrics::new();
        let manager = DeviceManager::open(root.path(), &metrics);
        let stop = CancellationToken::new();
        tokio::spawn(manager.clone().run(stop.clone()));
        let plugins = root.path().join("device-plugins");
        until("the socket is there", || plugins.join("kubelet.sock").exists()).await;
        World { manager, metrics, plugins, _stop: stop.drop_guard(), root }
    }

    fn plugin(&self, name: &str) -> FakePlugin {
        FakePlugin::listen(&self.plugins, name)
    }

    fn amount(&self, resource: &str) -> Option<Capacity> {
        self.manager.capacity().borrow().get(resource).copied()
    }

    async fn until_amount(&self, resource: &str, capacity: usize, allocatable: usize) {
        let expected = Capacity { capacity, allocatable, is_forgotten: false };
        until(&format!("{resource} is {expected:?}"), || self.amount(resource) == Some(expected))
            .await;
    }

    /// How the next allocation for a pod ends.
    async fn allocate(&self, pod: &Pod) -> Result<(), DeviceAllocationError> {
        let ended = async {
            loop {
                match self.manager.allocate(pod, unaligned) {
                    Ok(()) => return Ok(()),
                    Err(AllocateError::Failed(error)) if !error.is_transient() => {
                        return Err(error);
                    }
                    Err(_) => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        timeout(Duration::from_secs(30), ended).await.unwrap()
    }

    fn saved(&self) -> checkpoint::DeviceData {
        let text = fs::read(self.plugins.join("kubelet_internal_checkpoint")).unwrap();
        checkpoint::decode(&text).unwrap()
    }
}

async fn until(what: &str, fact: impl Fn() -> bool) {
    for _ in 0..3000 {
        if fact() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("not true in time: {what}");
}

fn pod(uid: &str, amount: u64) -> Pod {
    requesting(uid, GPU, amount)
}

fn requesting(uid: &str, resource: &str, amount: u64) -> Pod {
    let limits = json!({"limits": {resource: amount.to_string()}});
    fixture::pod(&format!("/{uid}/{uid}"), fixture::spec([("main", Some(limits))]))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_registrations_the_newer_one_counts_however_late_the_older_responds() {
    let world = World::start().await;
    let (older, newer) = (world.plugin("older.sock"), world.plugin("newer.sock"));
    older.answer(false);
    older.send(&["old"]);
    newer.send(&["new1", "new2"]);
    let waiting = async { older.register(GPU, VERSION).await };
    let others = async {
        // The older one has begun.
        sleep(Duration::from_millis(300)).await;
        newer.register(GPU, VERSION).await.unwrap();
        world.until_amount(GPU, 2, 2).await;
        older.answer(true);
    };
    let (registered, ()) = tokio::join!(waiting, others);
    assert!(registered.is_err(), "a newer registration is there");
    sleep(Duration::from_millis(300)).await;
    world.until_amount(GPU, 2, 2).await;
    world.allocate(&pod("u", 1)).await.unwrap();
    assert_eq!((older.calls().len(), newer.calls().len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_replaced_plugins_stream_changes_nothing() {
    let world = World::start().await;
    let (older, newer) = (world.plugin("older.sock"), world.plugin("newer.sock"));
    older.send(&["a"]);
    newer.send(&["a", "b"]);
    older.register(GPU, VERSION).await.unwrap();
    world.until_amount(GPU, 1, 1).await;
    newer.register(GPU, VERSION).await.unwrap();
    older.end_streams();
    world.until_amount(GPU, 2, 2).await;
    sleep(Duration::from_millis(300)).await;
    world.until_amount(GPU, 2, 2).await;
    newer.end_streams();
    world.until_amount(GPU, 2, 0).await;
}

#[tokio::test]
async fn what_a_plugin_had_is_no_capacity_once_it_has_been_gone_for_long() {
    let world = World::start().await;
    let plugin = world.plugin("gpu.sock");
    plugin.send(&["a", "b"]);
    plugin.register(GPU, VERSION).await.unwrap();
    world.until_amount(GPU, 2, 2).await;
    plugin.end_streams();
    world.until_amount(GPU, 2, 0).await;
    sleep(Duration::from_millis(300)).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
    world.until_amount(GPU, 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_order_many_registrations_end_in_one_of_them_serves() {
    let world = World::start().await;
    for round in 0..20 {
        let plugins: Vec<_> = (0..4).map(|n| world.plugin(&format!("{round}-{n}.sock"))).collect();
        for plugin in &plugins {
            plugin.send(&["a"]);
        }
        let registering = plugins.iter().map(|plugin| plugin.register(GPU, VERSION));
        let registered = futures::future::join_all(registering).await;
        assert!(registered.iter().any(Result::is_ok));
        world.until_amount(GPU, 1, 1).await;
        let uid = format!("u{round}");
        world.allocate(&pod(&uid, 1)).await.unwrap();
        world.manager.release(&uid.as_str().into());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_is_there_only_once_it_is_recorded() {
    let world = World::start().await;
    let plugin = world.plugin("gpu.sock");
    plugin.send(&["a"]);
    plugin.register(GPU, VERSION).await.unwrap();
    world.until_amount(GPU, 1, 1).await;
    let file = world.plugins.join("kubelet_internal_checkpoint");
    until("the devices are saved", || file.is_file()).await;
    // Another save may come between the two.
    until("a directory is in its place", || {
        let _ = fs::remove_file(&file);
        fs::create_dir(&file).is_ok()
    })
    .await;
    let pod = pod("u", 1);
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    for _ in 0..2 {
        let error = world.allocate(&pod).await.unwrap_err();
        assert!(matches!(error, DeviceAllocationError::Checkpoint(_)), "{error}");
        let options = world.manager.run_options(&pod, &container).await;
        let error = options.unwrap_err();
        assert!(matches!(error, DeviceAllocationError::Checkpoint(_)), "{error}");
    }
    fs::remove_dir(&file).unwrap();
    world.allocate(&pod).await.unwrap();
    let entries = world.saved().pod_device_entries.unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(plugin.calls().len(), 1, "prepared once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_with_too_many_devices_is_not_used_and_harms_no_other() {
    let world = World::start().await;
    let (good, greedy) = (world.plugin("good.sock"), world.plugin("greedy.sock"));
    good.send(&["a"]);
    good.register(GPU, VERSION).await.unwrap();
    let many = (0..super::state::MAX_DEVICES).map(|n| plugin::device(&format!("{n}")));
    greedy.send_devices(many.collect());
    greedy.register("example.com/greedy", VERSION).await.unwrap();
    world.until_amount(GPU, 1, 1).await;
    until("the stream is ended", || {
        world.amount("example.com/greedy").is_some() && world.manager.clients() == 1
    })
    .await;
    assert_eq!(world.amount("example.com/greedy"), Some(Capacity::default()));
    world.allocate(&pod("u", 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_chooses_and_one_that_never_responds_holds_up_its_own_pods_only() {
    let world = World::start().await;
    let (good, stuck) = (world.plugin("good.sock"), world.plugin("stuck.sock"));
    good.options(proto::DevicePluginOptions {
        get_preferred_allocation_available: true,
        ..proto::DevicePluginOptions::default()
    });
    good.send(&["a", "b", "c"]);
    stuck.send(&["x"]);
    stuck.allocates(Arc::new(|_| None));
    good.register(GPU, VERSION).await.unwrap();
    stuck.register("example.com/stuck", VERSION).await.unwrap();
    world.until_amount(GPU, 3, 3).await;
    world.until_amount("example.com/stuck", 1, 1).await;
    let waits = requesting("waits", "example.com/stuck", 1);
    let in_progress = Err(AllocateError::InProgress);
    assert_eq!(world.manager.allocate(&waits, unaligned), in_progress);
    until("the plugin is called", || stuck.calls().len() == 1).await;
    world.allocate(&pod("u", 1)).await.unwrap();
    assert_eq!(good.calls(), [["c"]], "what it prefers");
    assert_eq!(world.manager.allocate(&waits, unaligned), in_progress);
    assert_eq!(stuck.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_are_counted_also_if_they_are_refused() {
    let world = World::start().await;
    let plugin = world.plugin("gpu.sock");
    let error = plugin.register(GPU, "v1alpha1").await.unwrap_err();
    assert!(error.message().contains("is not supported by kubelet"), "{error}");
    for n in 0..2000 {
        let name = format!("n{n}");
        plugin.register(&name, VERSION).await.unwrap_err();
    }
    let text = world.metrics.text();
    let counts =
        text.lines().filter(|line| line.starts_with("kubelet_device_plugin_registration_total{"));
    let counts: Vec<_> = counts.collect();
    let first = format!("kubelet_device_plugin_registration_total{{resource_name=\"{GPU}\"}} 1");
    assert!(counts.contains(&first.as_str()), "{text}");
    assert!(counts.len() < 1000, "there is a limit to names");
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_earlier_plugins_are_removed_at_start_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let plugins = root.path().join("device-plugins");
    fs::create_dir_all(plugins.join("directory")).unwrap();
    fs::write(plugins.join("file"), "data").unwrap();
    let elsewhere = root.path().join("elsewhere.sock");
    let _other = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
    let _old = std::os::unix::net::UnixListener::bind(plugins.join("old.sock")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, plugins.join("link.sock")).unwrap();
    std::os::unix::fs::symlink("nowhere", plugins.join("broken.sock")).unwrap();
    let manager = DeviceManager::open(root.path(), &Metrics::new());
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(manager.run(stop));
    until("it listens", || plugins.join("kubelet.sock").exists()).await;
    let there = |name: &str| plugins.join(name).symlink_metadata().is_ok();
    assert!(!there("old.sock") && !there("link.sock"));
    assert!(there("file") && there("directory") && there("broken.sock"));
    assert!(elsewhere.exists());
}
