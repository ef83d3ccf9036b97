//! The volumes of a node, with a driver that is a real gRPC server.

use super::driver::{Behaviour, Mounts};
use super::world::{DRIVER, LIMIT, VOLUME, World};
use crate::apiserver::volume_attachment::attachment_name;
use crate::model::PodUid;
use crate::volumes::csi::spec::CsiVolumeSpec;
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Code;

const NAME: &str = "kubernetes.io/csi/csi.example.com^vol-a";

#[tokio::test]
async fn a_volume_is_staged_once_published_for_each_pod_and_undone_after_the_last() {
    let world = World::start().await;
    let path = world.publish("a").await.unwrap();
    let of_pod = "pods/a/volumes/kubernetes.io~csi/pv1/mount";
    assert_eq!(path, world.root().join(of_pod));
    world.publish("b").await.unwrap();
    world.publish("a").await.unwrap();
    let stage_and_publish = ["NodeStageVolume", "NodePublishVolume", "NodePublishVolume"];
    assert_eq!(world.calls(), stage_and_publish);
    assert_eq!(world.in_use(), Some(Vec::new()), "nothing is attached");
    world.unpublish("a").await.unwrap();
    assert!(!path.parent().unwrap().exists());
    assert!(world.driver.volumes.get(VOLUME).unwrap().staged.is_some());
    world.unpublish("b").await.unwrap();
    world.idle().await;
    assert_eq!(world.calls().len(), 6);
    let text = world.metrics.text();
    for (operation, count) in [("volume_mount", 2), ("volume_unmount", 2), ("unmount_device", 1)] {
        let sample = format!(
            "storage_operation_duration_seconds_count{{volume_plugin=\"kubernetes.io/csi:csi.example.com\",operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}} {count}\n"
        );
        assert!(text.contains(&sample), "{sample}{text}");
    }
    let total = "volume_operation_total_seconds_count{plugin_name=\"kubernetes.io/csi:csi.example.com\",operation_name=\"overall_volume_mount\"} 2\n";
    assert!(text.contains(total), "{text}");
}

#[tokio::test]
async fn a_translated_volume_says_so_in_metrics() {
    let world = World::start().await;
    let mut request = world.request("a", |_| ());
    request.spec = Arc::new(CsiVolumeSpec { is_migrated: true, ..(*request.spec).clone() });
    let published = timeout(LIMIT, world.csi.begin_publish(request).finish());
    published.await.unwrap().unwrap();
    let text = world.metrics.text();
    let labels = "volume_plugin=\"kubernetes.io/csi:csi.example.com\",operation_name=\"volume_mount\",status=\"success\",migrated=\"true\"";
    let sample = format!("storage_operation_duration_seconds_count{{{labels}}} 1\n");
    assert!(text.contains(&sample), "{text}");
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_volume_is_staged_only_once_it_is_confirmed_in_use_and_attached() {
    let world = World::with(json!({"podInfoOnMount": true}), Mounts::None).await;
    let in_use = world.csi.sources().in_use.clone();
    let publish = world.csi.begin_publish(world.request("a", |_| ()));
    let published = tokio::spawn(publish.finish());
    let mut wanted = in_use.wanted();
    let has_name = |names: &Option<Arc<_>>| {
        let names: Option<&std::collections::BTreeSet<String>> = names.as_deref();
        names.is_some_and(|names| names.contains(NAME))
    };
    let reported = timeout(LIMIT, wanted.wait_for(has_name)).await;
    assert!(reported.unwrap().is_ok());
    let set_node = |version: &str, attached: bool| {
        let names: &[&str] = if attached { &[NAME] } else { &[] };
        let attached = names.iter().map(|name| json!({"name": name, "devicePath": ""}));
        let node = json!({
            "metadata": {"name": "node1", "resourceVersion": version},
            "status": {"volumesAttached": attached.collect::<Vec<_>>()},
        });
        let node = serde_json::from_value(node).unwrap();
        world.node.send_replace(Some(Arc::new(node)));
    };
    // An attachment from before the confirmation does not count.
    set_node("5", true);
    in_use.confirm([NAME], "6");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.calls(), <[&str; 0]>::default());
    let name = attachment_name(VOLUME, DRIVER, "node1");
    world.server.put(
        "volumeattachments",
        "",
        &name,
        json!({
            "spec": {"attacher": DRIVER, "nodeName": "node1", "source": {}},
            "status": {"attached": true, "attachmentMetadata": {"device": "/dev/x"}},
        }),
    );
    set_node("7", true);
    timeout(LIMIT, published).await.unwrap().unwrap().unwrap();
    let staged = world.driver.journal.of("NodeStageVolume");
    assert_eq!(staged[0].publish_context, ["device"]);
    let published = world.driver.journal.of("NodePublishVolume");
    assert_eq!(published[0].pod_info["csi.storage.k8s.io/pod.name"], "pod-a");
    assert_eq!(world.in_use(), Some(vec![NAME.to_owned()]));
    world.unpublish("a").await.unwrap();
    world.idle().await;
    assert_eq!(world.in_use(), Some(Vec::new()));
}

