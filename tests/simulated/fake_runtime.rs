//! The fake itself, driven by the raw generated clients.

use std::collections::HashMap;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use kubelet::cri::v1;
use kubelet::cri::v1::image_service_client::ImageServiceClient;
use kubelet::cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::fake_runtime::{
    Behaviour, Distortion, ExecOutcome, FakeRuntime, Fault, Features, Options, Pull, Rpc,
};

type Client = RuntimeServiceClient<Channel>;

const WAIT_LIMIT: Duration = Duration::from_secs(45);

async fn channel(fake: &FakeRuntime) -> Channel {
    let socket = fake.socket().to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://fake").connect_with_connector(connect).await.unwrap()
}

async fn started() -> (FakeRuntime, Client) {
    let fake = FakeRuntime::start(Options::default()).await;
    let client = Client::new(channel(&fake).await);
    (fake, client)
}

fn labels(uid: &str) -> HashMap<String, String> {
    HashMap::from([("io.kubernetes.pod.uid".to_owned(), uid.to_owned())])
}

fn pod_config(name: &str, uid: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: labels(uid),
        ..Default::default()
    }
}

fn container_config(name: &str, uid: &str, attempt: u32) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
        image: Some(v1::ImageSpec {
            image: "localhost/busybox:dev".to_owned(),
            ..Default::default()
        }),
        labels: labels(uid),
        log_path: format!("{name}_{attempt}.log"),
        ..Default::default()
    }
}

async fn run_pod(client: &mut Client, name: &str, uid: &str) -> String {
    let config = Some(pod_config(name, uid));
    let request = v1::RunPodSandboxRequest { config, runtime_handler: String::new() };
    client.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id
}

async fn try_create(
    client: &mut Client,
    pod: &str,
    config: v1::ContainerConfig,
) -> Result<String, tonic::Status> {
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: pod.to_owned(),
        config: Some(config),
        sandbox_config: None,
    };
    Ok(client.create_container(request).await?.into_inner().container_id)
}

async fn try_start(client: &mut Client, id: &str) -> Result<(), tonic::Status> {
    client
        .start_container(v1::StartContainerRequest { container_id: id.to_owned() })
        .await
        .map(drop)
}

async fn run_container(client: &mut Client, pod: &str, name: &str, uid: &str) -> String {
    let id = try_create(client, pod, container_config(name, uid, 0)).await.unwrap();
    try_start(client, &id).await.unwrap();
    id
}

async fn status(client: &mut Client, id: &str) -> v1::ContainerStatus {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    client.container_status(request).await.unwrap().into_inner().status.unwrap()
}

async fn stop(client: &mut Client, id: &str, timeout: i64) {
    client
        .stop_container(v1::StopContainerRequest { container_id: id.to_owned(), timeout })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_pod_runs_and_is_taken_down_again() {
    let (fake, mut client) = started().await;
    let pod = run_pod(&mut client, "web", "u1").await;
    let id = run_container(&mut client, &pod, "c", "u1").await;
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: false };
    let sandbox = client.pod_sandbox_status(request).await.unwrap().into_inner().status.unwrap();
    assert_eq!(sandbox.state(), v1::PodSandboxState::SandboxReady);
    assert!(!sandbox.network.unwrap().ip.is_empty());
    let running = status(&mut client, &id).await;
    assert_eq!(running.state(), v1::ContainerState::ContainerRunning);
    assert!(running.started_at >= running.created_at && running.finished_at == 0);

    client
        .stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod.clone() })
        .await
        .unwrap();
    let ended = status(&mut client, &id).await;
    assert_eq!((ended.state(), ended.exit_code), (v1::ContainerState::ContainerExited, 137));
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: pod }).await.unwrap();
    assert!(fake.pods().is_empty());
    let gone = client
        .container_status(v1::ContainerStatusRequest { container_id: id, verbose: false })
        .await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_name_and_attempt_can_be_taken_once_only() {
    let (_fake, mut client) = started().await;
    let pod = run_pod(&mut client, "web", "u1").await;
    let config = Some(pod_config("web", "u1"));
    let again = client
        .run_pod_sandbox(v1::RunPodSandboxRequest { config, runtime_handler: String::new() })
        .await;
    let again = again.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    assert!(again.message().contains("failed to reserve sandbox name"), "{again}");

    let id = try_create(&mut client, &pod, container_config("c", "u1", 0)).await.unwrap();
    let twin = try_create(&mut client, &pod, container_config("c", "u1", 0)).await.unwrap_err();
    assert!(twin.message().contains("failed to reserve container name"), "{twin}");
    client.remove_container(v1::RemoveContainerRequest { container_id: id }).await.unwrap();
    try_create(&mut client, &pod, container_config("c", "u1", 0)).await.unwrap();
}

