//! Volumes in use: what is written, and when a name is confirmed.

use super::*;
use crate::base::clock;
use std::collections::BTreeSet;

const LONG: Duration = Duration::from_secs(600);
const A: &str = "kubernetes.io/csi/d^a";
const B: &str = "kubernetes.io/csi/d^b";
const C: &str = "kubernetes.io/csi/d^c";

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// An API server with a node that has these volumes in use.
fn with_volumes(volumes: &[&str]) -> Api {
    let mut api = registered();
    let node = api.node.as_mut().unwrap();
    node["status"] = json!({ "volumesInUse": volumes });
    api
}

impl World {
    fn stored(&self) -> Value {
        let node = self.api.lock().node.clone().unwrap();
        node["status"]["volumesInUse"].clone()
    }

    fn confirmed(&self) -> Vec<String> {
        let confirmed = self.volumes.confirmed().borrow().clone();
        confirmed.keys().cloned().collect()
    }

    fn patches(&self) -> Vec<Value> {
        let received = self.server.received().into_iter();
        let patches = received.filter(|request| request.method == "PATCH");
        patches.map(|request| request.body).collect()
    }

    async fn until_confirmed(&self, volumes: &[&str]) {
        self.until(|world| world.confirmed() == volumes).await;
    }
}

#[tokio::test]
async fn volumes_in_use_are_written_at_once_and_confirmed_by_the_response() {
    let world = World::start_every(registered(), true, LONG).await;
    world.until(|world| world.writes().len() == 1).await;
    world.rest().await;
    world.volumes.set(names(&[B, A]));
    let started_at = clock::instant();
    world.until_confirmed(&[A, B]).await;
    assert!(clock::since(started_at) < Duration::from_secs(5));
    assert_eq!(world.writes(), [PATCH, PATCH]);
    assert_eq!(world.stored(), json!([A, B]));
    let node = world.node.borrow().clone().unwrap();
    let version = node.metadata.resource_version.clone().unwrap();
    assert_eq!(world.volumes.confirmed().borrow()[A], version);
    // One that is added, and one that leaves: not confirmed from then on, and removed from the object.
    world.volumes.set(names(&[B, C]));
    assert_eq!(world.confirmed(), [B]);
    world.until_confirmed(&[B, C]).await;
    assert_eq!(world.stored(), json!([B, C]));
    assert_eq!(world.volumes.confirmed().borrow()[B], version);
    world.volumes.set(names(&[]));
    world.until(|world| world.stored().is_null()).await;
    world.rest().await;
    assert_eq!(world.writes(), [PATCH; 4]);
}

