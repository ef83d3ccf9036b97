use super::*;
use crate::base::clock;
use crate::model::validation::LocalConfigMapsAndSecrets;
use crate::model::{
    Completeness, ContainerState, ContainerStatus, PodOp, SandboxStatus, container_hash, keys,
};
use crate::state::pod_cache::{InspectedItem, ListEntry, PodCacheWriter, PodRef, pod_cache};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: \"{image}\"\n"
    )
}

/// The cache of a runtime without pods.
fn nothing_runs() -> PodCache {
    let (writer, cache) = pod_cache();
    writer.apply_list(writer.next_seq(), vec![], vec![]);
    cache
}

async fn next(updates: &mut mpsc::Receiver<PodUpdate>) -> (PodOp, Vec<String>) {
    let update = timeout(TIMEOUT, updates.recv()).await.unwrap().unwrap();
    let names = update.pods.iter().map(|pod| pod.name().to_string());
    (update.op, names.collect())
}

#[tokio::test]
async fn an_edit_of_a_file_is_a_removal_and_then_an_addition() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let mut tasks = Tasks::new();
    let config = Config {
        node_name: "n".into(),
        file: Some(FileConfig {
            source: PodSource::File,
            path: dir.path().into(),
            check_period: Duration::from_secs(3600),
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        }),
        http: None,
        posted: None,
        api: None,
        cache: nothing_runs(),
    };
    let (sources, mut updates, ready) = PodConfig::build(config, EventRecorder::new()).unwrap();
    sources.start(&mut tasks);
    assert_eq!(next(&mut updates).await, (PodOp::Add, vec![]));
    assert!(!ready.all_delivered(), "the sync loop has not said so");
    ready.mark_seen(PodSource::File, Completeness::Complete);
    assert!(ready.all_delivered());
    std::fs::write(&path, manifest("a", "1")).unwrap();
    assert_eq!(next(&mut updates).await, (PodOp::Add, vec!["a-n".into()]));
    std::fs::write(&path, manifest("a", "2")).unwrap();
    assert_eq!(next(&mut updates).await, (PodOp::Remove, vec!["a-n".into()]));
    assert_eq!(next(&mut updates).await, (PodOp::Add, vec!["a-n".into()]));
    timeout(TIMEOUT, tasks.stop()).await.unwrap();
}

#[tokio::test]
async fn a_given_uid_makes_an_edit_an_update() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let with_uid = |image| manifest("a", image).replace("  name: a\n", "  name: a\n  uid: u-1\n");
    std::fs::write(&path, with_uid("1")).unwrap();
    let mut tasks = Tasks::new();
    let config = Config {
        node_name: "n".into(),
        file: Some(FileConfig {
            source: PodSource::File,
            path: path.clone(),
            check_period: Duration::from_secs(3600),
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        }),
        http: None,
        posted: None,
        api: None,
        cache: nothing_runs(),
    };
    let (sources, mut updates, _ready) = PodConfig::build(config, EventRecorder::new()).unwrap();
    sources.start(&mut tasks);
    assert_eq!(next(&mut updates).await, (PodOp::Add, vec!["a-n".into()]));
    std::fs::write(&path, with_uid("2")).unwrap();
    // The same UID, and another pod.
    for op in [PodOp::Remove, PodOp::Add] {
        assert_eq!(next(&mut updates).await, (op, vec!["a-n".into()]));
    }
    timeout(TIMEOUT, tasks.stop()).await.unwrap();
}

#[tokio::test]
async fn without_sources_the_merger_waits_for_shutdown() {
    let mut tasks = Tasks::new();
    let config = Config {
        node_name: "n".into(),
        file: None,
        http: None,
        posted: None,
        api: None,
        cache: nothing_runs(),
    };
    let (sources, mut updates, ready) = PodConfig::build(config, EventRecorder::new()).unwrap();
    sources.start(&mut tasks);
    assert!(ready.all_delivered());
    assert!(updates.try_recv().is_err());
    timeout(TIMEOUT, tasks.stop()).await.unwrap();
}

#[tokio::test]
async fn a_url_that_is_none_is_refused_before_anything_starts() {
    let config = Config {
        node_name: "n".into(),
        file: None,
        http: Some(HttpConfig {
            url: "nonsense".into(),
            headers: vec![],
            check_period: Duration::from_secs(20),
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        }),
        posted: None,
        api: None,
        cache: nothing_runs(),
    };
    assert!(PodConfig::build(config, EventRecorder::new()).is_err());
}