#[tokio::test]
async fn what_a_driver_refuses_is_an_error_with_its_words_and_is_tried_again() {
    let world = World::start().await;
    let refused = Behaviour::fail(Code::InvalidArgument);
    world.driver.script.once("NodeStageVolume", refused.clone());
    let error = world.publish("a").await.unwrap_err();
    assert_eq!(
        error,
        "MountVolume.MountDevice failed for volume \"pv1\" : rpc error: code = InvalidArgument desc = as scripted"
    );
    world.driver.script.once("NodePublishVolume", refused);
    let error = world.publish("a").await.unwrap_err();
    assert!(error.starts_with("MountVolume.SetUp failed"), "{error}");
    world.publish("a").await.unwrap();
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_call_with_an_unknown_outcome_is_repeated_or_undone() {
    let world = World::start().await;
    let done = Behaviour::do_then_fail(Code::DeadlineExceeded);
    for method in
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
    {
        world.driver.script.once(method, done.clone());
    }
    assert!(world.publish("a").await.is_err());
    assert!(world.publish("a").await.is_err());
    world.publish("a").await.unwrap();
    assert!(world.unpublish("a").await.is_err());
    world.unpublish("a").await.unwrap();
    world.idle().await;
    // No pod waits for it any more when it has been staged.
    world.driver.script.once("NodeStageVolume", done);
    assert!(world.publish("b").await.is_err());
    world.unpublish("b").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_driver_that_is_away_is_waited_for() {
    let mut world = World::start().await;
    world.publish("a").await.unwrap();
    world.deregister();
    let publish = world.csi.begin_publish(world.request("b", |_| ()));
    let published = tokio::spawn(publish.finish());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waits = world.csi.waits_for(&"b".into(), "data").unwrap();
    assert!(waits.contains("for the CSI driver to register"), "{waits}");
    world.register();
    timeout(LIMIT, published).await.unwrap().unwrap().unwrap();
    for pod in ["a", "b"] {
        world.unpublish(pod).await.unwrap();
    }
    world.idle().await;
}

#[tokio::test]
async fn the_next_kubelet_keeps_what_pods_have_and_undoes_the_rest() {
    let mut world = World::start().await;
    for pod in ["a", "b"] {
        world.publish(pod).await.unwrap();
    }
    world.restart().await;
    let calls = world.calls().len();
    // `a` is a pod still, and `b` is gone with its directory's owner.
    let uid = PodUid::from("b");
    assert!(world.csi.has_volumes_of(&uid));
    world.publish("a").await.unwrap();
    let again = ["NodeStageVolume", "NodePublishVolume"];
    assert_eq!(world.calls()[calls..], again, "both are repeated");
    world.unpublish("b").await.unwrap();
    world.csi.pods_are_known(|uid| uid.as_str() == "a");
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_volume_that_is_staged_without_a_pod_after_a_kill_is_unstaged_once_pods_are_known() {
    let mut world = World::start().await;
    world.publish("a").await.unwrap();
    world.driver.script.once("NodeUnstageVolume", Behaviour::Hang);
    world.unpublish("a").await.unwrap();
    timeout(LIMIT, world.driver.journal.called("NodeUnstageVolume", 1)).await.unwrap();
    world.restart().await;
    assert_eq!(world.csi.count(), 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.driver.journal.of("NodeUnstageVolume").len(), 1);
    world.driver.script.release();
    world.csi.pods_are_known(|_| false);
    world.idle().await;
}

#[tokio::test]
async fn secrets_are_read_for_each_call_and_a_missing_one_is_named() {
    let world = World::start().await;
    let with_secrets = |volume: &mut Value| {
        let secret = |name: &str| json!({"namespace": "vault", "name": name});
        volume["spec"]["csi"]["nodeStageSecretRef"] = secret("stage");
        volume["spec"]["csi"]["nodePublishSecretRef"] = secret("publish");
    };
    let error = world.publish_changed("a", with_secrets).await.unwrap_err();
    let why = "fetching NodeStageSecretRef vault/stage failed: ";
    assert!(error.contains(why), "{error}");
    for (name, key) in [("stage", "user"), ("publish", "key")] {
        let data = json!({"data": {key: "c2VjcmV0"}});
        world.server.put("secrets", "vault", name, data);
    }
    world.publish_changed("a", with_secrets).await.unwrap();
    let keys = |method: &str| world.driver.journal.of(method)[0].secrets.clone();
    assert_eq!(keys("NodeStageVolume"), ["user"]);
    assert_eq!(keys("NodePublishVolume"), ["key"]);
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn only_one_pod_has_a_volume_for_a_single_pod() {
    let world = World::start().await;
    let single = |volume: &mut Value| {
        volume["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    };
    world.publish_changed("a", single).await.unwrap();
    let error = world.publish_changed("b", single).await.unwrap_err();
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"pv1\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    );
    let waits = world.csi.waits_for(&"b".into(), "data").unwrap();
    assert!(waits.contains("already in use by another pod"), "{waits}");
    world.unpublish("a").await.unwrap();
    // It goes on waiting without a sync of its pod.
    world.driver.journal.called("NodePublishVolume", 2).await;
    world.publish_changed("b", single).await.unwrap();
    world.unpublish("b").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_mount_that_a_driver_leaves_is_unmounted() {
    let Some(world) = World::with_mounts(json!({"attachRequired": false})).await else {
        return;
    };
    let path = world.publish("a").await.unwrap();
    fs::write(path.join("file"), "kept").unwrap();
    world.driver.script.once("NodeUnpublishVolume", Behaviour::Skip);
    world.driver.script.once("NodeUnstageVolume", Behaviour::Skip);
    world.unpublish("a").await.unwrap();
    let gone = async {
        while world.csi.count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, gone).await.expect("no volumes");
    assert!(!path.parent().unwrap().exists());
    let mounts = crate::host::mount::list().unwrap();
    assert!(!mounts.iter().any(|mount| mount.is_beneath(&world.root())));
    let data = world.driver.volumes.data(VOLUME).join("file");
    assert_eq!(fs::read_to_string(data).unwrap(), "kept");
}

#[tokio::test]
async fn what_a_driver_mounts_although_it_reports_failure_is_undone() {
    let world = World::with(json!({"attachRequired": false}), Mounts::Bind).await;
    let lie = Behaviour::do_then_fail(Code::Internal);
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        world.driver.script.once(method, lie.clone());
        let error = world.publish("a").await.unwrap_err();
        if error.contains("Operation not permitted") {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("SKIPPED, cannot mount here: {error}");
            return;
        }
        world.unpublish("a").await.unwrap();
        world.idle().await;
    }
}

#[tokio::test]
async fn two_volumes_of_one_name_never_share_the_path_of_a_pod() {
    let world = World::start().await;
    world.driver.add_volume("vol-b");
    world.publish("a").await.unwrap();
    let other = |volume: &mut Value| volume["spec"]["csi"]["volumeHandle"] = json!("vol-b");
    let error = world.publish_changed("a", other).await.unwrap_err();
    let why = format!("the volume {NAME} is still published at its path");
    assert!(error.contains(&why), "{error}");
    assert_eq!(world.driver.journal.of("NodePublishVolume").len(), 1);
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

/// A Go kubelet was killed between the unpublish and the unstage, so that neither a pod nor a record names the volume.
#[tokio::test]
async fn a_stage_without_a_pod_or_a_record_is_used_by_the_next_pod_and_undone() {
    let mut world = World::start().await;
    let forget = async |world: &mut World| {
        world.publish("a").await.unwrap();
        let failing = Behaviour::fail(Code::Internal);
        world.driver.script.always("NodeUnstageVolume", failing);
        world.unpublish("a").await.unwrap();
        fs::remove_dir_all(world.root().join("csi_volumes")).unwrap();
        world.restart().await;
    };
    forget(&mut world).await;
    let failed = world.driver.journal.of("NodeUnstageVolume").len();
    world.csi.pods_are_known(|_| true);
    // The unstage fails once more, and its volume is recorded without a name.
    world.driver.journal.called("NodeUnstageVolume", failed + 1).await;
    world.restart().await;
    world.publish("b").await.unwrap();
    world.driver.script.clear();
    world.unpublish("b").await.unwrap();
    world.csi.pods_are_known(|_| true);
    world.idle().await;

    forget(&mut world).await;
    world.driver.script.clear();
    world.csi.pods_are_known(|_| true);
    world.idle().await;
}
