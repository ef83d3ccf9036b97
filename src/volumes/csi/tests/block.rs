//! Volumes of mode Block.

use super::driver::disks::{attached_below, losetup};
use super::driver::{Behaviour, Mounts};
use super::world::{LIMIT, VOLUME, World};
use crate::base::clock;
use crate::model::PodUid;
use crate::volumes::VolumeError;
use serde_json::{Value, json};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};
use tokio::time::timeout;
use tonic::Code;

fn block(volume: &mut Value) {
    volume["spec"]["volumeMode"] = json!("Block");
}

/// The number of the device at a path, which may be a link.
fn number(path: &Path) -> io::Result<u64> {
    let found = fs::metadata(path)?;
    assert!(found.file_type().is_block_device(), "{}", path.display());
    Ok(found.rdev())
}

impl World {
    async fn with_devices() -> Option<Self> {
        Self::with_mounts(json!({"attachRequired": false, "podInfoOnMount": true})).await
    }

    async fn map(&self, pod: &str) -> Result<PathBuf, String> {
        self.publish_changed(pod, block).await
    }

    fn devices(&self, path: &str) -> PathBuf {
        let all = self.root().join("plugins/kubernetes.io/csi/volumeDevices");
        all.join(path)
    }

    fn disk(&self) -> u64 {
        number(&self.driver.volumes.device(VOLUME).expect("it is attached")).unwrap()
    }
}

#[tokio::test]
async fn a_device_is_staged_once_mapped_for_each_pod_and_undone_after_the_last() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    let path = world.map("a").await.unwrap();
    let link = "pods/a/volumeDevices/kubernetes.io~csi/pv1";
    assert_eq!(path, world.root().join(link));
    let published = world.devices("publish/pv1/a");
    assert_eq!(fs::read_link(&path).unwrap(), published);
    world.map("b").await.unwrap();
    let maps = ["pv1/dev/a", "pv1/dev/b"].map(|map| world.devices(map));
    for device in [&path, &maps[0], &maps[1]] {
        assert_eq!(number(device).unwrap(), world.disk());
    }
    assert_eq!(attached_below(&world.root()), Vec::<PathBuf>::new());
    let calls = world.driver.journal.entries();
    let calls = calls.iter().filter(|call| call.method.ends_with("Volume"));
    let calls: Vec<_> = calls.collect();
    let staging = world.devices("staging/pv1");
    for call in &calls {
        assert!(call.is_block && call.mount_flags.is_empty() && call.fs_type.is_empty());
        assert_eq!(Path::new(&call.staging_path), staging);
    }
    assert_eq!(Path::new(&calls[1].target_path), published);
    assert_eq!(calls[1].pod_info["csi.storage.k8s.io/pod.uid"], "a");
    let data = fs::read(world.devices("pv1/data/vol_data.json")).unwrap();
    let data: Value = serde_json::from_slice(&data).unwrap();
    assert_eq!((&data["specVolID"], &data["volumeHandle"]), (&json!("pv1"), &json!(VOLUME)));
    let events = world.csi.sources().events.recent();
    let mapped = events.iter().filter(|it| it.reason == "SuccessfulMountVolume");
    let mapped: Vec<_> = mapped.map(|it| (it.object.name.as_str(), it.message.clone())).collect();
    let text = |what: &str, path: PathBuf| {
        format!("MapVolume.MapPodDevice succeeded for volume \"pv1\" {what} {path:?}")
    };
    let of_pod = world.root().join("pods/a/volumeDevices/kubernetes.io~csi");
    for text in [text("globalMapPath", world.devices("pv1/dev")), text("volumeMapPath", of_pod)] {
        assert!(mapped.contains(&("pod-a", text)), "{mapped:?}");
    }
    // The call has the kubelet's own path.
    world.csi.measure(Duration::ZERO).await;
    let stats = world.driver.journal.of("NodeGetVolumeStats");
    let mut asked: Vec<_> = stats.iter().map(|call| PathBuf::from(&call.target_path)).collect();
    asked.sort();
    assert_eq!(asked, maps);

    world.unpublish("a").await.unwrap();
    assert!(fs::symlink_metadata(&path).is_err() && !maps[0].exists() && !published.exists());
    assert!(maps[1].exists());
    assert!(world.driver.volumes.get(VOLUME).unwrap().staged.is_some());
    world.unpublish("b").await.unwrap();
    world.idle().await;
    let text = world.metrics.text();
    for (operation, count) in [("map_volume", 2), ("unmap_volume", 2), ("unmap_device", 1)] {
        let sample = format!(
            "operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}} {count}\n"
        );
        assert!(text.contains(&sample), "{sample}{text}");
    }
}

