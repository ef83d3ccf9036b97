use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tonic::Code;

use super::test_server::{Reply, TestRuntime, until};
use super::v1::{
    AuthConfig, Container, ContainerConfig, ContainerFilter, ContainerMetadata, ContainerState,
    ContainerStatus, ContainerStatusResponse, CreateContainerResponse, ExecSyncRequest,
    ExecSyncResponse, ImageSpec, ImageStatusResponse, ListContainersRequest,
    ListContainersResponse, ListPodSandboxResponse, PodSandbox, PodSandboxConfig,
    PullImageResponse, RuntimeCondition, RuntimeStatus, StatusResponse, StreamContainersResponse,
    VersionResponse,
};
use super::{CriError, ListChange, ListFingerprint, Rpc, wait_for_runtime};
use crate::base::clock;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

fn version() -> VersionResponse {
    VersionResponse { version: "0.1.0".into(), runtime_name: "test".into(), ..Default::default() }
}

fn container(n: usize, state: ContainerState) -> Container {
    Container {
        id: format!("c{n}"),
        metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
        state: state.into(),
        labels: (0..5).map(|n| (format!("key{n}"), format!("value{n}"))).collect(),
        ..Default::default()
    }
}

fn list(containers: Vec<Container>) -> Reply {
    Reply::message(&ListContainersResponse { containers })
}

fn ids(mut containers: Vec<Container>) -> Vec<String> {
    containers.sort_by(|a, b| a.id.cmp(&b.id));
    containers.into_iter().map(|container| container.id).collect()
}

#[tokio::test]
async fn a_missing_socket_fails_at_once_and_says_which() {
    let runtime = TestRuntime::stopped();
    let client = runtime.client(LONG);
    let begin = clock::instant();
    for _ in 0..3 {
        let error = client.version().await.unwrap_err();
        assert!(
            matches!(error, CriError::Unavailable { kind: Some(std::io::ErrorKind::NotFound), .. }),
            "{error:?}"
        );
        assert!(error.message().contains("cri.sock"), "{error}");
    }
    assert!(clock::since(begin) < LONG / 2);
}

