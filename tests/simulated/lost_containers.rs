//! Containers that ran and of which the runtime knows nothing any more, or not what became of them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use serde_json::json;

use crate::node::{Node, WAIT_LIMIT, full, is_ready, phase, runs, status_of, waits_for};
use crate::pods::{container, pod, simple, with_spec};
use crate::support::fake_runtime::{
    Behaviour, Distortion, FakeRuntime, Fault, Features, Options, Rpc,
};

const USED_TO_RUN: &str = "The container could not be located when the pod was deleted.  \
                           The container used to be Running";
const ENDED: &str = "The container could not be located when the pod was terminated";

fn unknown(message: &str) -> Option<ContainerStateTerminated> {
    Some(ContainerStateTerminated {
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some(message.to_owned()),
        ..ContainerStateTerminated::default()
    })
}

fn main(pod: &Pod) -> ContainerStatus {
    status_of(pod, "main").cloned().expect("its status")
}

fn last(pod: &Pod) -> Option<ContainerStateTerminated> {
    main(pod).last_state?.terminated
}

fn state(pod: &Pod) -> Option<ContainerStateTerminated> {
    main(pod).state?.terminated
}

/// A node with logs, which count restarts, and a running pod of this restart policy.
async fn running(policy: &str) -> Node {
    let options = Options { write_logs: true, ..Options::default() };
    let mut node = Node::with(options).await;
    node.start().await;
    node.put(&with_spec(simple("web"), json!({"restartPolicy": policy})));
    node.wait_runs("web").await;
    node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
    node
}

#[tokio::test]
async fn a_container_that_vanished_ended_with_137_and_is_started_again() {
    for policy in ["Always", "OnFailure"] {
        let node = running(policy).await;
        node.fake.inject(Fault::hang(Rpc::CreateContainer));
        assert!(node.fake.forget("main"));
        node.fake.end_event_streams(None);
        let waits = |pod: &Pod| waits_for(pod, "main") == "ContainerCreating";
        let shown = node.wait_pod("web", "waits", WAIT_LIMIT, waits).await;
        assert_eq!((last(&shown), state(&shown)), (unknown(USED_TO_RUN), None));
        assert_eq!((main(&shown).restart_count, phase(&shown)), (1, "Running"));
        assert!(!is_ready(&shown) && !main(&shown).ready);
        node.fake.clear_faults();
        let again = |pod: &Pod| runs(pod, "main") && is_ready(pod);
        let shown = node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
        assert_eq!((last(&shown), state(&shown)), (unknown(USED_TO_RUN), None));
        assert_eq!(main(&shown).restart_count, 1);
        assert_eq!(node.fake.container("main").unwrap().attempt, 1);
        assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1, "only the container");
        assert_eq!(node.fake.count(Rpc::StopContainer), 0);
    }
}

#[tokio::test]
async fn under_policy_never_a_container_that_vanished_fails_its_pod_for_good() {
    let mut node = running("Never").await;
    node.fake.clear_calls();
    assert!(node.fake.forget("main"));
    node.fake.end_event_streams(None);
    let ended = |pod: &Pod| phase(pod) == "Failed" && state(pod).is_some();
    let shown = node.wait_pod("web", "has ended", WAIT_LIMIT, ended).await;
    assert_eq!(state(&shown), unknown(ENDED));
    assert_eq!(last(&shown), unknown(USED_TO_RUN));
    assert_eq!(main(&shown).restart_count, 1, "as upstream counts");
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopPodSandbox) == 1;
    node.fake.wait_until("its sandbox is stopped", WAIT_LIMIT, stopped).await;
    assert_eq!(node.fake.mutations(), 1, "{:?}", node.fake.counts());
    node.stop().await;
    node.start().await;
    let again = node.wait_pod("web", "has ended", WAIT_LIMIT, ended).await;
    assert_eq!(main(&again), main(&shown));
    let more = |fake: &FakeRuntime| fake.mutations() > 1;
    assert!(node.never(Duration::from_millis(500), more).await);
}

#[tokio::test]
async fn under_policy_never_a_container_in_an_unknown_state_fails_its_pod_for_good() {
    let node = running("Never").await;
    node.fake.clear_calls();
    node.fake.distort(Distortion::State(3));
    node.fake.end_event_streams(None);
    let shown = node.wait_phase("web", "Failed").await;
    assert_eq!((last(&shown), state(&shown)), (None, unknown(ENDED)));
    assert_eq!(main(&shown).restart_count, 1);
    let tried = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped to be sure", WAIT_LIMIT, tried).await;
    node.fake.stop_distorting();
    let stopped = |fake: &FakeRuntime| !fake.pod(&full("web")).unwrap().ready;
    node.fake.wait_until("its sandbox is stopped", WAIT_LIMIT, stopped).await;
    assert_eq!(node.fake.count(Rpc::CreateContainer), 0);
    // How it really ended is known now; what became of the pod is settled.
    let reported =
        |pod: &Pod| phase(pod) == "Failed" && state(pod).is_some_and(|e| e.exit_code == 0);
    node.wait_pod("web", "has ended", WAIT_LIMIT, reported).await;
}

#[tokio::test]
async fn a_pod_is_synced_after_a_restart_although_an_ended_container_is_in_an_unknown_state() {
    let mut node = Node::started().await;
    node.fake.behave("ends", Behaviour::exits(Duration::ZERO, 0));
    let containers = [container("ends"), container("stays")];
    let web = pod("web", &containers);
    node.put(&with_spec(web, json!({"restartPolicy": "OnFailure"})));
    let ended = |pod: &Pod| {
        let state = status_of(pod, "ends").and_then(|status| status.state.clone());
        state.is_some_and(|state| state.terminated.is_some()) && runs(pod, "stays")
    };
    node.wait_pod("web", "one ended", WAIT_LIMIT, ended).await;
    node.stop().await;
    node.fake.clear_calls();
    node.fake.distort(Distortion::State(3));
    node.start().await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("one is stopped to be sure", WAIT_LIMIT, stopped).await;
}

#[tokio::test]
async fn a_container_that_vanished_while_no_kubelet_ran_is_started_again_and_counted() {
    let mut node = running("Always").await;
    node.stop().await;
    assert!(node.fake.forget("main"));
    node.start().await;
    let again = |pod: &Pod| runs(pod, "main") && is_ready(pod);
    let shown = node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
    assert_eq!(main(&shown).restart_count, 1);
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1);
}

#[tokio::test]
async fn the_restart_count_goes_on_from_the_logs_where_the_runtime_has_forgotten_an_instance() {
    for features in [Features::default(), Features::old()] {
        for everything in [false, true] {
            let mut node =
                Node::with(Options { features: features.clone(), ..Options::default() }).await;
            node.start().await;
            let lives = vec![Behaviour::exits(Duration::ZERO, 1), Behaviour::runs()];
            node.fake.behave_in_turn("main", lives);
            node.put(&simple("web"));
            let once = |pod: &Pod| runs(pod, "main") && main(pod).restart_count == 1;
            node.wait_pod("web", "runs again", WAIT_LIMIT, once).await;
            if everything {
                node.fake.forget_everything();
            } else {
                // The one before it is still there.
                assert!(node.fake.forget("main"));
            }
            node.fake.end_event_streams(None);
            let twice = |pod: &Pod| runs(pod, "main") && main(pod).restart_count == 2;
            node.wait_pod("web", "goes on counting", WAIT_LIMIT, twice).await;
            assert_eq!(node.fake.container("main").unwrap().attempt, 2);
        }
    }
}