#[tokio::test]
async fn a_driver_that_does_not_stage_has_its_device_mapped_as_well() {
    let Some(mut world) = World::with_devices().await else {
        return;
    };
    world.deregister();
    world.driver.restart(|config| config.stage_unstage = false);
    world.register();
    let path = world.map("a").await.unwrap();
    assert_eq!(number(&path).unwrap(), world.disk());
    world.unpublish("a").await.unwrap();
    world.idle().await;
    assert_eq!(world.calls(), ["NodePublishVolume", "NodeUnpublishVolume"]);
}

#[tokio::test]
async fn a_device_that_cannot_be_mapped_is_an_error_of_its_step_and_is_tried_again() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    let script = &world.driver.script;
    let refused = Behaviour::fail(Code::InvalidArgument);
    script.once("NodeStageVolume", refused.clone());
    let error = world.map("a").await.unwrap_err();
    assert_eq!(
        error,
        "MapVolume.SetUpDevice failed for volume \"pv1\" : rpc error: code = InvalidArgument desc = as scripted"
    );
    assert!(!world.devices("staging/pv1").exists(), "nothing was staged");
    script.once("NodePublishVolume", refused);
    let error = world.map("a").await.unwrap_err();
    assert!(
        error.starts_with("MapVolume.MapPodDevice failed for volume \"pv1\" : rpc error"),
        "{error}"
    );
    // Success without a device.
    script.once("NodePublishVolume", Behaviour::Skip);
    let error = world.map("a").await.unwrap_err();
    assert!(error.contains("MapPodDevice failed") && error.contains("cannot resolve"), "{error}");
    world.map("a").await.unwrap();
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn what_a_go_kubelet_has_mapped_is_undone_with_its_loop_device() {
    let Some(mut world) = World::with_devices().await else {
        return;
    };
    world.map("a").await.unwrap();
    let map = world.devices("pv1/dev/a");
    losetup(&["-f"], &map).unwrap();
    assert_eq!(attached_below(&world.root()), [map]);
    // It has no records.
    fs::remove_dir_all(world.root().join("csi_volumes")).unwrap();
    world.restart().await;
    assert_eq!(world.csi.count(), 1);
    // The pod was deleted by force, and its directory is gone as well.
    fs::remove_dir_all(world.root().join("pods/a")).unwrap();
    world.csi.pods_are_known(|_| false);
    world.idle().await;
}

