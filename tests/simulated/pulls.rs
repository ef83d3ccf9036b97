//! Images of pods with several containers.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use crate::api_source::{bound, joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT, full, runs, status_of, waits_for};
use crate::pods::{self, container, pod, with, with_spec};
use crate::support::fake_runtime::{Behaviour, FakeRuntime, Fault, Options, Pull, Rpc, image_id};
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

const DELAY: Duration = Duration::from_millis(300);

fn of_image(name: &str) -> Value {
    with(container(name), json!({"image": format!("registry.test/{name}:1")}))
}

/// Pulls of these containers' images take a while, or never end.
fn slow(fake: &FakeRuntime, names: &[&str], delay: Duration) {
    for name in names {
        let pull = Pull { delay, ..Pull::default() };
        fake.on_pull(&format!("registry.test/{name}:1"), pull);
    }
}

fn calls(fake: &FakeRuntime, rpc: Rpc, image: &str) -> usize {
    let calls = fake.calls_of(rpc);
    calls.iter().filter(|call| call.subject.id == image).count()
}

fn started(fake: &FakeRuntime) -> Vec<String> {
    let calls = fake.calls_of(Rpc::StartContainer);
    calls.into_iter().map(|call| call.subject.container).collect()
}

#[tokio::test]
async fn a_hook_of_the_first_container_delays_the_start_of_the_third_but_not_its_pull() {
    let node = Node::started().await;
    let fake = &node.fake;
    fake.inject(Fault::hang(Rpc::ExecSync));
    slow(fake, &["second", "third"], DELAY);
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["wait"]}}}});
    let spec = [with(container("first"), hook), of_image("second"), of_image("third")];
    node.put(&pod("web", &spec));
    fake.wait_until("the hook runs", WAIT_LIMIT, |fake| fake.count(Rpc::ExecSync) == 1).await;
    fake.wait_until("both pulls have begun", WAIT_LIMIT, |fake| fake.count(Rpc::PullImage) == 2)
        .await;
    let hook = &fake.calls_of(Rpc::ExecSync)[0];
    assert_eq!(hook.code, None, "the hook was to run still");
    assert_eq!(started(fake), ["first"]);
    fake.release(Rpc::ExecSync);
    let all = |pod: &_| ["first", "second", "third"].iter().all(|name| runs(pod, name));
    node.wait_pod("web", "all run", WAIT_LIMIT, all).await;
    assert_eq!(started(fake), ["first", "second", "third"]);
    // One list of images; one before and one after each pull.
    assert_eq!(calls(fake, Rpc::ImageStatus, "localhost/busybox:dev"), 1);
    assert_eq!(calls(fake, Rpc::ImageStatus, "registry.test/third:1"), 2);
    assert_eq!(fake.count(Rpc::PullImage), 2);
}

#[tokio::test]
async fn a_late_image_keeps_the_order_of_the_containers() {
    let node = Node::started().await;
    slow(&node.fake, &["first"], Duration::from_secs(1));
    slow(&node.fake, &["second"], DELAY);
    let spec = [of_image("first"), of_image("second"), container("third")];
    node.put(&pod("web", &spec));
    node.wait_pod("web", "the last runs", WAIT_LIMIT, |pod| runs(pod, "third")).await;
    assert_eq!(started(&node.fake), ["first", "second", "third"]);
}