#[tokio::test]
async fn only_a_created_container_can_be_started() {
    let (_fake, mut client) = started().await;
    let pod = run_pod(&mut client, "web", "u1").await;
    let id = run_container(&mut client, &pod, "c", "u1").await;
    assert_eq!(try_start(&mut client, &id).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(try_start(&mut client, "nobody").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn lists_are_filtered_by_pod_sandbox_and_state() {
    let (fake, mut client) = started().await;
    let first = run_pod(&mut client, "one", "u1").await;
    let second = run_pod(&mut client, "two", "u2").await;
    let id = run_container(&mut client, &first, "c", "u1").await;
    run_container(&mut client, &second, "c", "u2").await;
    assert!(fake.exit("two/c", 3));

    let by_pod = v1::ContainerFilter { label_selector: labels("u1"), ..Default::default() };
    let by_sandbox = v1::ContainerFilter { pod_sandbox_id: first.clone(), ..Default::default() };
    let state =
        Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() });
    let running = v1::ContainerFilter { state, ..Default::default() };
    for filter in [by_pod, by_sandbox, running] {
        let request = v1::ListContainersRequest { filter: Some(filter.clone()) };
        let found = client.list_containers(request).await.unwrap().into_inner().containers;
        let found = found.iter().map(|c| c.id.as_str()).collect::<Vec<_>>();
        assert_eq!(found, [id.as_str()], "{filter:?}");
    }
    let filter = Some(v1::PodSandboxFilter { label_selector: labels("u2"), ..Default::default() });
    let pods = client
        .list_pod_sandbox(v1::ListPodSandboxRequest { filter })
        .await
        .unwrap()
        .into_inner()
        .items;
    assert_eq!(pods.iter().map(|pod| pod.id.clone()).collect::<Vec<_>>(), [second]);
    let all = client
        .list_containers(v1::ListContainersRequest { filter: None })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.containers.len(), 2);
}

#[tokio::test]
async fn containers_end_as_they_are_told_to() {
    let (fake, mut client) = started().await;
    fake.behave("short", Behaviour::exits(Duration::from_millis(1), 7));
    fake.behave("stubborn", Behaviour::ignores_term());
    fake.behave("slow", Behaviour::ends_slowly(Duration::from_millis(1), 5));
    fake.behave("broken", Behaviour::fails_to_start("no such file"));
    let pod = run_pod(&mut client, "web", "u1").await;

    let short = run_container(&mut client, &pod, "short", "u1").await;
    fake.wait_until("short ends", WAIT_LIMIT, |fake| {
        fake.container("short").is_some_and(|c| c.exit_code == 7)
    })
    .await;
    assert_eq!(status(&mut client, &short).await.reason, "Error");

    let stubborn = run_container(&mut client, &pod, "stubborn", "u1").await;
    stop(&mut client, &stubborn, 1).await;
    assert_eq!(status(&mut client, &stubborn).await.exit_code, 137);
    let took = fake.calls_of(Rpc::StopContainer)[0].took.unwrap();
    assert!(took >= Duration::from_secs(1), "killed after {took:?}, before its time was over");

    let slow = run_container(&mut client, &pod, "slow", "u1").await;
    stop(&mut client, &slow, 30).await;
    assert_eq!(status(&mut client, &slow).await.exit_code, 5);

    let broken = try_create(&mut client, &pod, container_config("broken", "u1", 0)).await.unwrap();
    assert!(try_start(&mut client, &broken).await.unwrap_err().message().contains("no such file"));
    let status = status(&mut client, &broken).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
}