#[tokio::test]
async fn a_restarted_kubelet_maps_what_is_mapped_again_and_keeps_its_path() {
    let Some(mut world) = World::with_devices().await else {
        return;
    };
    let path = world.map("a").await.unwrap();
    world.restart().await;
    let volume = &world.request("a", block).spec.identity.clone();
    let kept = world.csi.published_earlier(&PodUid::from("a"), volume);
    assert_eq!(kept.as_ref(), Some(&path));
    world.csi.pods_are_known(|_| true);
    assert_eq!(world.map("a").await.as_ref(), Ok(&path));
    assert_eq!(number(&path).unwrap(), world.disk());
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_device_that_has_gone_does_not_keep_its_pod() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    let path = world.map("a").await.unwrap();
    let published = world.devices("publish/pv1/a");
    for mount in [&world.devices("pv1/dev/a"), &published] {
        // The kubelet has it open.
        rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::remove_file(mount).unwrap();
    }
    fs::remove_file(path).unwrap();
    losetup(&["-d"], &world.driver.volumes.device(VOLUME).unwrap()).unwrap();
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn the_number_of_a_mapped_device_is_given_to_no_other() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    world.map("a").await.unwrap();
    let device = world.driver.volumes.device(VOLUME).unwrap();
    losetup(&["-d"], &device).unwrap();
    // The kubelet has it open.
    assert_eq!(world.driver.volumes.device(VOLUME), Some(device));
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn one_volume_of_a_driver_is_not_used_in_two_modes() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    world.map("a").await.unwrap();
    let error = world.publish_changed("b", |volume| volume["metadata"]["name"] = json!("pv2"));
    let error = error.await.unwrap_err();
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"pv2\" : kubernetes.io/csi/csi.example.com^vol-a is on the node with volumeMode Block, by another PersistentVolume"
    );
    world.unpublish("b").await.unwrap();
    world.unpublish("a").await.unwrap();
    world.idle().await;
    world.publish("b").await.unwrap();
    world.unpublish("b").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_device_of_a_pod_that_nobody_knows_is_not_unstaged() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    world.map("a").await.unwrap();
    let foreign = world.devices("pv1/dev/foreign");
    fs::write(&foreign, "").unwrap();
    let device = world.driver.volumes.device(VOLUME).unwrap();
    crate::host::mount::bind(&device, &foreign).unwrap();
    world.unpublish("a").await.unwrap();
    let waits = async || {
        let waits = world.csi.0.volumes.lock().values().next().and_then(|volume| {
            let state = volume.state.lock();
            state.machine.waits_for(None, clock::instant())
        });
        waits.unwrap_or_default()
    };
    let refused = async {
        while !waits().await.contains("is still referenced from other Pods") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let refused = tokio::time::timeout(super::world::LIMIT, refused).await;
    assert!(refused.is_ok(), "{}", waits().await);
    assert_eq!(world.driver.journal.of("NodeUnstageVolume").len(), 0);
    crate::host::mount::unmount(&foreign).unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_driver_without_devices_has_no_block_volumes() {
    let world = World::with(json!({"attachRequired": false}), Mounts::None).await;
    let error = world.map("a").await.unwrap_err();
    assert!(error.ends_with("desc = block volumes are not supported"), "{error}");
    let unpublished: Result<(), VolumeError> = world.unpublish("a").await;
    unpublished.unwrap();
    world.idle().await;
}

/// The directories of a block volume are named after its PersistentVolume.
#[tokio::test]
async fn a_persistent_volume_that_was_made_anew_waits_until_its_predecessor_is_unstaged() {
    let Some(world) = World::with_devices().await else {
        return;
    };
    world.driver.add_volume("vol-b");
    let failing = Behaviour::fail(Code::Internal);
    world.driver.script.always("NodeUnstageVolume", failing);
    world.map("a").await.unwrap();
    world.unpublish("a").await.unwrap();
    let anew = |volume: &mut Value| {
        block(volume);
        volume["spec"]["csi"]["volumeHandle"] = json!("vol-b");
    };
    let error = world.publish_changed("b", anew).await.unwrap_err();
    let why = "the volume \"vol-a\" is still staged for the PersistentVolume pv1";
    assert!(error.contains(why), "{error}");
    assert!(world.driver.volumes.get("vol-b").unwrap().staged.is_none());
    world.driver.script.clear();
    let published = async { while world.publish_changed("b", anew).await.is_err() {} };
    timeout(LIMIT, published).await.expect("it is free");
    assert!(world.driver.volumes.get("vol-a").unwrap().staged.is_none());
    world.unpublish("b").await.unwrap();
    world.idle().await;
}
