use super::*;
use crate::apiserver::tests::scripted::{Received, Scripted};
use crate::model::{fixture, keys};
use crate::state::node_object::NodeObjectWriter;
use crate::state::pod_manager::{PodChanges, PodManagerWriter};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// An API server with one node and the mirror of one static pod.
struct Cluster {
    server: Scripted,
    pod_manager: PodManagerWriter,
    node: NodeObjectWriter,
    object: Arc<Mutex<Option<Pod>>>,
    delivered: watch::Sender<bool>,
    known: Arc<Mutex<[bool; 3]>>,
    _running: tokio::task::JoinHandle<anyhow::Result<()>>,
}

const MIRRORS: usize = 0;
const PODS: usize = 1;
const IN_USE: usize = 2;

fn serve(
    object: &Mutex<Option<Pod>>,
    created: &AtomicUsize,
    call: &Received,
) -> Option<(u16, String)> {
    let refusal = |code, reason: &str| {
        Some((code, json!({"kind": "Status", "reason": reason, "message": reason}).to_string()))
    };
    let mut object = object.lock();
    match (call.method.as_str(), call.path.as_str()) {
        ("GET", "/api/v1/nodes/n") => {
            Some((200, json!({"metadata": {"name": "n", "uid": "node-uid"}}).to_string()))
        }
        ("POST", "/api/v1/namespaces/default/pods") if object.is_some() => {
            refusal(409, "AlreadyExists")
        }
        ("POST", "/api/v1/namespaces/default/pods") => {
            let mut pod: Pod = serde_json::from_value(call.body.clone()).unwrap();
            let number = created.fetch_add(1, Ordering::SeqCst);
            pod.metadata.uid = Some(format!("m{number}"));
            *object = Some(pod.clone());
            Some((201, serde_json::to_string(&pod).unwrap()))
        }
        ("DELETE", "/api/v1/namespaces/default/pods/web") => match object.take() {
            None => refusal(404, "NotFound"),
            Some(pod) => {
                assert_eq!(call.body["preconditions"]["uid"], pod.uid().as_str());
                assert_eq!(call.body["gracePeriodSeconds"], 0);
                Some((200, "{}".to_owned()))
            }
        },
        other => panic!("{other:?}"),
    }
}

impl Cluster {
    async fn start(fails: impl Fn(usize) -> Option<u16> + Send + Sync + 'static) -> Self {
        let (object, created) = (Arc::new(Mutex::new(None)), AtomicUsize::new(0));
        let served = Arc::clone(&object);
        let number = AtomicUsize::new(0);
        let server =
            Scripted::serving(move |call| match fails(number.fetch_add(1, Ordering::SeqCst)) {
                Some(code) => Some((code, json!({"message": "no"}).to_string())),
                None => serve(&served, &created, call),
            })
            .await;
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(dir.path());
        let api = ApiServer::of_kubeconfig(&kubeconfig).await.unwrap();
        let changes = Arc::new(PodChanges::default());
        let pod_manager = PodManagerWriter::default().with_changes(changes.clone());
        let known = Arc::new(Mutex::new([true, true, false]));
        let is = |fact: usize| {
            let known = known.clone();
            move || known.lock()[fact]
        };
        let in_use = is(IN_USE);
        let node = NodeObjectWriter::default();
        let mirrors = MirrorPods::new(MirrorDeps {
            api,
            node_name: "n".into(),
            node: node.reader(),
            pod_manager: pod_manager.reader(),
            name_in_use: Box::new(move |_, _| in_use()),
            mirrors_known: Box::new(is(MIRRORS)),
            pods_known: Box::new(is(PODS)),
            changed: changes.mirrors.clone(),
        });
        let (delivered, changed) = watch::channel(false);
        Self {
            server,
            pod_manager,
            node,
            object,
            delivered,
            known,
            _running: tokio::spawn(mirrors.run(changed, CancellationToken::new())),
        }
    }

    fn set(&self, fact: usize, holds: bool) {
        self.known.lock()[fact] = holds;
        self.delivered.send_replace(true);
    }

    /// The watch delivers what there is.
    fn watch(&self) {
        let name = pod("h").full_name();
        let before = self.pod_manager.reader().mirror_of(&name);
        match (self.object.lock().clone(), before) {
            (Some(mirror), _) => self.pod_manager.set_mirror(Arc::new(mirror)),
            (None, Some(before)) => {
                self.pod_manager.unset_mirror(&name, &before.uid());
            }
            (None, None) => {}
        }
    }

    async fn expect(&self, methods: &[&str]) {
        let calls = || {
            let calls = self.server.received().into_iter().map(|call| call.method);
            calls.filter(|method| method != "GET").collect::<Vec<_>>()
        };
        let all = async {
            while calls().len() < methods.len() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), all).await;
        assert!(waited.is_ok(), "only {:?}", calls());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(calls(), methods);
    }

    fn mirrored(&self) -> Option<String> {
        let object = self.object.lock();
        let hash = object.as_ref()?.annotation(keys::CONFIG_MIRROR);
        hash.map(str::to_owned)
    }
}

fn pod(hash: &str) -> Arc<Pod> {
    let pod = fixture::pod(&format!("default/web/{hash}"), None);
    Arc::new(fixture::annotated(pod, [(keys::CONFIG_HASH, hash), (keys::CONFIG_SOURCE, "file")]))
}

