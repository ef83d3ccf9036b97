//! Objects of an API server that appears, changes, refuses and is away.

use super::tests::pod_of;
use super::*;
use crate::apiserver::tests::stored::{Mode, Stored};
use crate::base::clock;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);

fn key(kind: ObjectKind, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: "shop".into(), name: name.into() }
}

/// A pod that uses config map `m` and secret `s`.
fn pod(uid: &str) -> Pod {
    let mut pod = pod_of("api", uid);
    pod.spec = serde_json::from_value(json!({
        "containers": [],
        "volumes": [
            {"name": "m", "configMap": {"name": "m"}},
            {"name": "s", "secret": {"secretName": "s"}},
        ],
    }))
    .unwrap();
    pod
}

async fn get(
    objects: &ConfigMapSecretReader,
    pod: &Pod,
    kind: ObjectKind,
) -> Result<Arc<ObjectData>, ObjectError> {
    let name = match kind {
        ObjectKind::ConfigMap => "m",
        ObjectKind::Secret => "s",
    };
    let key = key(kind, name);
    let mut found = objects.of(pod).get([key.clone()].into()).await;
    found.remove(&key).unwrap()
}

async fn map(objects: &ConfigMapSecretReader, pod: &Pod) -> Result<String, String> {
    let found = get(objects, pod, ObjectKind::ConfigMap).await;
    let text = |object: Arc<ObjectData>| {
        String::from_utf8_lossy(object.get("k").expect("an entry")).into_owned()
    };
    found.map(text).map_err(|error| error.to_string())
}

async fn start() -> (Stored, ConfigMapSecretReader) {
    let server = Stored::start().await;
    let objects = ConfigMapSecretReader::new(None, Some(server.client().await));
    (server, objects)
}

fn config_map(value: &str) -> Value {
    json!({"data": {"k": value}})
}

/// The pods that are marked next.
async fn changed(objects: &ConfigMapSecretReader) -> Vec<String> {
    let marked = tokio::time::timeout(TIMEOUT, objects.pods_to_sync().take()).await;
    let mut marked: Vec<_> = marked.unwrap().iter().map(ToString::to_string).collect();
    marked.sort();
    marked
}

