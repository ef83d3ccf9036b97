//! Registration against a scripted API server.

use super::world::*;
use super::*;
use crate::apiserver::tests::scripted::Reply;
use crate::base::clock;

/// A grace that does not pass in a test.
const LONG: u64 = 600_000;
const ZONE: &str = "topology.example.com/zone";

#[tokio::test]
async fn the_csi_node_is_made_for_the_node_and_the_node_is_not_ready_before() {
    let world = World::start(LONG, None).await;
    world.rest().await;
    assert_eq!(world.writes(), [""; 0], "the Node object is not known yet");
    let not_ready = world.manager.not_ready().borrow().clone();
    assert_eq!(not_ready.as_deref(), Some("CSINode is not yet initialized"));
    world.api.lock().faults.extend([
        Reply::status(500, "InternalError"),
        Reply::status(403, "Forbidden"),
        Reply::status(403, "Forbidden"),
        Reply::status(403, "Forbidden"),
    ]);
    world.know_node();
    let mut not_ready = world.manager.not_ready();
    let failed = |why: &Option<String>| {
        let why = why.as_deref().unwrap_or_default();
        why.starts_with("failed to initialize CSINode: the API server returned 403")
    };
    assert!(not_ready.wait_for(failed).await.is_ok());
    world.until(World::is_initialized).await;
    assert_eq!(world.writes(), [POST; 5]);
    let owner = world.api.lock().csi_node.clone().unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owner[0]["uid"], "uid-1");
}

