use super::encode::{FieldKind, INLINE, PodEncoder};
use super::v1alpha1::EventType;
use super::v1alpha1::pods_client::PodsClient;
use super::*;
use crate::server::tests::known_pods;
use crate::state::pod_manager::PodManagerWriter;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch as version;
use tonic::transport::{Channel, Endpoint};

fn encoded(pod: &Value) -> Vec<u8> {
    PodEncoder::new().unwrap().pod(pod).unwrap()
}

/// A field with a body of less than 128 bytes.
fn field(number: u8, body: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, u8::try_from(body.len()).unwrap()];
    field.extend_from_slice(body);
    field
}

#[test]
fn every_kind_of_field_is_encoded_as_kubernetes_does() {
    let metadata = |body: &[u8]| field(1, body);
    let spec = |body: &[u8]| field(2, body);
    for (pod, expected) in [
        (json!({}), vec![]),
        (json!({"metadata": {"name": "a"}}), metadata(&field(1, b"a"))),
        (json!({"metadata": {"name": null}}), metadata(&[])),
        (
            json!({"metadata": {"labels": {"k": "v"}}}),
            metadata(&field(11, &[field(1, b"k"), field(2, b"v")].concat())),
        ),
        (json!({"metadata": {"generation": 300}}), metadata(&[7 << 3, 0xac, 0x02])),
        (
            json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:05Z"}}),
            metadata(&field(8, &[1 << 3, 5, 2 << 3, 0])),
        ),
        (
            json!({"spec": {"hostNetwork": true, "nodeName": "n"}}),
            spec(&[field(10, b"n"), vec![11 << 3, 1]].concat()),
        ),
        (
            json!({"spec": {"priority": -1}}),
            spec(&[vec![0xc8, 0x01], vec![0xff; 9], vec![0x01]].concat()),
        ),
        (
            json!({"status": {"containerStatuses": [{"volumeMounts": [{"name": "v"}]}]}}),
            field(3, &field(8, &field(12, &field(1, b"v")))),
        ),
        // The source of a volume is a message of its own.
        (
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]}}),
            spec(&field(
                1,
                &[field(1, b"v"), field(2, &field(2, &field(2, &field(1, b"1Gi"))))].concat(),
            )),
        ),
    ] {
        assert_eq!(encoded(&pod), expected, "{pod}");
    }
    let probe = |port: Value| json!({"spec": {"containers": [{"livenessProbe": {"tcpSocket": {"port": port}}}]}});
    for (port, expected) in [
        (json!(80), vec![2 << 3, 80]),
        (json!("web"), [vec![1 << 3, 1], field(3, b"web")].concat()),
    ] {
        let bytes = encoded(&probe(port));
        assert!(bytes.ends_with(&field(1, &expected)), "{bytes:?}");
    }
}

#[test]
fn a_field_of_another_type_is_named() {
    let encoder = PodEncoder::new().unwrap();
    let pod = json!({"spec": {"containers": [{"ports": [{"containerPort": "x"}]}]}});
    let error = encoder.pod(&pod).unwrap_err();
    assert_eq!(
        error_chain(error.as_ref()),
        "the pod: spec: containers: ports: containerPort: not a number"
    );
}

/// Names of JSON fields that no message has.
fn unknown(encoder: &PodEncoder, message: &str, value: &Value) -> Vec<String> {
    let fields = &encoder.messages[message];
    let mut found = Vec::new();
    for (name, value) in value.as_object().unwrap() {
        let inline = fields.iter().filter(|field| INLINE.contains(&&*field.name));
        let known = fields.iter().chain(inline.flat_map(|field| match &field.kind {
            FieldKind::Message(name) => encoder.messages[name].iter(),
            _ => [].iter(),
        }));
        let Some(field) = known.into_iter().find(|field| field.name == *name) else {
            found.push(format!("{message}.{name}"));
            continue;
        };
        let FieldKind::Message(message) = &field.kind else {
            continue;
        };
        match value {
            Value::Array(list) => {
                found.extend(list.iter().flat_map(|value| unknown(encoder, message, value)));
            }
            value => found.extend(unknown(encoder, message, value)),
        }
    }
    found
}

#[test]
fn every_field_of_documented_pods_is_encoded() {
    let encoder = PodEncoder::new().unwrap();
    let mut seen = 0;
    for entry in
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/manifests")).unwrap()
    {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let pod: Pod = serde_yaml::from_str(&text).unwrap();
        let mut pod = serde_json::to_value(pod).unwrap();
        let object = pod.as_object_mut().unwrap();
        object.retain(|name, _| name != "kind" && name != "apiVersion");
        assert_eq!(unknown(&encoder, "Pod", &pod), [""; 0], "{}", path.display());
        assert!(!encoder.pod(&pod).unwrap().is_empty());
        seen += 1;
    }
    assert!(seen > 3, "the examples were not found");
}