#[tokio::test]
async fn successive_starts_can_live_differently() {
    let (fake, mut client) = started().await;
    let lives = vec![Behaviour::exits(Duration::ZERO, 1), Behaviour::runs()];
    fake.behave_in_turn("web/c", lives);
    let pod = run_pod(&mut client, "web", "u1").await;
    let first = run_container(&mut client, &pod, "c", "u1").await;
    assert_eq!(status(&mut client, &first).await.exit_code, 1);
    let second = try_create(&mut client, &pod, container_config("c", "u1", 1)).await.unwrap();
    try_start(&mut client, &second).await.unwrap();
    assert_eq!(status(&mut client, &second).await.state(), v1::ContainerState::ContainerRunning);
}

#[tokio::test]
async fn every_change_is_an_event_with_the_pod_in_it() {
    let (fake, mut client) = started().await;
    let mut events =
        client.get_container_events(v1::GetEventsRequest {}).await.unwrap().into_inner();
    let pod = run_pod(&mut client, "web", "u1").await;
    let id = run_container(&mut client, &pod, "c", "u1").await;
    fake.exit("c", 2);
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.pod_sandbox_status.as_ref().unwrap().id, pod);
        seen.push((
            event.container_id.clone(),
            event.container_event_type(),
            event.containers_statuses,
        ));
    }
    use v1::ContainerEventType as Event;
    let kinds = seen.iter().map(|(about, kind, _)| (about == &id, *kind)).collect::<Vec<_>>();
    let created_started = [Event::ContainerCreatedEvent, Event::ContainerStartedEvent];
    let mut expected = Vec::from(created_started.map(|kind| (false, kind)));
    expected.extend(created_started.map(|kind| (true, kind)));
    expected.push((true, Event::ContainerStoppedEvent));
    assert_eq!(kinds, expected);
    assert_eq!(seen[4].2[0].exit_code, 2);
}

#[tokio::test]
async fn events_can_be_lost_ended_and_missing() {
    let (fake, mut client) = started().await;
    let mut events =
        client.get_container_events(v1::GetEventsRequest {}).await.unwrap().into_inner();
    fake.lose_events(1);
    run_pod(&mut client, "web", "u1").await;
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(first.container_event_type(), v1::ContainerEventType::ContainerStartedEvent);
    fake.end_event_streams(None);
    assert!(events.next().await.is_none());
    fake.set_features(Features::old());
    let refused = client.get_container_events(v1::GetEventsRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test]
async fn calls_fail_hang_and_lose_their_answers_on_demand() {
    let (fake, mut client) = started().await;
    fake.inject(Fault::fail(Rpc::RunPodSandbox, Code::Unavailable, "not now").only("web").times(1));
    let request =
        || v1::RunPodSandboxRequest { config: Some(pod_config("web", "u1")), ..Default::default() };
    assert_eq!(client.run_pod_sandbox(request()).await.unwrap_err().code(), Code::Unavailable);
    assert!(fake.pods().is_empty());
    let pod = client.run_pod_sandbox(request()).await.unwrap().into_inner().pod_sandbox_id;

    fake.inject(
        Fault::lose_answer(Rpc::CreateContainer, Code::DeadlineExceeded, "too late").times(1),
    );
    let lost = try_create(&mut client, &pod, container_config("c", "u1", 0)).await.unwrap_err();
    assert_eq!(lost.code(), Code::DeadlineExceeded);
    let id = fake.container("c").expect("the work was done").id;

    fake.inject(Fault::hang(Rpc::StartContainer));
    let mut other = client.clone();
    let started = tokio::spawn(async move { try_start(&mut other, &id).await });
    fake.wait_for_calls("the start hangs", WAIT_LIMIT, |calls| {
        calls.iter().any(|c| c.rpc == Rpc::StartContainer)
    })
    .await;
    assert!(!fake.container("c").unwrap().is_running());
    fake.release(Rpc::StartContainer);
    started.await.unwrap().unwrap();
    assert!(fake.container("c").unwrap().is_running());
}

#[tokio::test]
async fn a_caller_that_gives_up_is_recorded_as_cancelled() {
    let (fake, mut client) = started().await;
    fake.inject(Fault::hang(Rpc::Version));
    let call = tokio::spawn(async move { client.version(v1::VersionRequest::default()).await });
    fake.wait_for_calls("it hangs", WAIT_LIMIT, |calls| calls.len() == 1).await;
    call.abort();
    fake.wait_for_calls("the call is closed", WAIT_LIMIT, |calls| {
        calls[0].code == Some(Code::Cancelled)
    })
    .await;
    assert_eq!((fake.count(Rpc::Version), fake.mutations()), (1, 0));
}

#[tokio::test]
async fn it_lies_when_told_to() {
    let (fake, mut client) = started().await;
    let pod = run_pod(&mut client, "web", "u1").await;
    let id = run_container(&mut client, &pod, "c", "u1").await;
    fake.distort(Distortion::NoIp);
    fake.distort(Distortion::State(3));
    fake.distort(Distortion::DuplicateNames);
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: pod, verbose: false };
    let sandbox = client.pod_sandbox_status(request).await.unwrap().into_inner().status.unwrap();
    assert_eq!(sandbox.network.unwrap().ip, "");
    assert_eq!(status(&mut client, &id).await.state, 3);
    let all = client
        .list_containers(v1::ListContainersRequest { filter: None })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.containers.len(), 2);
    fake.stop_distorting();
    fake.distort(Distortion::EmptyLists);
    let none = client
        .list_containers(v1::ListContainersRequest { filter: None })
        .await
        .unwrap()
        .into_inner();
    assert!(none.containers.is_empty());
    assert!(fake.container("c").unwrap().is_running());
}