async fn until(condition: impl Fn() -> bool) {
    let started_at = clock::instant();
    while !condition() {
        assert!(clock::since(started_at) < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_missing_object_is_found_when_it_is_created_and_followed_until_it_is_deleted() {
    let (server, objects) = start().await;
    let pod = pod("u1");
    objects.register(&pod);
    let missing = Err("configmap \"m\" not found".to_owned());
    assert_eq!(map(&objects, &pod).await, missing);
    for value in ["1", "2"] {
        server.put("configmaps", "shop", "m", config_map(value));
        assert_eq!(changed(&objects).await, ["u1"]);
        assert_eq!(map(&objects, &pod).await.unwrap(), value);
    }
    // Something that is no data changed.
    let labelled = json!({"metadata": {"labels": {"a": "b"}}, "data": {"k": "2"}});
    server.put("configmaps", "shop", "m", labelled);
    server.put("configmaps", "shop", "other", config_map("x"));
    server.delete("configmaps", "shop", "m");
    assert_eq!(changed(&objects).await, ["u1"]);
    assert_eq!(map(&objects, &pod).await, missing);
    let error = get(&objects, &pod, ObjectKind::ConfigMap).await;
    assert!(error.unwrap_err().is_not_found());
}

#[tokio::test]
async fn binary_data_and_secrets_are_decoded() {
    let (server, objects) = start().await;
    let binary = json!({"data": {"k": "text"}, "binaryData": {"b": "AP8="}});
    server.put("configmaps", "shop", "m", binary);
    let secret = json!({"metadata": {"uid": "id"}, "type": "kubernetes.io/dockercfg", "data": {"k": "aHVudGVyMg=="}});
    server.put("secrets", "shop", "s", secret);
    let pod = pod("u1");
    objects.register(&pod);
    let object = get(&objects, &pod, ObjectKind::ConfigMap).await.unwrap();
    assert_eq!(object.get("b").unwrap().as_ref(), [0, 255]);
    assert_eq!(object.get("k").unwrap().as_ref(), b"text");
    let object = get(&objects, &pod, ObjectKind::Secret).await.unwrap();
    assert_eq!(object.get("k").unwrap().as_ref(), b"hunter2");
    assert_eq!((object.uid(), object.secret_type()), ("id", "kubernetes.io/dockercfg"));
}

#[tokio::test]
async fn a_thousand_pods_share_one_watch_that_ends_with_the_last() {
    let (server, objects) = start().await;
    server.put("configmaps", "shop", "m", config_map("1"));
    let pods: Vec<Pod> = (0..1000).map(|n| pod(&format!("u{n}"))).collect();
    for pod in &pods {
        objects.register(pod);
        objects.register(pod);
    }
    assert_eq!(map(&objects, &pods[999]).await.unwrap(), "1");
    until(|| server.watches() == 2).await;
    assert_eq!((server.lists(), objects.count()), (2, 2));
    server.put("configmaps", "shop", "m", config_map("2"));
    assert_eq!(changed(&objects).await.len(), 1000);
    for pod in &pods[1..] {
        objects.forget(&pod.uid());
    }
    assert_eq!((objects.count(), server.watches()), (2, 2));
    // An update of the pod that uses less.
    let mut less = pods[0].clone();
    less.spec.as_mut().unwrap().volumes.as_mut().unwrap().pop();
    objects.register(&less);
    until(|| server.watches() == 1).await;
    objects.forget(&pods[0].uid());
    assert_eq!(objects.count(), 0);
    until(|| server.watches() == 0).await;
    let error = map(&objects, &pods[0]).await.unwrap_err();
    assert_eq!(error, r#"object "shop"/"m" not registered"#);
}

#[tokio::test]
async fn an_immutable_object_is_not_watched_once_it_is_read() {
    let (server, objects) = start().await;
    let immutable = json!({"data": {"k": "1"}, "immutable": true});
    server.put("configmaps", "shop", "m", immutable);
    server.put("secrets", "shop", "s", json!({}));
    let pod = pod("u1");
    objects.register(&pod);
    assert_eq!(map(&objects, &pod).await.unwrap(), "1");
    until(|| server.watches() == 1).await;
    server.put("configmaps", "shop", "m", config_map("2"));
    server.put("secrets", "shop", "s", json!({"data": {"k": "eA=="}}));
    assert_eq!(changed(&objects).await, ["u1"]);
    assert_eq!(map(&objects, &pod).await.unwrap(), "1");
    assert_eq!((server.watches(), objects.count()), (1, 2));
}

#[tokio::test]
async fn an_api_server_that_refuses_is_no_missing_object_and_heals_at_once() {
    let (server, objects) = start().await;
    server.put("configmaps", "shop", "m", config_map("1"));
    server.set(Mode::Refusing(403));
    let pod = pod("u1");
    objects.register(&pod);
    let started_at = clock::instant();
    let error = get(&objects, &pod, ObjectKind::ConfigMap).await;
    let error = error.unwrap_err();
    assert!(clock::since(started_at) < Duration::from_secs(3), "{started_at:?}");
    assert!(!error.is_not_found());
    assert_eq!(
        error.to_string(),
        "failed to sync configmap cache: the API server returned 403 Forbidden: scripted Refused"
    );
    server.set(Mode::Serving);
    assert_eq!(changed(&objects).await, ["u1"]);
    assert_eq!(map(&objects, &pod).await.unwrap(), "1");
}

#[tokio::test]
async fn an_api_server_that_does_not_respond_bounds_the_wait() {
    let (server, objects) = start().await;
    server.set(Mode::Silent);
    let pod = pod("u1");
    objects.register(&pod);
    let started_at = clock::instant();
    let wanted = [ObjectKind::ConfigMap, ObjectKind::Secret].map(|kind| {
        key(
            kind,
            match kind {
                ObjectKind::ConfigMap => "m",
                ObjectKind::Secret => "s",
            },
        )
    });
    let found = objects.of(&pod).get(wanted.into()).await;
    assert!(clock::since(started_at) < Duration::from_secs(5), "both at once");
    let texts: Vec<_> = found.into_values().map(|found| found.unwrap_err().to_string()).collect();
    assert_eq!(
        texts,
        [
            "failed to sync configmap cache: timed out waiting for the condition",
            "failed to sync secret cache: timed out waiting for the condition",
        ]
    );
}

#[tokio::test]
async fn what_is_known_stays_while_the_api_server_is_away() {
    let (server, objects) = start().await;
    server.put("configmaps", "shop", "m", config_map("1"));
    let pod = pod("u1");
    objects.register(&pod);
    assert_eq!(map(&objects, &pod).await.unwrap(), "1");
    until(|| server.watches() == 2).await;
    server.set(Mode::Refusing(503));
    until(|| server.watches() == 0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(map(&objects, &pod).await.unwrap(), "1");
    server.put("configmaps", "shop", "m", config_map("2"));
    server.set(Mode::Serving);
    assert_eq!(changed(&objects).await, ["u1"]);
    assert_eq!(map(&objects, &pod).await.unwrap(), "2");
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_is_an_error_without_its_data() {
    let (server, objects) = start().await;
    server.put("configmaps", "shop", "m", json!({"data": {"k": ["hunter2"]}}));
    let pod = pod("u1");
    objects.register(&pod);
    let error = map(&objects, &pod).await.unwrap_err();
    assert!(error.starts_with("configmap \"m\" cannot be read: invalid at line"), "{error}");
    assert!(!error.contains("hunter2"));
    server.put("configmaps", "shop", "m", config_map("1"));
    assert_eq!(changed(&objects).await, ["u1"]);
    assert_eq!(map(&objects, &pod).await.unwrap(), "1");
}

#[tokio::test]
async fn an_object_as_large_as_the_api_lets_it_be_is_read_and_followed() {
    let (server, objects) = start().await;
    let pod = pod("u1");
    objects.register(&pod);
    assert!(map(&objects, &pod).await.is_err());
    let large = "x".repeat(MAX_OBJECT_BYTES);
    server.put("configmaps", "shop", "m", config_map(&large));
    assert_eq!(changed(&objects).await, ["u1"]);
    assert_eq!(map(&objects, &pod).await.unwrap(), large);
}

#[tokio::test]
async fn static_pods_have_no_objects_of_the_cluster_and_others_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("configmaps/shop/m/k");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "of the node").unwrap();
    let server = Stored::start().await;
    server.put("configmaps", "shop", "m", config_map("of the cluster"));
    let objects = ConfigMapSecretReader::new(Some(dir.path().into()), Some(server.client().await));
    let (api, mut fixed) = (pod("u1"), pod("u2"));
    fixed.metadata = pod_of("file", "u2").metadata;
    objects.register(&api);
    objects.register(&fixed);
    assert_eq!(map(&objects, &api).await.unwrap(), "of the cluster");
    assert_eq!(map(&objects, &fixed).await.unwrap(), "of the node");
    let only_files = ConfigMapSecretReader::new(Some(dir.path().into()), None);
    let error = map(&only_files, &api).await.unwrap_err();
    assert_eq!(error, "couldn't get configMap shop/m, no kubeClient defined");
    let only_api = ConfigMapSecretReader::new(None, Some(server.client().await));
    let error = map(&only_api, &fixed).await.unwrap_err();
    assert_eq!(error, "couldn't get configMap shop/m, no kubeClient defined");
    // One without an origin is of the API server.
    let mut bare = pod("u3");
    bare.metadata.annotations = None;
    objects.register(&bare);
    assert_eq!(map(&objects, &bare).await.unwrap(), "of the cluster");
}
