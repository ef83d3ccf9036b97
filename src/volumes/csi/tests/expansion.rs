//! Expansion of volumes, with a driver that is a real gRPC server and an API server that keeps claims.

use super::driver::{Behaviour, Mounts};
use super::world::{LIMIT, VOLUME, World};
use crate::apiserver::tests::stored::Mode;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Code;

const EXPAND: &str = "NodeExpandVolume";

/// A world whose volume belongs to the claim `shop/data`, and is as large as the claim wants.
async fn world() -> World {
    let world = World::with(json!({"attachRequired": false}), Mounts::None).await;
    let secret = json!({"data": {"key": "c2VjcmV0"}});
    world.server.put("secrets", "shop", "grow", secret);
    put_volume(&world, "1Gi");
    put_claim(&world, json!({"capacity": {"storage": "1Gi"}}));
    world
}

/// The PersistentVolume with this capacity.
fn change(capacity: &str) -> impl Fn(&mut Value) + use<> {
    let capacity = capacity.to_owned();
    move |volume| {
        let spec = &mut volume["spec"];
        spec["capacity"] = json!({"storage": capacity});
        spec["claimRef"] = json!({"namespace": "shop", "name": "data", "uid": "c1"});
        spec["csi"]["nodeExpandSecretRef"] = json!({"namespace": "shop", "name": "grow"});
    }
}

fn put_volume(world: &World, capacity: &str) {
    let mut volume = world.volume();
    change(capacity)(&mut volume);
    world.server.put("persistentvolumes", "", "pv1", volume);
}

fn put_claim(world: &World, status: Value) {
    let claim = json!({
        "metadata": {"uid": "c1"}, "spec": {"resources": {"requests": {"storage": "2Gi"}}},
        "status": status,
    });
    let claims = "persistentvolumeclaims";
    world.server.put(claims, "shop", "data", claim);
}

/// What the controller writes once it has done its part.
fn pending(size: &str) -> Value {
    json!({
        "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
    })
}

/// The controller has made the volume two GiB large.
fn grow(world: &World) {
    world.driver.volumes.change(VOLUME, |volume| volume.capacity = 2 << 30);
    // The kubelet may read both at any moment.
    put_claim(world, pending("2Gi"));
    put_volume(world, "2Gi");
}

fn claim(world: &World) -> Value {
    let claim = world.server.object("persistentvolumeclaims", "shop", "data");
    claim.unwrap_or_default()
}

async fn wait(what: &str, world: &World, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = timeout(LIMIT, waiting).await;
    ended.unwrap_or_else(|_| panic!("{what}: {} {:?}", claim(world), world.calls()));
}

fn has_size(world: &World, size: &str) -> bool {
    let status = claim(world)["status"].clone();
    let statuses = &status["allocatedResourceStatuses"];
    status["capacity"]["storage"] == size && statuses["storage"].is_null()
}

fn expansions(world: &World) -> usize {
    world.driver.journal.of(EXPAND).len()
}

fn events(world: &World) -> Vec<String> {
    let events = world.csi.sources().events.recent().into_iter();
    let events = events.map(|event| {
        let (kind, name) = (event.object.kind, &event.object.name);
        format!("{kind} {name} {}: {}", event.reason, event.message)
    });
    events.collect()
}

/// The size in the volume's record.
fn recorded(world: &World) -> Value {
    let mut records = fs::read_dir(world.root().join("csi_volumes")).unwrap();
    let record = fs::read_to_string(records.next().unwrap().unwrap().path()).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    record["nodeSize"].clone()
}