#[tokio::test]
async fn calls_work_again_after_the_runtime_restarts_without_anyone_reconnecting() {
    let mut runtime = TestRuntime::started();
    runtime.script.on("Version", |_| Reply::message(&version()));
    let client = runtime.client(LONG);
    assert_eq!(client.version().await.unwrap().runtime_name, "test");
    runtime.stop().await;
    assert!(client.version().await.unwrap_err().is_unavailable());
    runtime.start();
    let end = clock::instant() + LONG;
    while client.version().await.is_err() {
        assert!(clock::instant() < end);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_change_under_way_when_the_runtime_dies_has_an_unknown_outcome() {
    let mut runtime = TestRuntime::started();
    runtime.script.on("RemoveContainer", |_| Reply::Hang).on("ListContainers", |_| Reply::Hang);
    let client = runtime.client(LONG);
    let change = tokio::spawn({
        let client = client.clone();
        async move { client.remove_container("x").await }
    });
    let question = tokio::spawn({
        let client = client.clone();
        async move { client.list_containers(None).await }
    });
    let script = runtime.script.clone();
    until("both are under way", || {
        script.calls("RemoveContainer") == 1 && script.calls("ListContainers") == 1
    })
    .await;
    runtime.stop().await;
    let error = change.await.unwrap().unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    let error = question.await.unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
}

#[tokio::test]
async fn a_call_over_its_deadline_has_an_unknown_outcome_and_is_cancelled() {
    let runtime = TestRuntime::started();
    runtime.script.on("StartContainer", |_| Reply::Hang).on("ContainerStatus", |_| Reply::Hang);
    let client = runtime.client(SHORT);
    let error = client.container_status("x").await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert_eq!(error.rpc(), Rpc::ContainerStatus);
    let script = runtime.script.clone();
    until("the call is cancelled", || script.aborted("ContainerStatus") == 1).await;
}

#[tokio::test]
async fn a_create_over_its_deadline_lives_on_in_the_runtime() {
    let runtime = TestRuntime::started();
    let made = Arc::new(AtomicUsize::new(0));
    runtime.script.on("CreateContainer", {
        let made = made.clone();
        move |_| {
            made.fetch_add(1, Ordering::SeqCst);
            let reply = Reply::message(&CreateContainerResponse { container_id: "late".into() });
            Reply::After(SHORT * 3, Box::new(reply))
        }
    });
    let client = runtime.client(SHORT);
    let error = client
        .create_container("s", ContainerConfig::default(), &PodSandboxConfig::default())
        .await
        .unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    until("it is made", || made.load(Ordering::SeqCst) == 1).await;
    tokio::time::sleep(SHORT * 4).await;
    assert_eq!(runtime.script.aborted("CreateContainer"), 0);
}

#[tokio::test]
async fn the_deadline_covers_a_reply_that_stops_half_way() {
    let runtime = TestRuntime::started();
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let receiver = parking_lot::Mutex::new(Some(receiver));
    runtime.script.on("ContainerStatus", move |_| Reply::Stream(receiver.lock().take().unwrap()));
    let status = ContainerStatusResponse {
        status: Some(ContainerStatus {
            id: "x".into(),
            metadata: Some(ContainerMetadata::default()),
            ..Default::default()
        }),
        ..Default::default()
    };
    sender.send(status.encode_to_vec()).await.unwrap();
    let error = runtime.client(SHORT).container_status("x").await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    drop(sender);
}

#[tokio::test]
async fn stop_and_exec_get_their_own_time_on_top() {
    let runtime = TestRuntime::started();
    let late = SHORT * 3;
    runtime
        .script
        .on("StopContainer", move |_| Reply::After(late, Box::new(Reply::Messages(vec![vec![]]))))
        .on("ExecSync", move |request| {
            let seconds = ExecSyncRequest::decode(request).unwrap().timeout;
            let reply = ExecSyncResponse {
                stdout: seconds.to_string().into_bytes(),
                stderr: vec![],
                exit_code: 7,
            };
            Reply::After(late, Box::new(Reply::message(&reply)))
        });
    let client = runtime.client(SHORT);
    client.stop_container("x", 1).await.unwrap();
    let cmd = ["true".to_owned()];
    // Sub-second timeouts are rounded up: zero would mean none.
    let output = client.exec_sync("x", &cmd, Duration::from_millis(900)).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.exit_code), (&b"1"[..], 7));
    let output = client.exec_sync("x", &cmd, Duration::ZERO).await.unwrap();
    assert_eq!(output.stdout, b"0");
    assert!(client.stop_container("x", 0).await.unwrap_err().is_outcome_unknown());
}

#[tokio::test]
async fn errors_of_the_runtime_keep_their_code_and_message() {
    let runtime = TestRuntime::started();
    runtime
        .script
        .on("RemoveContainer", |_| Reply::Fail(Code::NotFound, "no such container \u{fc}"))
        .on("StartContainer", |_| Reply::Fail(Code::Unknown, "runc said no"))
        .on("StopPodSandbox", |_| Reply::Fail(Code::DeadlineExceeded, "context deadline exceeded"));
    let client = runtime.client(LONG);
    let error = client.remove_container("x").await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.message(), "no such container \u{fc}");
    let error = client.start_container("x").await.unwrap_err();
    assert_eq!(error.grpc_text(), "rpc error: code = Unknown desc = runc said no");
    assert!(client.stop_pod_sandbox("x").await.unwrap_err().is_outcome_unknown());
    let error = client.runtime_config().await.unwrap_err();
    assert!(matches!(error, CriError::Unimplemented { rpc: Rpc::RuntimeConfig, .. }));
}

