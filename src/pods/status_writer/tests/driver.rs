use super::*;
use crate::apiserver::tests::scripted::{Received, Scripted};
use crate::pods::status::StatusManager;
use crate::state::pod_manager::{PodChanges, PodManagerWriter};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// An API server with one pod, which fails as a test wants.
struct Cluster {
    server: Scripted,
    pod_manager: PodManagerWriter,
    status_manager: StatusManager,
    object: Arc<Mutex<Option<Pod>>>,
    may_be_running: Arc<AtomicBool>,
    /// The phases that it took.
    phases: Arc<Mutex<Vec<String>>>,
    _running: tokio::task::JoinHandle<anyhow::Result<()>>,
}

fn refusal(code: u16) -> Option<(u16, String)> {
    Some((code, json!({"kind": "Status", "message": "no"}).to_string()))
}

/// Takes patches and deletions.
fn serve(object: &Mutex<Option<Pod>>, call: &Received) -> Option<(u16, String)> {
    let mut object = object.lock();
    let Some(pod) = object.as_mut() else {
        return refusal(404);
    };
    match call.method.as_str() {
        "PATCH" => {
            assert_eq!(call.path, "/api/v1/namespaces/default/pods/web/status");
            assert_eq!(call.body["metadata"], json!({"uid": pod.uid().as_str()}));
            let status = pod.status.take().unwrap_or_default();
            pod.status = Some(patched(&status, &call.body["status"]));
            let version: u64 = pod.metadata.resource_version.take().unwrap().parse().unwrap();
            pod.metadata.resource_version = Some((version + 1).to_string());
            Some((200, serde_json::to_string(pod).unwrap()))
        }
        "DELETE" => {
            assert_eq!(call.path, "/api/v1/namespaces/default/pods/web");
            assert_eq!(call.body["gracePeriodSeconds"], 0);
            assert_eq!(call.body["preconditions"]["uid"], pod.uid().as_str());
            *object = None;
            Some((200, json!({"kind": "Status", "status": "Success"}).to_string()))
        }
        other => panic!("{other}"),
    }
}

async fn wait_for(what: &str, fact: impl Fn() -> bool) {
    let waiting = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "{what}");
}

impl Cluster {
    /// `fails` returns the status of a failure for some of the requests, by their number.
    async fn start(pod: Pod, fails: impl Fn(usize) -> Option<u16> + Send + Sync + 'static) -> Self {
        let number = Mutex::new(0);
        Self::failing(pod, move |_| {
            *number.lock() += 1;
            fails(*number.lock())
        })
        .await
    }

    /// `forbids` is whether it forbids the requests of a method.
    async fn forbidding(pod: Pod, forbids: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self::failing(pod, move |call| forbids(&call.method).then_some(403)).await
    }

    async fn failing(
        pod: Pod,
        fails: impl Fn(&Received) -> Option<u16> + Send + Sync + 'static,
    ) -> Self {
        let object = Arc::new(Mutex::new(Some(pod)));
        let (served, phases) = (object.clone(), Arc::new(Mutex::new(Vec::new())));
        let taken = phases.clone();
        let server = Scripted::serving(move |call| match fails(call) {
            Some(code) => refusal(code),
            None => {
                let phase = call.body["status"]["phase"].as_str();
                taken.lock().extend(phase.map(str::to_owned));
                serve(&served, call)
            }
        })
        .await;
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(dir.path());
        let api = ApiServer::of_kubeconfig(&kubeconfig).await.unwrap();
        let changes = Arc::new(PodChanges::default());
        let pod_manager = PodManagerWriter::default().with_changes(changes.clone());
        let status_manager = StatusManager::new(Some(changes.pods.clone()));
        let may_be_running = Arc::new(AtomicBool::new(true));
        let runs = may_be_running.clone();
        let writer = StatusWriter::new(StatusWriterDeps {
            api,
            statuses: status_manager.reader(),
            pod_manager: pod_manager.reader(),
            may_be_running: Box::new(move |_| runs.load(Ordering::SeqCst)),
            changed: changes.pods.clone(),
            metrics: crate::base::metrics::Metrics::new(),
        });
        Self {
            server,
            pod_manager,
            status_manager,
            object,
            may_be_running,
            phases,
            _running: tokio::spawn(writer.run(CancellationToken::new())),
        }
    }