#[tokio::test]
async fn a_volume_that_has_grown_is_expanded_before_its_pod_starts_and_once() {
    let world = world().await;
    grow(&world);
    let path = world.publish_changed("a", change("2Gi")).await.unwrap();
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    let stage_publish_expand = ["NodeStageVolume", "NodePublishVolume", EXPAND];
    assert_eq!(world.calls(), stage_publish_expand);
    let call = &world.driver.journal.of(EXPAND)[0];
    assert_eq!(call.target_path, path.to_str().unwrap());
    assert!(call.staging_path.ends_with("/globalmount"), "{call:?}");
    assert_eq!(call.secrets, ["key"]);
    let volume = world.driver.volumes.get(VOLUME).unwrap();
    assert_eq!(volume.node_capacity, 2 << 30);
    assert_eq!(claim(&world)["status"]["conditions"], json!([]));
    let patches = world.server.patches();
    let statuses = patches
        .iter()
        .map(|(_, patch)| patch["status"]["allocatedResourceStatuses"]["storage"].clone());
    let statuses: Vec<_> = statuses.collect();
    assert_eq!(statuses, [json!("NodeResizeInProgress"), Value::Null]);
    let text = r#"FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv1" node1"#;
    let mut events = events(&world);
    events.sort();
    let expected = ["PersistentVolumeClaim data", "Pod pod-a"].map(|of| format!("{of} {text}"));
    assert_eq!(events, expected);
    assert_eq!(recorded(&world), json!({"bytes": 2i64 << 30, "reported": true}));
    let metric = "operation_name=\"volume_fs_resize\",status=\"success\",migrated=\"false\"} 1\n";
    assert!(world.metrics.text().contains(metric), "{}", world.metrics.text());
    // Another pod has it as it is, and the claim is not read again.
    let reads = world.server.reads("persistentvolumeclaims/data");
    world.publish_changed("b", change("2Gi")).await.unwrap();
    assert_eq!(expansions(&world), 1);
    assert_eq!(world.server.reads("persistentvolumeclaims/data"), reads);
    world.unpublish("a").await.unwrap();
    world.unpublish("b").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_volume_that_grows_under_a_running_pod_is_expanded_and_its_claim_is_read_only_then() {
    let world = world().await;
    let mut reader = world.request("a", change("1Gi"));
    reader.read_only = true;
    let published = timeout(LIMIT, world.csi.begin_publish(reader).finish()).await;
    published.unwrap().unwrap();
    let path = world.publish_changed("b", change("1Gi")).await.unwrap();
    assert_eq!(recorded(&world)["bytes"], 1 << 30);
    let reads = || world.server.reads("persistentvolumeclaims/data");
    let (of_claim, of_volume) = (reads(), world.server.reads("persistentvolumes/pv1"));
    wait("the volume is read", &world, || {
        world.server.reads("persistentvolumes/pv1") > of_volume + 2
    })
    .await;
    assert_eq!(reads(), of_claim);
    grow(&world);
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    assert_eq!(expansions(&world), 1);
    let call = &world.driver.journal.of(EXPAND)[0];
    assert_eq!(call.target_path, path.to_str().unwrap(), "of the pod that may write");
    // A pod that only reads keeps no volume from being what it is.
    world.unpublish("b").await.unwrap();
    let of_volume = world.server.reads("persistentvolumes/pv1");
    sleep(Duration::from_millis(300)).await;
    assert!(world.server.reads("persistentvolumes/pv1") <= of_volume + 1);
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_pod_that_reads_only_starts_with_an_event_and_the_volume_as_it_is() {
    let world = world().await;
    grow(&world);
    let mut reader = world.request("a", change("2Gi"));
    reader.read_only = true;
    let published = timeout(LIMIT, world.csi.begin_publish(reader).finish()).await;
    published.unwrap().unwrap();
    assert_eq!(expansions(&world), 0);
    let text = r#"FileSystemResizeFailed: MountVolume.NodeExpandVolume failed for volume "pv1" requested read-only file system"#;
    for of in ["PersistentVolumeClaim data", "Pod pod-a"] {
        let expected = format!("{of} {text}");
        assert!(events(&world).contains(&expected), "{:?}", events(&world));
    }
    assert!(!has_size(&world, "2Gi"));
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_driver_that_fails_before_the_start_keeps_the_pod_from_starting_until_it_succeeds() {
    let world = world().await;
    grow(&world);
    // With an open outcome the claim is not touched, else it has the error.
    for (code, has_condition) in [(Code::DeadlineExceeded, false), (Code::Internal, true)] {
        world.driver.script.once(EXPAND, Behaviour::fail(code));
        let error = world.publish_changed("a", change("2Gi")).await.unwrap_err();
        assert_eq!(
            error,
            format!(
                "MountVolume.Setup failed while expanding volume for volume \"pv1\" : Expander.NodeExpand failed to expand the volume : rpc error: code = {code:?} desc = as scripted"
            )
        );
        let status = claim(&world)["status"].clone();
        let text = status["conditions"].to_string();
        assert_eq!(text.contains("NodeResizeError"), has_condition, "{status}");
        assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
    }
    world.publish_changed("a", change("2Gi")).await.unwrap();
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    assert_eq!(claim(&world)["status"]["conditions"], json!([]));
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_size_that_the_driver_does_not_accept_is_infeasible_until_the_user_asks_for_another() {
    let world = world().await;
    world.publish_changed("a", change("1Gi")).await.unwrap();
    let refused = Behaviour::fail(Code::OutOfRange);
    world.driver.script.always(EXPAND, refused);
    grow(&world);
    let status = || claim(&world)["status"]["allocatedResourceStatuses"]["storage"].clone();
    wait("it is infeasible", &world, || status() == "NodeResizeInfeasible").await;
    let why = "Expander.NodeExpand failed to expand the volume : rpc error: code = OutOfRange desc = as scripted";
    let conditions = claim(&world)["status"]["conditions"].clone();
    let error = conditions.as_array().unwrap().iter().find(|it| it["type"] == "NodeResizeError");
    let error = error.unwrap();
    assert_eq!(error["message"], format!("failed to expand pvc with {why}"));
    let event = format!(
        "Pod pod-a VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume \"pv1\" : {why}"
    );
    wait("an event", &world, || events(&world).contains(&event)).await;
    let reads = world.server.reads("persistentvolumeclaims/data");
    wait("the claim is read again", &world, || {
        world.server.reads("persistentvolumeclaims/data") > reads + 2
    })
    .await;
    assert_eq!(expansions(&world), 1, "it is not tried again");
    world.driver.script.clear();
    put_claim(&world, pending("1536Mi"));
    wait("it has another size", &world, || has_size(&world, "1536Mi")).await;
    let volume = world.driver.volumes.get(VOLUME).unwrap();
    assert_eq!(volume.node_capacity, 1536 << 20);
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_driver_that_does_not_expand_volumes_in_use_is_not_asked_again_and_pods_start() {
    let world = world().await;
    grow(&world);
    let refused = Behaviour::fail(Code::FailedPrecondition);
    world.driver.script.always(EXPAND, refused);
    world.publish_changed("a", change("2Gi")).await.unwrap();
    world.publish_changed("b", change("2Gi")).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(expansions(&world), 1);
    world.driver.script.clear();
    world.unpublish("a").await.unwrap();
    world.unpublish("b").await.unwrap();
    world.idle().await;
    // Once it was off the node it is in no use any more.
    world.publish_changed("c", change("2Gi")).await.unwrap();
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    world.unpublish("c").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn the_next_kubelet_reports_the_size_and_does_not_call_the_driver_again() {
    let mut world = world().await;
    grow(&world);
    world.driver.script.once(EXPAND, Behaviour::Hang);
    let publish = world.csi.begin_publish(world.request("a", change("2Gi")));
    let published = tokio::spawn(publish.finish());
    world.driver.journal.called(EXPAND, 1).await;
    world.server.set(Mode::Refusing(503));
    world.driver.script.release();
    // The pod has what it needs.
    timeout(LIMIT, published).await.unwrap().unwrap().unwrap();
    wait("the record has the size", &world, || {
        recorded(&world) == json!({"bytes": 2i64 << 30, "reported": false})
    })
    .await;
    world.restart().await;
    world.server.set(Mode::Serving);
    assert!(!has_size(&world, "2Gi"));
    world.csi.pods_are_known(|_| true);
    world.publish_changed("a", change("2Gi")).await.unwrap();
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    assert_eq!(expansions(&world), 1);
    wait("the record says so", &world, || recorded(&world)["reported"] == true).await;
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_claim_that_changes_or_goes_while_the_driver_works_disturbs_nothing() {
    let world = world().await;
    world.publish_changed("a", change("1Gi")).await.unwrap();
    world.driver.script.once(EXPAND, Behaviour::Hang);
    grow(&world);
    world.driver.journal.called(EXPAND, 1).await;
    let mut changed = claim(&world);
    changed["metadata"]["annotations"] = json!({"by": "somebody"});
    let claims = "persistentvolumeclaims";
    world.server.put(claims, "shop", "data", changed);
    world.driver.script.release();
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    assert_eq!(claim(&world)["metadata"]["annotations"]["by"], "somebody");
    assert_eq!(expansions(&world), 1);
    // The same once more, and the claim is deleted meanwhile.
    world.driver.script.once(EXPAND, Behaviour::Hang);
    world.driver.volumes.change(VOLUME, |volume| volume.capacity = 3 << 30);
    put_claim(&world, pending("3Gi"));
    put_volume(&world, "3Gi");
    world.driver.journal.called(EXPAND, 2).await;
    world.server.delete(claims, "shop", "data");
    world.driver.script.release();
    wait("the record has the size", &world, || recorded(&world)["bytes"] == 3i64 << 30).await;
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn sizes_that_are_none_and_a_claim_that_cannot_be_read_keep_no_pod_from_starting() {
    let world = world().await;
    grow(&world);
    put_claim(&world, pending("-2Gi"));
    world.publish_changed("a", change("2Gi")).await.unwrap();
    let event = r#"Pod pod-a VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume "pv1" : status.allocatedResources of the claim is not the size of a volume"#;
    wait("an event", &world, || events(&world).iter().any(|it| it == event)).await;
    put_volume(&world, "1e30");
    let event = r#"Pod pod-a VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume "pv1" : spec.capacity of the PersistentVolume is not the size of a volume"#;
    wait("an event", &world, || events(&world).iter().any(|it| it == event)).await;
    assert_eq!(expansions(&world), 0);
    world.server.set(Mode::Refusing(403));
    world.publish_changed("b", change("2Gi")).await.unwrap();
    world.server.set(Mode::Serving);
    grow(&world);
    wait("the claim has the size", &world, || has_size(&world, "2Gi")).await;
    world.unpublish("a").await.unwrap();
    world.unpublish("b").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_shared_volume_that_another_node_has_grown_is_expanded_here_and_the_claim_is_not_touched()
{
    let world = world().await;
    let shared = |capacity: &str| {
        let change = change(capacity);
        move |volume: &mut Value| {
            change(volume);
            volume["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        }
    };
    world.publish_changed("a", shared("1Gi")).await.unwrap();
    world.driver.volumes.change(VOLUME, |volume| volume.capacity = 2 << 30);
    put_claim(
        &world,
        json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}),
    );
    put_volume(&world, "2Gi");
    world.driver.journal.called(EXPAND, 1).await;
    wait("the record has the size", &world, || recorded(&world)["bytes"] == 2i64 << 30).await;
    assert_eq!(world.server.patches().len(), 0);
    world.unpublish("a").await.unwrap();
    world.idle().await;
}