#[tokio::test]
async fn replies_without_what_they_must_have_are_invalid() {
    let runtime = TestRuntime::started();
    let empty = |_: &[u8]| Reply::Messages(vec![vec![]]);
    for method in [
        "RunPodSandbox",
        "CreateContainer",
        "ContainerStatus",
        "PodSandboxStatus",
        "PullImage",
        "Status",
    ] {
        runtime.script.on(method, empty);
    }
    runtime.script.on("ListContainers", |_| Reply::Messages(vec![vec![0x0a, 0x05, 1]]));
    let client = runtime.client(LONG);
    let invalid = |error: CriError| matches!(error, CriError::Invalid { .. });
    assert!(invalid(client.run_pod_sandbox(PodSandboxConfig::default(), "").await.unwrap_err()));
    let sandbox = PodSandboxConfig::default();
    let created = client.create_container("s", ContainerConfig::default(), &sandbox);
    assert!(invalid(created.await.unwrap_err()));
    assert!(invalid(client.container_status("x").await.unwrap_err()));
    assert!(invalid(client.pod_sandbox_status("x", false).await.unwrap_err()));
    assert!(invalid(client.status(false).await.unwrap_err()));
    assert!(invalid(client.list_containers(None).await.unwrap_err()));
    let pulled = runtime.images().pull_image(ImageSpec::default(), None, None).await;
    assert!(invalid(pulled.unwrap_err()));
}

#[tokio::test]
async fn a_list_of_twenty_megabytes_is_read() {
    let runtime = TestRuntime::started();
    runtime.script.on("ListContainers", |_| {
        let annotations = [("big".to_owned(), "x".repeat(10 * 1024))];
        let one = |n| Container {
            annotations: annotations.clone().into(),
            ..container(n, ContainerState::ContainerExited)
        };
        list((0..2000).map(one).collect())
    });
    assert_eq!(runtime.client(LONG).list_containers(None).await.unwrap().len(), 2000);
}

#[tokio::test]
async fn a_list_over_the_message_limit_is_streamed() {
    let runtime = TestRuntime::started();
    runtime
        .script
        .on("ListContainers", |_| Reply::Fail(Code::ResourceExhausted, "message larger than max"))
        .on("StreamContainers", |_| {
            let part = |n| StreamContainersResponse {
                containers: vec![container(n, ContainerState::ContainerRunning)],
            };
            Reply::Messages((0..3).map(|n| part(n).encode_to_vec()).collect())
        });
    let client = runtime.client(LONG);
    assert_eq!(ids(client.list_containers(None).await.unwrap()), ["c0", "c1", "c2"]);
}

#[tokio::test]
async fn where_streams_are_preferred_lists_are_read_only_from_a_runtime_without_streams() {
    let runtime = TestRuntime::started();
    runtime
        .script
        .on("ListContainers", |_| list(vec![container(9, ContainerState::ContainerRunning)]))
        .on("StreamContainers", |_| {
            let part = |n| StreamContainersResponse {
                containers: vec![container(n, ContainerState::ContainerRunning)],
            };
            Reply::Messages((0..2).map(|n| part(n).encode_to_vec()).collect())
        });
    let client = runtime.client(LONG).preferring_streams(true);
    let mut fingerprint = ListFingerprint::new();
    for _ in 0..2 {
        assert_eq!(ids(client.list_containers(None).await.unwrap()), ["c0", "c1"]);
        let relist = client.relist_containers(&mut fingerprint).await.unwrap();
        assert!(matches!(relist, ListChange::Changed(list) if list.len() == 2));
    }
    assert_eq!(runtime.script.calls("ListContainers"), 0);
    // A stream that fails is a failure, also one that takes too long.
    runtime.script.on("StreamContainers", |_| Reply::Fail(Code::Internal, "broken"));
    assert!(client.list_containers(None).await.is_err());
    let hasty = runtime.client(SHORT).preferring_streams(true);
    runtime.script.on("StreamContainers", |_| Reply::Hang);
    assert!(hasty.relist_containers(&mut fingerprint).await.is_err());
    assert_eq!(runtime.script.calls("ListContainers"), 0);
    // Without streams there are lists, and no stream is requested again.
    runtime.script.on("StreamContainers", |_| Reply::Fail(Code::Unimplemented, "no streams"));
    for _ in 0..2 {
        assert_eq!(ids(client.list_containers(None).await.unwrap()), ["c9"]);
    }
    let requested = runtime.script.calls("StreamContainers");
    client.list_containers(None).await.unwrap();
    assert_eq!(runtime.script.calls("StreamContainers"), requested);
}