    /// The watch delivers what there is.
    fn watch(&self) {
        match self.object.lock().clone() {
            Some(pod) => self.pod_manager.set(Arc::new(pod)),
            None => drop(self.pod_manager.remove(&"u".into())),
        }
    }

    fn calls(&self) -> Vec<String> {
        let calls = self.server.received();
        calls.iter().map(|call| call.method.clone()).collect()
    }

    async fn until(&self, what: &str, fact: impl Fn(&[String]) -> bool) {
        wait_for(what, || fact(&self.calls())).await;
    }

    /// Waits for so many requests, and makes sure that there are no more.
    async fn expect(&self, methods: &[&str]) {
        let all = async {
            while self.calls().len() < methods.len() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), all).await;
        assert!(waited.is_ok(), "only {:?}", self.calls());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(self.calls(), methods);
    }

    fn phase(&self) -> Option<String> {
        self.object.lock().as_ref()?.status.as_ref()?.phase.clone()
    }
}

fn running() -> PodStatus {
    PodStatus { container_statuses: Some(vec![container(None)]), ..phase("Running") }
}

#[tokio::test]
async fn a_status_is_sent_once_and_again_when_it_changes() {
    let cluster = Cluster::start(pod("api"), |_| None).await;
    let own = Arc::new(pod("api"));
    cluster.status_manager.set_pod_status(&own, running());
    cluster.watch();
    cluster.expect(&["PATCH"]).await;
    assert_eq!(cluster.phase().as_deref(), Some("Running"));
    cluster.watch();
    cluster.expect(&["PATCH"]).await;
    let message = Some("m".to_owned());
    cluster.status_manager.set_pod_status(&own, PodStatus { message, ..running() });
    cluster.expect(&["PATCH", "PATCH"]).await;
}

#[tokio::test]
async fn a_status_that_the_api_server_has_is_not_sent_after_a_restart() {
    let mut own = pod("api");
    let status = PodStatus { start_time: Some(epoch()), ..running() };
    own.status = Some(status.clone());
    let cluster = Cluster::start(own.clone(), |_| None).await;
    cluster.watch();
    cluster.status_manager.set_pod_status(&Arc::new(own), status);
    cluster.expect(&[]).await;
}

#[tokio::test]
async fn failures_that_pass_are_retried_and_the_newest_status_arrives() {
    let fails = |number: usize| [Some(503), Some(409), Some(403), None][number.min(4) - 1];
    let cluster = Cluster::start(pod("api"), fails).await;
    let own = Arc::new(pod("api"));
    cluster.watch();
    cluster.status_manager.set_pod_status(&own, phase("Pending"));
    cluster.status_manager.set_pod_status(&own, running());
    cluster.expect(&["PATCH"; 4]).await;
    assert_eq!(cluster.phase().as_deref(), Some("Running"));
}

/// Five minutes later; the requests that are under way may time out.
async fn after_five_minutes() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_pod_whose_last_status_is_always_forbidden_is_deleted_in_the_end() {
    let mut own = pod("api");
    own.metadata.deletion_timestamp = Some(epoch());
    let forbidden = Arc::new(Mutex::new(vec!["PATCH"]));
    let forbids = forbidden.clone();
    let cluster =
        Cluster::forbidding(own.clone(), move |method| forbids.lock().contains(&method)).await;
    let own = Arc::new(own);
    cluster.watch();
    cluster.status_manager.set_pod_status(&own, running());
    cluster.may_be_running.store(false, Ordering::SeqCst);
    cluster.status_manager.terminate_pod(&own, None);
    cluster.until("it is tried again", |calls| calls.len() >= 3).await;
    assert!(cluster.calls().iter().all(|call| call == "PATCH"));
    after_five_minutes().await;
    cluster.until("it is deleted", |calls| calls.last().is_some_and(|last| last == "DELETE")).await;
    assert!(cluster.object.lock().is_none());
}

