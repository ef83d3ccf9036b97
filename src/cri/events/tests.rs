use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::containerd::wire::Envelope;
use super::{ChangeReader, EventMetrics, RuntimeEventSource, event_stream};
use crate::cri::test_server::{Reply, TestRuntime, until};
use crate::cri::v1::{
    ContainerEventResponse, ContainerMetadata, ContainerState, ContainerStatus,
    ContainerStatusResponse, PodSandboxMetadata, PodSandboxStatus, VersionResponse,
};
use crate::model::PodUid;

const LONG: Duration = Duration::from_secs(60);

fn listen(runtime: &TestRuntime) -> (ChangeReader, tokio_util::sync::DropGuard) {
    let metrics = EventMetrics::register(&runtime.metrics);
    let (stream, reader) = event_stream(runtime.client(LONG), metrics);
    let shutdown = CancellationToken::new();
    tokio::spawn(shutdown.clone().run_until_cancelled_owned(stream.run()));
    (reader, shutdown.drop_guard())
}

/// Takes changes until they contain the container; returns its pod if the event had it.
async fn changed(reader: &ChangeReader, id: &str) -> Option<PodUid> {
    timeout(LONG, async {
        loop {
            if let Some(pod) = reader.take().await.items.remove(id) {
                return pod;
            }
        }
    })
    .await
    .unwrap()
}

async fn relist(reader: &ChangeReader, source: RuntimeEventSource) {
    timeout(LONG, async {
        loop {
            let changes = reader.take().await;
            if changes.relist && changes.source == source {
                return;
            }
        }
    })
    .await
    .unwrap()
}

/// A method whose calls each answer with a stream; the senders of the streams.
fn streams(
    runtime: &TestRuntime,
    method: &'static str,
) -> mpsc::UnboundedReceiver<mpsc::Sender<Vec<u8>>> {
    let (streams, receiver) = mpsc::unbounded_channel();
    runtime.script.on(method, move |_| {
        let (sender, stream) = mpsc::channel(100);
        streams.send(sender).unwrap();
        Reply::Stream(stream)
    });
    receiver
}

fn cri_event(container: &str, pod: &str) -> Vec<u8> {
    let metadata = PodSandboxMetadata { uid: pod.into(), ..Default::default() };
    ContainerEventResponse {
        container_id: container.into(),
        created_at: i64::from(!pod.is_empty()),
        pod_sandbox_status: Some(PodSandboxStatus {
            metadata: Some(metadata),
            ..Default::default()
        }),
        ..Default::default()
    }
    .encode_to_vec()
}

fn task_delete(container: &str) -> Vec<u8> {
    let payload = ContainerEventResponse { container_id: container.into(), ..Default::default() };
    Envelope {
        namespace: "k8s.io".into(),
        topic: "/tasks/delete".into(),
        event: Some(prost_types::Any { type_url: String::new(), value: payload.encode_to_vec() }),
        ..Default::default()
    }
    .encode_to_vec()
}