#[tokio::test]
async fn a_list_over_the_limit_of_a_runtime_that_cannot_stream_comes_in_parts() {
    let runtime = TestRuntime::started();
    runtime.script.on("ListPodSandbox", |_| {
        let items = ["s1", "s2"].map(|id| PodSandbox { id: id.into(), ..Default::default() });
        Reply::message(&ListPodSandboxResponse { items: items.into() })
    });
    runtime.script.on("ListContainers", |request| {
        let filter = ListContainersRequest::decode(request).unwrap().filter.unwrap_or_default();
        let too_large = Reply::Fail(Code::ResourceExhausted, "message larger than max");
        let state = filter.state.map(|value| value.state());
        match (state, filter.pod_sandbox_id.as_str()) {
            (None, _) => too_large,
            // One that exits between two parts shows up in both.
            (Some(ContainerState::ContainerRunning), _) => {
                list(vec![container(1, ContainerState::ContainerRunning)])
            }
            (Some(ContainerState::ContainerExited), "") => too_large,
            (Some(ContainerState::ContainerExited), "s1") => list(vec![
                container(1, ContainerState::ContainerExited),
                container(2, ContainerState::ContainerExited),
            ]),
            (Some(ContainerState::ContainerExited), "s2") => {
                list(vec![container(3, ContainerState::ContainerExited)])
            }
            _ => list(vec![]),
        }
    });
    let client = runtime.client(LONG);
    let containers = client.list_containers(None).await.unwrap();
    let first = containers.iter().find(|container| container.id == "c1").unwrap();
    assert_eq!(first.state(), ContainerState::ContainerExited);
    assert_eq!(ids(containers), ["c1", "c2", "c3"]);
    // A stream whose messages are too large as well is no better than none.
    runtime.script.on("StreamContainers", |_| {
        Reply::Fail(Code::ResourceExhausted, "message larger than max")
    });
    let containers = client.list_containers(None).await.unwrap();
    assert_eq!(ids(containers), ["c1", "c2", "c3"]);
    // A filtered list that cannot be split further is an error, not an empty list.
    let filter = ContainerFilter {
        state: Some(super::v1::ContainerStateValue { state: 2 }),
        ..Default::default()
    };
    let error = client.list_containers(Some(filter)).await.unwrap_err();
    assert!(matches!(error, CriError::Exhausted { .. }), "{error:?}");
}

#[tokio::test]
async fn a_failed_list_is_an_error_and_the_next_relist_a_change() {
    let runtime = TestRuntime::started();
    let client = runtime.client(LONG);
    let running =
        || list((0..20).map(|n| container(n, ContainerState::ContainerRunning)).collect());
    let mut fingerprint = ListFingerprint::new();
    runtime.script.on("ListContainers", move |_| running());
    let first = client.relist_containers(&mut fingerprint).await.unwrap();
    assert!(matches!(&first, ListChange::Changed(all) if all.len() == 20), "{first:?}");
    assert_eq!(client.relist_containers(&mut fingerprint).await.unwrap(), ListChange::Unchanged);
    runtime.script.on("ListContainers", |_| Reply::Fail(Code::Unknown, "database is locked"));
    assert!(client.relist_containers(&mut fingerprint).await.is_err());
    runtime.script.on("ListContainers", move |_| running());
    let after = client.relist_containers(&mut fingerprint).await.unwrap();
    assert!(matches!(&after, ListChange::Changed(all) if all.len() == 20), "{after:?}");
    runtime
        .script
        .on("ListContainers", |_| list(vec![container(1, ContainerState::ContainerExited)]));
    let changed = client.relist_containers(&mut fingerprint).await.unwrap();
    assert_eq!(changed, ListChange::Changed(vec![container(1, ContainerState::ContainerExited)]));
    fingerprint.forget();
    assert_ne!(client.relist_containers(&mut fingerprint).await.unwrap(), ListChange::Unchanged);
}