#[tokio::test]
async fn pods_of_one_name_in_one_list_are_reported_as_an_event() {
    let (lists, to_merge) = mpsc::channel(1);
    let (sender, mut updates) = mpsc::channel(1);
    let recorder = EventRecorder::new();
    let shutdown = CancellationToken::new();
    let merger = merge_all(
        to_merge,
        lists.clone(),
        sender,
        recorder.clone(),
        nothing_runs(),
        shutdown.clone(),
    );
    let merger = tokio::spawn(merger);
    let pod = |uid: &str| {
        let mut pod = Pod::default();
        pod.metadata.name = Some("a".into());
        pod.metadata.uid = Some(uid.into());
        Arc::new(pod)
    };
    let source = PodSource::Http;
    let pods = vec![pod("1"), pod("2")];
    lists.send(SourceList { source, pods, completeness: Completeness::Complete }).await.unwrap();
    assert_eq!(next(&mut updates).await, (PodOp::Add, vec!["a".into()]));
    let events = recorder.recent();
    assert_eq!(events.len(), 1);
    assert!(events[0].message.contains("due to duplicate pod name"));
    shutdown.cancel();
    merger.await.unwrap().unwrap();
}

fn container_of_web() -> Container {
    Container { name: "c".into(), image: Some("image".into()), ..Container::default() }
}

/// The pod `web` of a file in a runtime that returns its items one by one: its old sandbox, its newest one, its container.
struct SlowRuntime {
    writer: PodCacheWriter,
    cache: PodCache,
    pod_ref: PodRef,
    unread: Vec<(ItemId, InspectedItem)>,
}

impl SlowRuntime {
    /// A runtime that has listed the pod and has returned its old sandbox.
    fn with(uid: &str, digest: Option<&str>) -> Self {
        let pod_ref = PodRef { uid: uid.into(), name: "web".into(), namespace: "ns".into() };
        let sandbox = |id: &str, attempt, ready| SandboxStatus {
            id: id.into(),
            attempt,
            ready,
            source: Some(PodSource::File),
            manifest_digest: digest.map(Into::into),
            ..SandboxStatus::default()
        };
        let sandboxes = [sandbox("new", 1, true), sandbox("old", 0, false)];
        let container = ContainerStatus {
            id: "container".into(),
            name: "c".into(),
            hash: container_hash(&container_of_web()).into(),
            state: ContainerState::Running,
            ..ContainerStatus::default()
        };
        let (writer, cache) = pod_cache();
        let listed = sandboxes.clone().map(|status| ListEntry { pod_ref: pod_ref.clone(), status });
        let listed_container = ListEntry { pod_ref: pod_ref.clone(), status: container.clone() };
        writer.apply_list(writer.next_seq(), listed.into(), vec![listed_container]);
        let item = ItemId::Container(container.id.clone());
        let mut unread = vec![(item, InspectedItem::Container(container))];
        unread.extend(sandboxes.map(|one| {
            let item = ItemId::Sandbox(one.id.clone());
            (item, InspectedItem::Sandbox(one))
        }));
        let mut runtime = Self { writer, cache, pod_ref, unread };
        runtime.read_next();
        runtime
    }

