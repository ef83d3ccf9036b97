//! The `fsGroup` of volumes.

use super::world::{LIMIT, VOLUME, World};
use crate::model::PodUid;
use crate::volumes::csi::manager::MAX_WALKS;
use crate::volumes::ownership::OwnershipWalk;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

fn object() -> Value {
    json!({"attachRequired": false, "fsGroupPolicy": "File"})
}

#[tokio::test]
async fn files_are_given_to_a_group_once_while_the_volume_is_staged() {
    let Some(mut world) = World::with_mounts(object()).await else {
        return;
    };
    let file = world.driver.volumes.data(VOLUME).join("file");
    fs::write(&file, "x").unwrap();
    let group = || fs::metadata(&file).unwrap().gid();
    let reset = || std::os::unix::fs::chown(&file, None, Some(0)).unwrap();
    world.publish_for_group("a", 4321).await.unwrap();
    assert_eq!(group(), 4321);
    // Neither for a second pod of the group, nor after a restart.
    reset();
    world.publish_for_group("b", 4321).await.unwrap();
    assert_eq!(group(), 0);
    world.restart().await;
    world.publish_for_group("a", 4321).await.unwrap();
    world.publish_for_group("c", 4321).await.unwrap();
    assert_eq!(group(), 0);
    // For another group, and for the next one after that.
    world.publish_for_group("d", 77).await.unwrap();
    assert_eq!(group(), 77);
    world.publish_for_group("e", 4321).await.unwrap();
    assert_eq!(group(), 4321);
    world.csi.pods_are_known(|_| true);
    for pod in ["a", "b", "c", "d", "e"] {
        world.unpublish(pod).await.unwrap();
    }
    world.idle().await;
    // Another node may have written to it.
    reset();
    world.publish_for_group("f", 4321).await.unwrap();
    assert_eq!(group(), 4321);
    world.unpublish("f").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_walk_is_explained_ends_with_its_pod_and_is_repeated_by_the_next_kubelet() {
    let Some(mut world) = World::with_mounts(object()).await else {
        return;
    };
    let file = world.driver.volumes.data(VOLUME).join("file");
    fs::write(&file, "x").unwrap();
    let walks = world.csi.0.walks.clone();
    let count = u32::try_from(MAX_WALKS).unwrap();
    let _all = walks.acquire_many(count).await.unwrap();
    let begin = async |world: &World, pod: &str| {
        let mut request = world.request(pod, |_| ());
        request.group = crate::volumes::VolumeGroup(Some(4321));
        let publish = tokio::spawn(world.csi.begin_publish(request).finish());
        let uid = PodUid::from(pod);
        let explained = async {
            loop {
                let waits = world.csi.waits_for(&uid, "data").unwrap_or_default();
                if waits.starts_with("setting volume ownership has been running for") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, explained).await.expect("an explanation");
        publish.abort();
    };
    begin(&world, "a").await;
    world.unpublish("a").await.unwrap();
    world.idle().await;
    begin(&world, "b").await;
    world.restart().await;
    world.publish_for_group("b", 4321).await.unwrap();
    assert_eq!(fs::metadata(&file).unwrap().gid(), 4321);
    world.unpublish("b").await.unwrap();
    world.csi.pods_are_known(|_| true);
    world.idle().await;
}

#[tokio::test]
async fn a_walk_that_takes_long_is_reported_in_events() {
    let world = World::with(object(), super::driver::Mounts::None).await;
    let request = Arc::new(world.request("a", |_| ()));
    let walk = OwnershipWalk::default();
    tokio::time::pause();
    let report = world.csi.0.report_progress(&request, "a/volumes/x", &walk);
    let _ = timeout(Duration::from_secs(100), report).await;
    let events = world.csi.sources().events.recent();
    let texts: Vec<_> =
        events.iter().map(|event| (&*event.reason, &*event.object.name, &*event.message)).collect();
    let reason = "VolumePermissionChangeInProgress";
    let advice = "Setting volume ownership for a/volumes/x is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";
    let progress = "Setting volume ownership for a/volumes/x, processed 0 files.";
    assert_eq!(texts, [(reason, "pod-a", advice), (reason, "pod-a", progress)]);
}