#[tokio::test]
async fn an_absent_image_is_none_and_dropping_a_pull_cancels_it() {
    let runtime = TestRuntime::started();
    runtime
        .script
        .on("ImageStatus", |_| Reply::message(&ImageStatusResponse::default()))
        .on("PullImage", |_| Reply::Hang);
    let images = runtime.images();
    assert_eq!(images.image_status(ImageSpec::default()).await.unwrap(), None);
    let auth = AuthConfig { password: "hunter2".into(), ..Default::default() };
    let pull = tokio::spawn({
        let images = images.clone();
        async move { images.pull_image(ImageSpec::default(), Some(auth), None).await }
    });
    let script = runtime.script.clone();
    until("the pull is under way", || script.calls("PullImage") == 1).await;
    pull.abort();
    until("the pull is cancelled", || script.aborted("PullImage") == 1).await;
    runtime
        .script
        .on("PullImage", |_| Reply::message(&PullImageResponse { image_ref: "sha256:1".into() }));
    assert_eq!(images.pull_image(ImageSpec::default(), None, None).await.unwrap(), "sha256:1");
}

#[tokio::test]
async fn calls_and_errors_are_counted_by_upstreams_operation_names() {
    let runtime = TestRuntime::started();
    runtime
        .script
        .on("ListPodSandbox", |_| Reply::message(&ListPodSandboxResponse::default()))
        .on("RunPodSandbox", |_| Reply::Fail(Code::Unknown, "no"));
    let client = runtime.client(LONG);
    client.list_pod_sandboxes(None).await.unwrap();
    client.list_pod_sandboxes(None).await.unwrap();
    client.run_pod_sandbox(PodSandboxConfig::default(), "").await.unwrap_err();
    let text = runtime.metrics.text();
    for line in [
        "kubelet_runtime_operations_total{operation_type=\"list_podsandbox\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
        "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
        "kubelet_runtime_operations_duration_seconds_count{operation_type=\"list_podsandbox\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "missing {line:?} in\n{text}");
    }
    assert!(!text.contains("errors_total{operation_type=\"list_podsandbox\"}"), "{text}");
}

#[tokio::test]
async fn a_hung_create_does_not_hold_up_others_for_long() {
    let runtime = TestRuntime::started();
    runtime
        .script
        .on("CreateContainer", |_| Reply::Hang)
        .on("StartContainer", |_| Reply::Messages(vec![vec![]]));
    let client = runtime.client(LONG);
    let mut hung = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        hung.spawn(async move {
            client
                .create_container("s", ContainerConfig::default(), &PodSandboxConfig::default())
                .await
        });
    }
    let script = runtime.script.clone();
    until("all places are taken", || script.calls("CreateContainer") == 4).await;
    let begin = clock::instant();
    client.start_container("x").await.unwrap();
    assert!(clock::since(begin) < LONG / 2, "{:?}", clock::since(begin));
    // Taking something down does not wait behind starts at all.
    let mut quickest = LONG;
    for _ in 0..5 {
        let begin = clock::instant();
        assert!(client.remove_container("x").await.is_err());
        quickest = quickest.min(clock::since(begin));
    }
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
}

#[tokio::test]
async fn the_start_waits_for_a_runtime_that_is_ready() {
    let mut runtime = TestRuntime::stopped();
    let client = runtime.client(LONG);
    let waiting = tokio::spawn(async move { wait_for_runtime(&client).await });
    tokio::time::sleep(SHORT).await;
    let ready = Arc::new(AtomicUsize::new(0));
    runtime.script.on("Version", |_| Reply::message(&version())).on("Status", {
        let ready = ready.clone();
        move |_| {
            let conditions = vec![RuntimeCondition {
                r#type: "RuntimeReady".into(),
                status: ready.fetch_add(1, Ordering::SeqCst) >= 1,
                ..Default::default()
            }];
            Reply::message(&StatusResponse {
                status: Some(RuntimeStatus { conditions }),
                ..Default::default()
            })
        }
    });
    runtime.start();
    let info = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert_eq!(info.version.runtime_name, "test");
    assert_eq!(ready.load(Ordering::SeqCst), 2);
}