#[tokio::test]
async fn it_vanishes_comes_back_and_forgets() {
    let (fake, mut client) = started().await;
    let pod = run_pod(&mut client, "web", "u1").await;
    run_container(&mut client, &pod, "c", "u1").await;
    fake.vanish();
    assert!(!fake.socket().exists());
    assert!(client.version(v1::VersionRequest::default()).await.is_err());
    fake.come_back();
    let mut client = Client::new(channel(&fake).await);
    let all = client
        .list_containers(v1::ListContainersRequest { filter: None })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.containers.len(), 1);
    fake.drop_connections();
    fake.forget_everything();
    let mut client = Client::new(channel(&fake).await);
    let all = client
        .list_pod_sandbox(v1::ListPodSandboxRequest { filter: None })
        .await
        .unwrap()
        .into_inner();
    assert!(all.items.is_empty());
}

#[tokio::test]
async fn lists_can_be_streamed_in_pieces() {
    let (_fake, mut client) = started().await;
    for n in 0..101 {
        run_pod(&mut client, &format!("p{n}"), &format!("u{n}")).await;
    }
    let stream =
        client.stream_pod_sandboxes(v1::StreamPodSandboxesRequest { filter: None }).await.unwrap();
    let pieces = stream
        .into_inner()
        .map(|piece| piece.unwrap().pod_sandboxes.len())
        .collect::<Vec<_>>()
        .await;
    assert_eq!(pieces, [100, 1]);
}

#[tokio::test]
async fn images_are_found_pulled_and_refused() {
    let (fake, _client) = started().await;
    let mut images = ImageServiceClient::new(channel(&fake).await);
    let spec = |name: &str| Some(v1::ImageSpec { image: name.to_owned(), ..Default::default() });
    let status = |name: &str| v1::ImageStatusRequest { image: spec(name), verbose: false };
    assert!(images.image_status(status("busybox")).await.unwrap().into_inner().image.is_none());
    let pull = |auth| v1::PullImageRequest { image: spec("busybox"), auth, sandbox_config: None };
    let credentials = Some(("user".to_owned(), "word".to_owned()));
    fake.on_pull("busybox", Pull { credentials, ..Pull::default() });
    let refused = images.pull_image(pull(None)).await.unwrap_err();
    assert!(refused.message().contains("pull access denied"), "{refused}");
    let auth = v1::AuthConfig {
        username: "user".to_owned(),
        password: "word".to_owned(),
        ..Default::default()
    };
    let image_ref = images.pull_image(pull(Some(auth))).await.unwrap().into_inner().image_ref;
    let image =
        images.image_status(status("busybox:latest")).await.unwrap().into_inner().image.unwrap();
    assert_eq!(image.id, image_ref);
    assert_eq!(image.repo_tags, ["docker.io/library/busybox:latest"]);
    assert!(fake.calls().iter().all(|call| !call.detail.contains("word")));
    images.remove_image(v1::RemoveImageRequest { image: spec("busybox") }).await.unwrap();
    assert!(images.image_status(status("busybox")).await.unwrap().into_inner().image.is_none());
}