#[tokio::test]
async fn a_status_that_is_forbidden_is_sent_when_it_is_allowed_however_late() {
    for deleted in [false, true] {
        let mut own = pod("api");
        own.metadata.deletion_timestamp = deleted.then(epoch);
        let forbidden = Arc::new(Mutex::new(vec!["PATCH", "DELETE"]));
        let forbids = forbidden.clone();
        let cluster =
            Cluster::forbidding(own.clone(), move |method| forbids.lock().contains(&method)).await;
        let own = Arc::new(own);
        cluster.watch();
        cluster.may_be_running.store(false, Ordering::SeqCst);
        let ended =
            PodStatus { container_statuses: Some(vec![container(Some(0))]), ..phase("Succeeded") };
        cluster.status_manager.set_pod_status(&own, ended);
        cluster.status_manager.terminate_pod(&own, None);
        cluster.until("it is tried again", |calls| calls.len() >= 3).await;
        after_five_minutes().await;
        let before = cluster.calls().len();
        cluster.until("it is tried again", |calls| calls.len() >= before + 3).await;
        forbidden.lock().clear();
        let phases = cluster.phases.clone();
        wait_for("the status arrives", || phases.lock().contains(&"Succeeded".to_owned())).await;
    }
}

#[tokio::test]
async fn a_status_that_is_invalid_waits_for_the_next_change() {
    let cluster = Cluster::start(pod("api"), |number| (number == 1).then_some(422)).await;
    let own = Arc::new(pod("api"));
    cluster.watch();
    cluster.status_manager.set_pod_status(&own, phase("Running"));
    cluster.expect(&["PATCH"]).await;
    cluster.status_manager.mark(&"u".into());
    cluster.expect(&["PATCH"]).await;
    cluster.status_manager.set_pod_status(&own, running());
    cluster.expect(&["PATCH", "PATCH"]).await;
}

#[tokio::test]
async fn a_pod_is_deleted_once_when_nothing_of_it_is_left_and_its_end_was_sent() {
    let mut own = pod("api");
    own.metadata.deletion_timestamp = Some(epoch());
    let cluster = Cluster::start(own.clone(), |number| (number == 3).then_some(500)).await;
    let own = Arc::new(own);
    cluster.watch();
    cluster.status_manager.set_pod_status(&own, running());
    cluster.expect(&["PATCH"]).await;
    cluster.may_be_running.store(false, Ordering::SeqCst);
    cluster.status_manager.terminate_pod(&own, None);
    cluster.expect(&["PATCH", "PATCH", "DELETE", "DELETE"]).await;
    cluster.status_manager.mark(&"u".into());
    cluster.watch();
    cluster.status_manager.remove(&"u".into());
    cluster.expect(&["PATCH", "PATCH", "DELETE", "DELETE"]).await;
    let patches = cluster.server.received();
    assert_eq!(patches[1].body["status"]["phase"], "Failed");
}

#[tokio::test]
async fn a_pod_that_ended_by_itself_stays_until_a_client_deletes_it() {
    let cluster = Cluster::start(pod("api"), |_| None).await;
    let own = Arc::new(pod("api"));
    cluster.watch();
    cluster.may_be_running.store(false, Ordering::SeqCst);
    cluster.status_manager.set_pod_status(&own, phase("Succeeded"));
    cluster.status_manager.terminate_pod(&own, None);
    cluster.expect(&["PATCH"]).await;
    let deletion = Some(epoch());
    cluster.object.lock().as_mut().unwrap().metadata.deletion_timestamp = deletion;
    cluster.watch();
    cluster.expect(&["PATCH", "DELETE"]).await;
}

#[tokio::test]
async fn a_static_pod_shows_its_status_in_its_mirror_and_nowhere_else() {
    let mut mirror = pod("file");
    mirror.metadata.uid = Some("m".into());
    let annotations = mirror.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_MIRROR.into(), "h".into());
    let mut own = pod("file");
    let annotations = own.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_HASH.into(), "h".into());
    let own = Arc::new(own);
    let cluster = Cluster::start(mirror.clone(), |_| None).await;
    cluster.pod_manager.set(own.clone());
    cluster.status_manager.set_pod_status(&own, running());
    cluster.expect(&[]).await;
    let mut others = mirror.clone();
    let annotations = others.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_MIRROR.into(), "another version".into());
    cluster.pod_manager.set_mirror(Arc::new(others));
    cluster.expect(&[]).await;
    cluster.pod_manager.set_mirror(Arc::new(mirror));
    cluster.expect(&["PATCH"]).await;
    assert_eq!(cluster.phase().as_deref(), Some("Running"));
}