#[tokio::test]
async fn a_mirror_is_created_once_and_again_when_it_is_deleted() {
    let cluster = Cluster::start(|_| None).await;
    cluster.pod_manager.set(pod("h"));
    cluster.expect(&["POST"]).await;
    let owner = &cluster.server.received()[1].body["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], "node-uid");
    cluster.watch();
    cluster.expect(&["POST"]).await;
    // The node was registered again.
    let mut node = Node::default();
    node.metadata.uid = Some("new-uid".into());
    cluster.node.replace(node);
    *cluster.object.lock() = None;
    cluster.watch();
    cluster.expect(&["POST", "POST"]).await;
    let calls = cluster.server.received();
    let owner = &calls.last().unwrap().body["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], "new-uid");
    cluster.watch();
    let now = jiff::Timestamp::UNIX_EPOCH;
    let deletion = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
    cluster.object.lock().as_mut().unwrap().metadata.deletion_timestamp = Some(deletion);
    cluster.watch();
    cluster.expect(&["POST", "POST", "DELETE", "POST"]).await;
    assert!(cluster.pod_manager.reader().contains(&"h".into()), "the static pod stays");
}

#[tokio::test]
async fn a_mirror_that_is_deleted_as_soon_as_it_appears_is_created_ever_more_seldom() {
    let cluster = Cluster::start(|_| None).await;
    cluster.pod_manager.set(pod("h"));
    let deleting = async {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            // The kubelet sees each mirror before it goes.
            if cluster.mirrored().is_some() {
                cluster.watch();
                tokio::time::sleep(Duration::from_millis(20)).await;
                *cluster.object.lock() = None;
                cluster.watch();
            }
        }
    };
    let created = || {
        let calls = cluster.server.received();
        calls.iter().filter(|call| call.method == "POST").count()
    };
    // A machine that is busy creates fewer in this time, never more.
    let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(4), deleting).await;
    let so_far = created();
    assert!((1..=4).contains(&so_far), "{so_far} mirrors in four seconds");
    let again = async {
        while created() == so_far {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), again).await;
    assert!(waited.is_ok(), "it is not given up");
}

#[tokio::test]
async fn the_mirror_of_another_version_is_replaced_when_that_one_has_ended() {
    let cluster = Cluster::start(|_| None).await;
    cluster.pod_manager.set(pod("old"));
    cluster.expect(&["POST"]).await;
    cluster.watch();
    cluster.set(IN_USE, true);
    cluster.pod_manager.remove(&"old".into());
    cluster.pod_manager.set(pod("new"));
    cluster.expect(&["POST"]).await;
    cluster.set(IN_USE, false);
    cluster.expect(&["POST", "DELETE", "POST"]).await;
    assert_eq!(cluster.mirrored().as_deref(), Some("new"));
}

#[tokio::test]
async fn an_orphaned_mirror_goes_when_the_sources_have_delivered_and_its_pod_has_ended() {
    let cluster = Cluster::start(|_| None).await;
    *cluster.object.lock() = Some(plan::mirror_of(&pod("h"), "n", "node-uid"));
    cluster.object.lock().as_mut().unwrap().metadata.uid = Some("m".into());
    cluster.set(PODS, false);
    cluster.watch();
    cluster.expect(&[]).await;
    cluster.set(IN_USE, true);
    cluster.set(PODS, true);
    cluster.expect(&[]).await;
    cluster.set(IN_USE, false);
    cluster.expect(&["DELETE"]).await;
    assert_eq!(cluster.mirrored(), None);
}

#[tokio::test]
async fn a_mirror_that_is_refused_is_tried_again() {
    let cluster = Cluster::start(|number| [Some(404), None, Some(403)].get(number).copied()?).await;
    cluster.pod_manager.set(pod("h"));
    cluster.expect(&["POST", "POST"]).await;
    assert_eq!(cluster.mirrored().as_deref(), Some("h"));
}

#[tokio::test]
async fn nothing_is_created_before_the_api_server_has_delivered_its_pods() {
    let cluster = Cluster::start(|_| None).await;
    cluster.set(MIRRORS, false);
    cluster.pod_manager.set(pod("h"));
    cluster.expect(&[]).await;
    cluster.set(MIRRORS, true);
    cluster.expect(&["POST"]).await;
}

#[tokio::test]
async fn a_mirror_whose_deletion_was_refused_is_deleted_again() {
    // The requests before are for the node and the first mirror.
    let cluster = Cluster::start(|number| (number == 2).then_some(409)).await;
    cluster.pod_manager.set(pod("old"));
    cluster.expect(&["POST"]).await;
    cluster.watch();
    cluster.pod_manager.remove(&"old".into());
    cluster.pod_manager.set(pod("new"));
    cluster.expect(&["POST", "DELETE", "DELETE", "POST"]).await;
    assert_eq!(cluster.mirrored().as_deref(), Some("new"));
}

#[tokio::test]
async fn a_mirror_that_is_still_there_after_its_deletion_is_deleted_again() {
    let cluster = Cluster::start(|_| None).await;
    cluster.pod_manager.set(pod("old"));
    cluster.expect(&["POST"]).await;
    cluster.watch();
    let old = cluster.object.lock().clone();
    cluster.set(IN_USE, true);
    cluster.pod_manager.remove(&"old".into());
    cluster.pod_manager.set(pod("new"));
    cluster.set(IN_USE, false);
    cluster.expect(&["POST", "DELETE", "POST"]).await;
    // As after a restore of what the API server stores: nothing of that is known any more.
    *cluster.object.lock() = old;
    cluster.watch();
    cluster.expect(&["POST", "DELETE", "POST", "POST", "DELETE", "POST"]).await;
    assert_eq!(cluster.mirrored().as_deref(), Some("new"));
}