#[tokio::test]
async fn volumes_that_change_together_share_a_report() {
    let world = World::start_every(registered(), true, LONG).await;
    world.until(|world| world.writes().len() == 1).await;
    let mut wanted = BTreeSet::new();
    for number in 0..50 {
        wanted.insert(format!("volume-{number}"));
        world.volumes.set(wanted.clone());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    world.until(|world| world.confirmed().len() == 50).await;
    let writes = world.writes().len();
    assert!(writes <= 6, "{writes}");
}

#[tokio::test]
async fn the_nodes_list_stays_until_the_volumes_are_known_and_is_then_confirmed_without_a_report() {
    let world = World::start_every(with_volumes(&[A, B]), true, LONG).await;
    world.until(|world| world.writes().len() == 1).await;
    world.rest().await;
    assert_eq!(world.stored(), json!([A, B]));
    assert!(world.patches()[0]["status"].get("volumesInUse").is_none());
    assert_eq!(world.confirmed(), [""; 0]);
    world.volumes.set(names(&[A, B]));
    world.until_confirmed(&[A, B]).await;
    world.rest().await;
    assert_eq!(world.writes(), [PATCH]);
}

#[tokio::test]
async fn volumes_that_are_known_at_the_start_are_confirmed_by_a_response_and_not_by_a_read() {
    let api =
        Api { faults: VecDeque::from([Reply::status(500, "InternalError")]), ..with_volumes(&[A]) };
    let world = World::start_every(api, true, LONG).await;
    world.volumes.set(names(&[A]));
    world.until(|world| world.writes().len() == 1).await;
    assert_eq!(world.confirmed(), [""; 0]);
    world.until_confirmed(&[A]).await;
    assert_eq!(world.writes(), [PATCH, PATCH]);
    assert_eq!(world.patches()[1]["status"]["volumesInUse"], json!([A]));
}

#[tokio::test]
async fn after_a_report_without_a_response_a_name_is_confirmed_only_by_the_next_response() {
    let world = World::start_every(registered(), true, LONG).await;
    world.volumes.set(names(&[A, B]));
    world.until_confirmed(&[A, B]).await;
    // The removal takes effect, and its response is lost.
    let lost = Reply::Bytes(200, b"<garbage>".to_vec());
    {
        let mut api = world.api.lock();
        api.faults.push_back(lost);
        api.node.as_mut().unwrap()["status"]["volumesInUse"] = json!([B]);
    }
    let before = world.patches().len();
    world.volumes.set(names(&[B]));
    world.until(|world| world.patches().len() > before).await;
    // Meanwhile the object that the kubelet knows still has it.
    world.volumes.set(names(&[A, B]));
    let known = world.node.borrow().clone().unwrap();
    assert_eq!(known.status.as_ref().unwrap().volumes_in_use.as_ref().unwrap().len(), 2);
    assert_eq!(world.confirmed(), [B]);
    world.until_confirmed(&[A, B]).await;
    assert_eq!(world.stored(), json!([A, B]));
    let last = world.patches().pop().unwrap();
    assert_eq!(last["status"]["volumesInUse"], json!([A, B]));
}

#[tokio::test]
async fn a_removal_names_the_version_that_it_was_made_from_and_is_repeated_after_a_conflict() {
    let world = World::start_every(registered(), true, LONG).await;
    world.volumes.set(names(&[A, B]));
    world.until_confirmed(&[A, B]).await;
    {
        // Another client changes the object, and the watch is late.
        let mut api = world.api.lock();
        api.version += 1;
        let version = api.version.to_string();
        api.node.as_mut().unwrap()["metadata"]["resourceVersion"] = json!(version);
    }
    world.volumes.set(names(&[B]));
    world.until(|world| world.stored() == json!([B])).await;
    let patches = world.patches();
    let versions: Vec<_> =
        patches.iter().filter(|patch| patch["metadata"].get("resourceVersion").is_some()).collect();
    assert_eq!(versions.len(), 2, "{patches:?}");
}

#[tokio::test]
async fn no_volume_is_confirmed_while_there_is_no_node() {
    let world = World::start_every(registered(), true, LONG).await;
    world.volumes.set(names(&[A]));
    world.until_confirmed(&[A]).await;
    world.until(|world| world.api.lock().watch.is_some()).await;
    let (deleted, watch) = {
        let mut api = world.api.lock();
        api.faults.push_back(Reply::status(500, "InternalError"));
        (api.node.take().unwrap(), api.watch.take().unwrap())
    };
    let event = json!({ "type": "DELETED", "object": deleted });
    watch.line(&event).await;
    world.until_confirmed(&[]).await;
    world.until_confirmed(&[A]).await;
    let sent = world.server.received();
    let created = sent.iter().rfind(|request| request.method == "POST");
    assert_eq!(created.unwrap().body["status"]["volumesInUse"], json!([A]));
}

#[tokio::test]
async fn the_node_is_not_ready_until_its_csi_node_is_there() {
    let world = World::start_every(Api::default(), true, LONG).await;
    world.until(World::is_known).await;
    let ready = |world: &World| {
        let api = world.api.lock();
        let conditions = api.node.as_ref().unwrap()["status"]["conditions"].clone();
        let all = conditions.as_array().unwrap();
        let ready = all.iter().find(|one| one["type"] == "Ready").unwrap();
        (ready["status"].clone(), ready["message"].clone())
    };
    let text = "CSINode is not yet initialized";
    // A node that was ready stays ready when its kubelet restarts.
    assert_eq!(ready(&world).0, "True");
    world.csi_node.send_replace(Some(text.to_owned()));
    world.rest().await;
    assert_eq!(ready(&world).0, "True");

    let api = Api::default();
    let world = World::start_with(api, true, LONG, Some(text.to_owned())).await;
    world.until(World::is_known).await;
    assert_eq!(ready(&world), (json!("False"), json!(text)));
    world.csi_node.send_replace(None);
    world.until(|world| ready(world).0 == "True").await;
}