#[tokio::test]
async fn commands_are_scripted_and_time_out() {
    let (fake, mut client) = started().await;
    fake.on_exec(|call| match call.command.first().map(String::as_str) {
        Some("slow") => ExecOutcome { delay: Duration::from_secs(60), ..ExecOutcome::default() },
        Some("no") => ExecOutcome::code(1),
        _ => ExecOutcome {
            stdout: format!("hello {}", call.subject.container),
            ..ExecOutcome::default()
        },
    });
    let pod = run_pod(&mut client, "web", "u1").await;
    let id = run_container(&mut client, &pod, "c", "u1").await;
    let request = |word: &str| v1::ExecSyncRequest {
        container_id: id.clone(),
        cmd: vec![word.to_owned()],
        timeout: 1,
    };
    assert_eq!(client.exec_sync(request("yes")).await.unwrap().into_inner().stdout, b"hello c");
    assert_eq!(client.exec_sync(request("no")).await.unwrap().into_inner().exit_code, 1);
    assert_eq!(client.exec_sync(request("slow")).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn logs_are_written_as_runtimes_write_them_and_follow_a_rotation() {
    let fake = FakeRuntime::start(Options { write_logs: true, ..Options::default() }).await;
    let mut client = Client::new(channel(&fake).await);
    let dir = tempfile::tempdir().unwrap();
    fake.behave("c", Behaviour::runs().with_output(&["first"]));
    let config = v1::PodSandboxConfig {
        log_directory: dir.path().display().to_string(),
        ..pod_config("web", "u1")
    };
    let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
    let pod = client.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id;
    let id = run_container(&mut client, &pod, "c", "u1").await;
    let path = dir.path().join("c_0.log");
    std::fs::rename(&path, dir.path().join("old")).unwrap();
    fake.log("c", "stderr", "into the old file");
    client.reopen_container_log(v1::ReopenContainerLogRequest { container_id: id }).await.unwrap();
    fake.log("c", "stdout", "into the new one");
    let old = std::fs::read_to_string(dir.path().join("old")).unwrap();
    let lines = old.lines().map(|line| line.split_once(' ').unwrap().1).collect::<Vec<_>>();
    assert_eq!(lines, ["stdout F first", "stderr F into the old file"]);
    assert!(std::fs::read_to_string(path).unwrap().ends_with(" stdout F into the new one\n"));
}

#[tokio::test]
async fn without_a_log_directory_there_is_no_log() {
    let (fake, mut client) = started().await;
    fake.behave("mute", Behaviour::runs().with_output(&["unheard"]));
    let pod = run_pod(&mut client, "web", "u1").await;
    let id = run_container(&mut client, &pod, "mute", "u1").await;
    assert_eq!(status(&mut client, &id).await.log_path, "");
    assert!(!std::path::Path::new("mute_0.log").exists());
}

#[tokio::test]
async fn conditions_and_driver_are_settable() {
    let (fake, mut client) = started().await;
    fake.set_network_ready(Err("no CNI configuration"));
    let status =
        client.status(v1::StatusRequest::default()).await.unwrap().into_inner().status.unwrap();
    let facts = status.conditions.iter().map(|c| (c.r#type.as_str(), c.status)).collect::<Vec<_>>();
    assert_eq!(facts, [("RuntimeReady", true), ("NetworkReady", false)]);
    let driver = client
        .runtime_config(v1::RuntimeConfigRequest {})
        .await
        .unwrap()
        .into_inner()
        .linux
        .unwrap();
    assert_eq!(driver.cgroup_driver(), v1::CgroupDriver::Cgroupfs);
    fake.set_features(Features::old());
    assert_eq!(
        client.runtime_config(v1::RuntimeConfigRequest {}).await.unwrap_err().code(),
        Code::Unimplemented
    );
}