    fn read_next(&mut self) {
        let (item, read) = self.unread.pop().unwrap();
        let seq = self.writer.next_seq();
        self.writer.apply(&self.pod_ref, &item, seq, read);
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_waits_only_for_what_decides_about_the_adoption_of_a_uid() {
    const OTHER: &str = "0123456789abcdef0123456789abcdef";
    const OWN: &str = "ffffffffffffffffffffffffffffffff";
    // How many items the runtime returns, one a second: the newest sandbox, then the container.
    let (nothing, sandbox, all) = (0, 1, 2);
    for (what, digest, name, uid, returned, adopts, waits) in [
        ("another name", None, "db", OWN, nothing, OWN, 0),
        ("its own UID", None, "web", OTHER, nothing, OTHER, 0),
        ("same digest", Some("v1:d"), "web", OWN, sandbox, OTHER, 1),
        ("another digest", Some("v1:e"), "web", OWN, sandbox, OWN, 1),
        ("no digest", None, "web", OWN, all, OTHER, 2),
        ("another version", Some("v0:d"), "web", OWN, all, OTHER, 2),
        ("unreadable", None, "web", OWN, sandbox, OWN, 3),
    ] {
        let mut runtime = SlowRuntime::with(OTHER, digest);
        let (lists, to_merge) = mpsc::channel(1);
        let (sender, mut updates) = mpsc::channel(1);
        let shutdown = CancellationToken::new();
        let merger = merge_all(
            to_merge,
            lists.clone(),
            sender,
            EventRecorder::new(),
            runtime.cache.clone(),
            shutdown.clone(),
        );
        let merger = tokio::spawn(merger);
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some(uid.into());
        let digest_of_manifest = (keys::MANIFEST_DIGEST.to_owned(), "v1:d".to_owned());
        pod.metadata.annotations = Some([digest_of_manifest].into());
        pod.spec = Some(PodSpec { containers: vec![container_of_web()], ..PodSpec::default() });
        let list = SourceList {
            source: PodSource::File,
            pods: vec![Arc::new(pod)],
            completeness: Completeness::Complete,
        };
        let before = clock::instant();
        lists.send(list).await.unwrap();
        let read = async {
            for _ in 0..returned {
                sleep(Duration::from_secs(1)).await;
                runtime.read_next();
            }
        };
        let delivered = async {
            let update = updates.recv().await.unwrap();
            (update.pods[0].uid(), clock::since(before))
        };
        let ((), (delivered, waited)) = tokio::join!(read, delivered);
        assert_eq!(delivered, adopts.into(), "{what}");
        assert_eq!(waited.as_secs(), waits, "{what}: {waited:?}");
        shutdown.cancel();
        merger.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_list_is_complete_with_its_last_message_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a.yaml"), manifest("a", "1")).unwrap();
    std::fs::write(path("bad.yaml"), "nonsense: [").unwrap();
    let mut tasks = Tasks::new();
    let config = Config {
        node_name: "n".into(),
        file: Some(FileConfig {
            source: PodSource::File,
            path: dir.path().into(),
            check_period: Duration::from_secs(3600),
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        }),
        http: None,
        posted: None,
        api: None,
        cache: nothing_runs(),
    };
    let (sources, mut updates, ready) = PodConfig::build(config, EventRecorder::new()).unwrap();
    sources.start(&mut tasks);
    let mut next = async || timeout(TIMEOUT, updates.recv()).await.unwrap().unwrap();
    let first = next().await;
    assert_eq!((first.op, first.pods.len()), (PodOp::Add, 1));
    let unread = |name: &str| BTreeSet::from([path(name).display().to_string()]);
    assert_eq!(first.completeness, unread("bad.yaml").into());
    ready.mark_seen(first.source, first.completeness);
    // What is missing can be read now.
    std::fs::write(path(".new"), manifest("b", "1")).unwrap();
    std::fs::rename(path(".new"), path("bad.yaml")).unwrap();
    let second = next().await;
    assert_eq!((second.op, second.pods.len()), (PodOp::Add, 1));
    assert!(!ready.is_removed(PodSource::File, &"u".into(), None), "it waits in the channel");
    assert_eq!(second.completeness, Completeness::Complete);
    ready.mark_seen(second.source, second.completeness);
    assert!(ready.is_removed(PodSource::File, &"u".into(), None));
    // An edit is two messages; in between a pod is wanted that is not known.
    std::fs::write(path(".new"), manifest("a", "2")).unwrap();
    std::fs::rename(path(".new"), path("a.yaml")).unwrap();
    let (removed, added) = (next().await, next().await);
    let known = (removed.completeness, added.completeness);
    assert_eq!((removed.op, added.op), (PodOp::Remove, PodOp::Add));
    assert_eq!(known, (Completeness::Partial, Completeness::Complete));
    // Nothing but the completeness changes.
    std::fs::write(path("bad2.yaml"), "nonsense: [").unwrap();
    let worse = next().await;
    assert_eq!((worse.op, worse.pods.len()), (PodOp::Add, 0));
    assert_eq!(worse.completeness, unread("bad2.yaml").into());
    std::fs::remove_file(path("bad2.yaml")).unwrap();
    let better = next().await;
    assert_eq!(better.pods.len(), 0);
    assert_eq!(better.completeness, Completeness::Complete);
    timeout(TIMEOUT, tasks.stop()).await.unwrap();
}