#[tokio::test]
async fn cri_events_become_changes_with_their_pod_and_a_lost_stream_a_relist() {
    let mut runtime = TestRuntime::started();
    let mut streams = streams(&runtime, "GetContainerEvents");
    let (reader, _guard) = listen(&runtime);
    relist(&reader, RuntimeEventSource::Cri).await;
    let first = streams.recv().await.unwrap();
    first.send(cri_event("c1", "pod-1")).await.unwrap();
    assert_eq!(changed(&reader, "c1").await, Some(PodUid::from("pod-1")));

    drop(first);
    relist(&reader, RuntimeEventSource::Cri).await;
    let second = streams.recv().await.unwrap();
    second.send(cri_event("c2", "")).await.unwrap();
    assert_eq!(changed(&reader, "c2").await, None);
    let text = runtime.metrics.text();
    for line in [
        "kubelet_evented_pleg_connection_success_count 2",
        "kubelet_evented_pleg_connection_error_count 1",
        // Only one of the two events said when it was made.
        "kubelet_evented_pleg_connection_latency_seconds_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }

    runtime.stop().await;
    until("the loss is noticed", || reader.source() == RuntimeEventSource::None).await;
    runtime.start();
    relist(&reader, RuntimeEventSource::Cri).await;
}

#[tokio::test]
async fn a_stream_without_any_event_counts_as_connected() {
    let runtime = TestRuntime::started();
    runtime.script.on("GetContainerEvents", |_| Reply::Hang);
    let (reader, _guard) = listen(&runtime);
    relist(&reader, RuntimeEventSource::Cri).await;
}

#[tokio::test]
async fn without_cri_events_containerds_are_used_and_wait_for_the_cri_to_show_them() {
    let runtime = TestRuntime::started();
    let mut streams = streams(&runtime, "Subscribe");
    let (reader, _guard) = listen(&runtime);
    relist(&reader, RuntimeEventSource::Containerd).await;
    let status = |state: ContainerState| {
        let metadata = Some(ContainerMetadata::default());
        let status = ContainerStatus {
            id: "c1".into(),
            metadata,
            state: state.into(),
            ..Default::default()
        };
        Reply::message(&ContainerStatusResponse { status: Some(status), ..Default::default() })
    };
    let looks = std::sync::atomic::AtomicUsize::new(0);
    runtime.script.on("ContainerStatus", move |_| {
        match looks.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            // A busy disk: for about two seconds.
            0..11 => status(ContainerState::ContainerRunning),
            _ => status(ContainerState::ContainerExited),
        }
    });
    let stream = streams.recv().await.unwrap();
    stream.send(task_delete("c1")).await.unwrap();
    stream.send(task_delete("c1")).await.unwrap();
    assert_eq!(changed(&reader, "c1").await, None);
    assert_eq!(runtime.script.calls("ContainerStatus"), 12);

    // What is not a container is a sandbox.
    runtime.script.on("ContainerStatus", |_| Reply::Fail(Code::NotFound, "no such container"));
    stream.send(task_delete("sandbox")).await.unwrap();
    assert_eq!(changed(&reader, "sandbox").await, None);
}

#[tokio::test]
async fn containerd_1_7_is_not_read_by_its_cri_events() {
    let runtime = TestRuntime::started();
    runtime.script.on("Version", |_| {
        Reply::message(&VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: "v1.7.27".into(),
            ..Default::default()
        })
    });
    let _cri = streams(&runtime, "GetContainerEvents");
    let mut streams = streams(&runtime, "Subscribe");
    let (reader, _guard) = listen(&runtime);
    relist(&reader, RuntimeEventSource::Containerd).await;
    drop(streams.recv().await.unwrap());
    // The next connection as well.
    relist(&reader, RuntimeEventSource::Containerd).await;
    assert_eq!(runtime.script.calls("GetContainerEvents"), 0);
}

#[tokio::test]
async fn a_runtime_without_any_events_leaves_the_mode_at_none_and_is_left_in_peace() {
    let runtime = TestRuntime::started();
    let (reader, _guard) = listen(&runtime);
    let script = runtime.script.clone();
    until("both were tried", || {
        script.calls("GetContainerEvents") == 1 && script.calls("Subscribe") == 1
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(script.calls("GetContainerEvents"), 1);
    assert_eq!(reader.source(), RuntimeEventSource::None);
    assert_eq!(reader.take_now(), None);
}

#[tokio::test]
async fn a_stream_that_fails_with_an_error_is_retried_with_growing_delays() {
    let runtime = TestRuntime::started();
    runtime.script.on("GetContainerEvents", |_| Reply::Fail(Code::Unknown, "events are disabled"));
    let (_reader, _guard) = listen(&runtime);
    let script = runtime.script.clone();
    until("it was asked three times", || script.calls("GetContainerEvents") == 3).await;
    assert_eq!(script.calls("Subscribe"), 0);
}

#[tokio::test]
async fn a_runtime_that_ends_every_stream_at_once_has_no_events() {
    let runtime = TestRuntime::started();
    runtime.script.on("GetContainerEvents", |_| Reply::Messages(vec![]));
    let (reader, _guard) = listen(&runtime);
    let script = runtime.script.clone();
    let streams = || script.calls("GetContainerEvents");
    until("it was tried", || streams() == 3).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(streams(), 3);
    assert_eq!(reader.source(), RuntimeEventSource::None);
    assert_eq!(reader.take_now(), None, "it never seemed to stand");
}