#[tokio::test]
async fn a_driver_is_in_the_table_and_in_both_objects_once_it_is_registered() {
    let world = World::ready(LONG).await;
    world.set_info("d", info("i", 5, &[(ZONE, "a")]));
    let _registered = world.register("d").await.unwrap();
    assert_eq!(*world.table.registered.lock(), [("d".to_owned(), 1)]);
    let expected = json!({"name": "d", "nodeID": "i", "topologyKeys": [ZONE],
        "allocatable": {"count": 5}});
    assert_eq!(world.entry("d"), expected);
    assert_eq!(world.node_ids(), r#"{"d":"i"}"#);
    assert_eq!(world.api.lock().node["metadata"]["labels"][ZONE], "a");
    assert_eq!(world.writes(), [POST, PATCH, PUT]);
    let sent = world.server.received();
    let patch = sent.iter().find(|request| request.method == "PATCH");
    let kind = &patch.unwrap().content_type;
    assert_eq!(kind, "application/strategic-merge-patch+json");
}

#[tokio::test]
async fn a_driver_that_goes_leaves_the_table_at_once_and_the_objects_after_the_grace() {
    let world = World::ready(400).await;
    for driver in ["d", "e"] {
        world.set_info(driver, info("i", 0, &[]));
    }
    let registered = world.register("d").await.unwrap();
    let _other = world.register("e").await.unwrap();
    registered.await;
    assert_eq!(*world.table.registered.lock(), [("e".to_owned(), 2)]);
    assert_eq!(world.api.lock().drivers(), ["d", "e"]);
    world.until(|world| world.api.lock().drivers() == ["e"]).await;
    world.until(|world| world.node_ids() == r#"{"e":"i"}"#).await;
}

#[tokio::test]
async fn an_update_of_a_driver_writes_nothing_and_leaves_no_gap() {
    let world = World::ready(200).await;
    world.set_info("d", info("i", 5, &[]));
    // The socket is replaced: either may come first.
    let first = world.register("d").await.unwrap();
    let second = world.register("d").await.unwrap();
    first.await;
    second.await;
    let third = world.register("d").await.unwrap();
    world.rest().await;
    world.rest().await;
    assert_eq!(world.writes(), [POST, PATCH, PUT]);
    let history = world.api.lock().history.clone();
    assert_eq!(history, [vec![], vec!["d".to_owned()]]);
    assert_eq!(*world.table.registered.lock(), [("d".to_owned(), 3)]);
    third.await;
    world.until(|world| world.api.lock().drivers().is_empty()).await;
}

#[tokio::test]
async fn an_update_with_another_node_id_takes_the_entry_out_for_a_moment_as_the_api_demands() {
    let world = World::ready(LONG).await;
    world.set_info("d", info("i", 5, &[(ZONE, "a")]));
    let first = world.register("d").await.unwrap();
    first.await;
    world.set_info("d", info("j", 6, &[(ZONE, "a")]));
    let _second = world.register("d").await.unwrap();
    assert_eq!(world.entry("d")["nodeID"], "j");
    assert_eq!(world.node_ids(), r#"{"d":"j"}"#);
    // Only the limit changes.
    world.set_info("d", info("j", 7, &[(ZONE, "a")]));
    let before = world.writes().len();
    let _third = world.register("d").await.unwrap();
    assert_eq!(world.entry("d")["allocatable"]["count"], 7);
    assert_eq!(world.writes()[before..], [PUT]);
}

#[tokio::test]
async fn a_registration_that_fails_takes_the_driver_out_of_the_table_again() {
    let world = World::ready(LONG).await;
    world.api.lock().node["metadata"]["labels"][ZONE] = json!("w");
    world.set_info("collides", info("i", 0, &[(ZONE, "v")]));
    world.set_info("anonymous", info("", 0, &[]));
    world.table.infos.lock().insert("fails".into(), Err("rpc error".into()));
    for (driver, expected) in [
        (
            "collides",
            "error updating Node object with CSI driver node info: detected topology value \
             collision: driver reported \"topology.example.com/zone\":\"v\" but existing label is \
             \"topology.example.com/zone\":\"w\"",
        ),
        (
            "anonymous",
            "NodeGetInfo of CSI driver anonymous returned an invalid node_id: driverNodeID must \
             not be empty",
        ),
        ("fails", "NodeGetInfo of CSI driver fails failed: rpc error"),
    ] {
        let error = world.register(driver).await.err();
        assert_eq!(error.as_deref(), Some(expected));
        assert!(world.table.registered.lock().is_empty(), "{driver}");
    }
    assert_eq!(world.writes(), [POST]);
}

#[tokio::test]
async fn conflicts_are_retried_and_other_drivers_are_not_lost() {
    let world = World::ready(LONG).await;
    world.set_info("d", info("i", 0, &[]));
    world.set_info("e", info("k", 0, &[]));
    let conflict = || Reply::status(409, "Conflict");
    world.api.lock().faults.extend([conflict(), conflict(), conflict()]);
    let (first, second) = tokio::join!(world.register("d"), world.register("e"));
    assert!(first.is_ok() && second.is_ok());
    let mut drivers = world.api.lock().drivers();
    drivers.sort();
    assert_eq!(drivers, ["d", "e"]);
    assert_eq!(world.node_ids(), r#"{"d":"i","e":"k"}"#);
    let refused = [(); 4].map(|()| Reply::status(403, "Forbidden"));
    world.api.lock().faults.extend(refused);
    world.set_info("f", info("l", 0, &[]));
    let error = world.register("f").await.err().unwrap();
    assert!(error.starts_with("error updating Node object with CSI driver node info: "), "{error}");
    assert_eq!(world.api.lock().drivers().len(), 2);
}

#[tokio::test]
async fn for_another_node_object_the_csi_node_is_made_anew_with_the_registered_drivers() {
    let world = World::ready(LONG).await;
    world.set_info("d", info("i", 0, &[(ZONE, "a")]));
    let _registered = world.register("d").await.unwrap();
    let before = world.api.lock().csi_node.clone().unwrap()["metadata"]["uid"].clone();
    world.api.lock().node = node_object("uid-2");
    world.know_node();
    world.until(|world| world.node_ids() == r#"{"d":"i"}"#).await;
    assert_eq!(world.api.lock().node["metadata"]["labels"][ZONE], "a");
    assert_eq!(world.entry("d")["nodeID"], "i");
    let csi_node = world.api.lock().csi_node.clone().unwrap();
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], "uid-2");
    assert_ne!(csi_node["metadata"]["uid"], before);
    assert_eq!(world.writes(), [POST, PATCH, PUT, DELETE, POST, PATCH]);
    assert!(world.is_initialized());
}

#[tokio::test]
async fn drivers_of_an_earlier_kubelet_stay_and_are_not_written_again() {
    let earlier = World::ready(LONG).await;
    earlier.set_info("d", info("i", 0, &[]));
    let _registered = earlier.register("d").await.unwrap();
    let (node, csi_node) = {
        let api = earlier.api.lock();
        (api.node.clone(), api.csi_node.clone())
    };
    let world = World::start(LONG, csi_node).await;
    world.api.lock().node = node;
    world.know_node();
    world.until(World::is_initialized).await;
    world.set_info("d", info("i", 0, &[]));
    let _registered = world.register("d").await.unwrap();
    assert_eq!(world.writes(), [""; 0]);
}

#[tokio::test]
async fn while_no_api_server_responds_a_known_driver_registers_and_a_new_one_waits_in_the_table() {
    let world = World::ready(LONG).await;
    world.set_info("d", info("i", 0, &[]));
    let first = world.register("d").await.unwrap();
    first.await;
    world.server.set_away(true);
    let _again = world.register("d").await.unwrap();
    world.set_info("e", info("k", 0, &[]));
    let waiting = async {
        let registered = world.register("e").await;
        assert!(registered.is_ok());
        registered
    };
    let back = async {
        world.rest().await;
        let registered = world.table.registered.lock().clone();
        assert_eq!(registered, [("d".to_owned(), 2), ("e".to_owned(), 3)]);
        world.server.set_away(false);
        // Any request that is answered ends the wait.
        let api = crate::apiserver::ResourcePath::cluster("n");
        let node = world.client().get::<k8s_openapi::api::core::v1::Node>(api).await;
        assert!(node.is_ok());
    };
    let started_at = clock::instant();
    let (_registered, ()) = tokio::join!(waiting, back);
    assert!(clock::since(started_at) < Duration::from_secs(10));
    assert_eq!(world.api.lock().drivers(), ["d", "e"]);
}

#[tokio::test]
async fn a_registration_that_hangs_ends_when_the_driver_registers_again() {
    let world = World::ready(LONG).await;
    let hanging = world.register("d");
    let again = async {
        world.rest().await;
        world.set_info("d", info("i", 0, &[]));
        world.register("d").await
    };
    let (hung, again) = tokio::join!(hanging, again);
    let expected = "another plugin of CSI driver d has registered meanwhile";
    assert_eq!(hung.err().as_deref(), Some(expected));
    assert!(again.is_ok());
    assert_eq!(*world.table.registered.lock(), [("d".to_owned(), 2)]);
}

#[tokio::test]
async fn the_limit_of_a_full_driver_is_read_again_if_its_object_has_a_period() {
    let world = World::ready(LONG).await;
    world.set_info("d", info("i", 5, &[]));
    let _registered = world.register("d").await.unwrap();
    world.set_info("d", info("i", 3, &[]));
    world.full.mark("d".into());
    world.rest().await;
    assert_eq!(world.entry("d")["allocatable"]["count"], 5);
    let spec = json!({"nodeAllocatableUpdatePeriodSeconds": 3600});
    world.objects.put("csidrivers", "", "d", json!({ "spec": spec }));
    world.rest().await;
    world.full.mark("d".into());
    world.until(|world| world.entry("d")["allocatable"]["count"] == 3).await;
    assert_eq!(world.writes(), [POST, PATCH, PUT, PUT], "the Node object is not touched");
    // Nothing has changed.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let calls = *world.table.calls.lock();
    world.full.mark("d".into());
    world.until(|world| *world.table.calls.lock() > calls).await;
    world.rest().await;
    assert_eq!(world.writes().len(), 4);
}

#[tokio::test]
async fn the_limit_is_updated_periodically() {
    let world = World::ready(LONG).await;
    let spec = json!({"nodeAllocatableUpdatePeriodSeconds": 10});
    world.objects.put("csidrivers", "", "d", json!({ "spec": spec }));
    world.set_info("d", info("i", 5, &[]));
    let _registered = world.register("d").await.unwrap();
    world.set_info("d", info("i", 0, &[]));
    world.until(|world| world.entry("d").get("allocatable").is_none()).await;
    assert_eq!(*world.table.calls.lock(), 2);
}