#[tokio::test]
async fn images_of_the_main_containers_are_pulled_while_an_init_container_runs() {
    let node = Node::started().await;
    let fake = &node.fake;
    fake.behave("setup", Behaviour::runs());
    let inits = json!({"initContainers": [container("setup")]});
    node.put(&with_spec(pod("web", &[of_image("main")]), inits));
    fake.wait_until("the image of main is pulled", WAIT_LIMIT, |fake| {
        fake.calls_of(Rpc::PullImage).iter().any(|call| call.succeeded())
    })
    .await;
    fake.wait_until("setup is started", WAIT_LIMIT, |fake| !started(fake).is_empty()).await;
    assert_eq!(started(fake), ["setup"]);
    assert!(fake.exit("setup", 0));
    node.wait_pod("web", "main runs", WAIT_LIMIT, |pod| runs(pod, "main")).await;
    assert_eq!(fake.count(Rpc::PullImage), 1);
    assert_eq!(calls(fake, Rpc::ImageStatus, "registry.test/main:1"), 2);
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_ahead_fails_its_own_container_only() {
    let node = Node::started().await;
    let pull = Pull { error: Some((Code::Unknown, "no such manifest".into())), ..Pull::default() };
    node.fake.on_pull("registry.test/broken:1", pull);
    node.put(&pod("web", &[container("first"), of_image("broken"), container("last")]));
    let both = |pod: &_| runs(pod, "first") && runs(pod, "last");
    let waits = |pod: &_| {
        let broken = status_of(pod, "broken").and_then(|status| status.state.clone());
        let waiting = broken.and_then(|state| state.waiting);
        waiting.is_some_and(|w| w.reason.is_some_and(|reason| reason.contains("Pull")))
    };
    node.wait_pod("web", "the others run", WAIT_LIMIT, |pod| both(pod) && waits(pod)).await;
    assert_eq!(node.fake.count(Rpc::PullImage), 1);
}

#[tokio::test]
async fn a_removed_pod_gives_up_the_pulls_of_all_its_containers() {
    let node = Node::started().await;
    let fake = &node.fake;
    let never = Duration::from_secs(3600);
    slow(fake, &["first", "second"], never);
    node.put(&pod("web", &[of_image("first"), of_image("second")]));
    fake.wait_until("both pulls have begun", WAIT_LIMIT, |fake| fake.count(Rpc::PullImage) == 2)
        .await;
    node.remove("web");
    fake.wait_until("both are given up", WAIT_LIMIT, |fake| {
        let pulls = fake.calls_of(Rpc::PullImage);
        pulls.iter().all(|call| call.code == Some(Code::Cancelled))
    })
    .await;
}

#[tokio::test]
async fn images_that_no_pod_needs_are_removed_once_it_is_known_which_pods_there_are() {
    real_time("an image has to be older than a nanosecond");
    let images = ["localhost/busybox:dev", "registry.test/wanted:1", "registry.test/unused:1"];
    let mut node =
        Node::with(Options { images: images.map(str::to_owned).to_vec(), ..Options::default() })
            .await;
    node.configure("imageGCHighThresholdPercent: 1");
    node.configure("imageGCLowThresholdPercent: 0");
    node.configure("imageMinimumGCAge: 1ns");
    // It cannot run yet, so only its manifest says that the image is wanted.
    node.fake.inject(Fault::fail(Rpc::RunPodSandbox, Code::Internal, "not yet"));
    node.put(&pod("web", &[of_image("wanted")]));
    node.put(&pods::simple("runs"));
    node.start().await;
    node.fake
        .wait_until("an image is removed", WAIT_LIMIT, |fake| fake.count(Rpc::RemoveImage) > 0)
        .await;
    let reported = |events: String| events.contains("FreeDiskSpaceFailed");
    wait_for("an event reports that it was not enough", WAIT_LIMIT, async || {
        holds(reported(node.events().await), "no such event")
    })
    .await;
    let removed = node.fake.calls_of(Rpc::RemoveImage);
    let removed: Vec<_> = removed.iter().map(|call| call.subject.id.as_str()).collect();
    let unused = image_id("registry.test/unused:1");
    assert_eq!(removed, [unused]);
}

#[tokio::test]
async fn containers_of_an_ended_pod_stay_when_images_have_to_go() {
    real_time("an image has to be older than a nanosecond");
    let images = ["localhost/busybox:dev", "registry.test/unused:1"];
    let mut node =
        Node::with(Options { images: images.map(str::to_owned).to_vec(), ..Options::default() })
            .await;
    node.start().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 0));
    let never = json!({"restartPolicy": "Never"});
    node.put(&pods::with_spec(pods::simple("done"), never));
    node.wait_phase("done", "Succeeded").await;
    node.stop().await;
    node.configure("imageGCHighThresholdPercent: 1");
    node.configure("imageGCLowThresholdPercent: 0");
    node.configure("imageMinimumGCAge: 1ns");
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.count(Rpc::RemoveImage) > 0;
    node.fake.wait_until("the image is removed", WAIT_LIMIT, gone).await;
    assert_eq!(node.fake.count(Rpc::RemoveContainer), 0);
}

#[tokio::test]
async fn a_container_is_probed_and_shown_after_its_hook_while_the_next_image_is_pulled() {
    let node = Node::started().await;
    let fake = &node.fake;
    slow(fake, &["second"], Duration::from_secs(3600));
    // The hook; probes are answered.
    fake.inject(Fault::hang(Rpc::ExecSync).times(1));
    let probe = json!({"exec": {"command": ["probe"]}, "periodSeconds": 1});
    let first = json!({
        "lifecycle": {"postStart": {"exec": {"command": ["hook"]}}},
        "livenessProbe": probe,
        "readinessProbe": probe,
    });
    node.put(&pod("web", &[with(container("first"), first), of_image("second")]));
    fake.wait_until("the hook runs", WAIT_LIMIT, |fake| fake.count(Rpc::ExecSync) == 1).await;
    let is_probed = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) > 1;
    assert!(node.never(Duration::from_millis(1500), is_probed).await);
    fake.release(Rpc::ExecSync);
    let is_ready = |pod: &_| status_of(pod, "first").is_some_and(|first| first.ready);
    node.wait_pod("web", "the first is ready", WAIT_LIMIT, is_ready).await;
    assert_eq!(started(fake), ["first"]);
}

#[tokio::test]
async fn a_container_whose_restart_could_not_pull_waits_for_the_rest_of_its_back_off() {
    let node = Node::started().await;
    let always = json!({"imagePullPolicy": "Always"});
    node.put(&pod("web", &[with(of_image("main"), always)]));
    node.wait_runs("web").await;
    let error = Some((Code::Unavailable, "the registry is away".to_owned()));
    let pull = Pull { error, ..Pull::default() };
    node.fake.on_pull("registry.test/main:1", pull);
    assert!(node.fake.exit(&format!("{}/main", full("web")), 1));
    for reason in ["ErrImagePull", "CrashLoopBackOff"] {
        let waits = |pod: &_| waits_for(pod, "main") == reason;
        node.wait_pod("web", reason, WAIT_LIMIT, waits).await;
    }
}

#[tokio::test]
async fn a_missing_pull_secret_is_reported_only_when_an_image_is_pulled() {
    let (mut node, api) = joined().await;
    node.start().await;
    let bound = |name: &str, image: &str| {
        let spec = json!({
            "imagePullSecrets": [{"name": "missing"}],
            "containers": [with(container("main"), json!({"image": image}))],
        });
        with_spec(bound(name), spec)
    };
    api.put(&path("present"), bound("present", pods::IMAGE));
    wait_runs(&node, "present").await;
    let reason = "FailedToRetrieveImagePullSecret";
    let events = node.events().await;
    assert!(!events.contains(reason), "{events}");
    api.put(&path("pulls"), bound("pulls", "registry.test/main:1"));
    wait_runs(&node, "pulls").await;
    let events = node.events().await;
    let text = "Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed.";
    assert!(events.contains(reason) && events.contains(text), "{events}");
}