fn pod(uid: &str, label: &str) -> Arc<Pod> {
    let pod =
        json!({"metadata": {"name": "p", "namespace": "n", "uid": uid, "labels": {"l": label}}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn status(phase: &str) -> Option<Arc<PodStatus>> {
    Some(Arc::new(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }))
}

#[test]
fn a_watch_sends_what_differs_from_what_it_sent_last() {
    use EventType::{Added, Deleted, Modified};
    let mut sent = HashMap::new();
    let label = |pod: &Pod| pod.metadata.labels.as_ref().map(|labels| labels["l"].clone());
    let running = (pod("u", "2"), status("Running"));
    for (pods, expected) in [
        // It has no status yet.
        (vec![(pod("u", "1"), None)], vec![]),
        (vec![(pod("u", "1"), status("Pending"))], vec![(Added, "u", Some("1"), Some("Pending"))]),
        (
            vec![running.clone(), (pod("v", "1"), status("Pending"))],
            vec![
                (Modified, "u", Some("2"), Some("Running")),
                (Added, "v", Some("1"), Some("Pending")),
            ],
        ),
        // Equal objects are the same.
        (vec![(pod("u", "2"), status("Running")), (pod("v", "1"), status("Pending"))], vec![]),
        (vec![running], vec![(Deleted, "v", None, None)]),
    ] {
        let events = watch::diff(&mut sent, pods).into_iter();
        let events: Vec<_> = events
            .map(|(kind, (pod, status))| {
                let phase = status.and_then(|status| status.phase.clone());
                (kind, pod.uid().to_string(), label(&pod), phase)
            })
            .collect();
        let expected = expected.into_iter().map(|(kind, uid, label, phase)| {
            let text = |text: Option<&str>| text.map(str::to_owned);
            (kind, uid.to_owned(), text(label), text(phase))
        });
        assert_eq!(events, expected.collect::<Vec<_>>());
    }
}

/// The service over these pods, their store, and the senders of changes.
fn api(pods: &[PodWithStatus]) -> (PodsApi, PodManagerWriter, [version::Sender<u64>; 2]) {
    let (desired, known) = known_pods(pods);
    let ((pods, changed), (other, statuses)) = (version::channel(0), version::channel(0));
    let api = PodsApi::new(known, Changes { pods: changed, statuses }, CancellationToken::new());
    (api.unwrap(), desired, [pods, other])
}

#[tokio::test(start_paused = true)]
async fn requests_are_limited_as_upstream_limits_them() {
    let (api, _desired, _changes) = api(&[]);
    let code = async || {
        let request = v1alpha1::GetPodRequest::default();
        api.get_pod(Request::new(request)).await.unwrap_err().code()
    };
    for _ in 0..RequestRate::BURST {
        assert_eq!(code().await, tonic::Code::NotFound);
    }
    assert_eq!(code().await, tonic::Code::ResourceExhausted);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(code().await, tonic::Code::NotFound);
}

async fn client(socket: PathBuf) -> PodsClient<Channel> {
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = UnixStream::connect(socket).await?;
            io::Result::Ok(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    PodsClient::new(endpoint.connect_with_connector_lazy(connect))
}

#[tokio::test]
async fn agents_list_get_and_watch_pods_over_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("pods-api/pods-api.sock");
    let (api, desired, [pods, _statuses]) = api(&[(pod("u", "1"), status("Running"))]);
    let shutdown = api.0.shutdown.clone();
    let place = socket.clone();
    let serving = tokio::spawn(async move { api.serve(place).await });
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    let mut client = client(socket.clone()).await;
    let mut events = client.watch_pods(v1alpha1::WatchPodsRequest {}).await.unwrap().into_inner();
    let first = events.message().await.unwrap().unwrap();
    assert_eq!(first.r#type(), EventType::Added);
    let second = events.message().await.unwrap().unwrap();
    assert_eq!(second.r#type(), EventType::InitialSyncComplete);
    let list = client.list_pods(v1alpha1::ListPodsRequest {}).await.unwrap().into_inner();
    assert_eq!(list.pods.as_slice(), std::slice::from_ref(&first.pod));
    let get = |uid: &str| v1alpha1::GetPodRequest { pod_uid: uid.to_owned() };
    let got = client.get_pod(get("u")).await.unwrap().into_inner();
    assert_eq!(got.pod, first.pod);
    let missing = client.get_pod(get("v")).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound);
    assert!(desired.remove(&"u".into()).is_some());
    pods.send_modify(|version| *version += 1);
    let last = events.message().await.unwrap().unwrap();
    assert_eq!(last.r#type(), EventType::Deleted);
    shutdown.cancel();
    assert_eq!(events.message().await.unwrap(), None);
    serving.await.unwrap().unwrap();
    assert!(!socket.exists());
}
