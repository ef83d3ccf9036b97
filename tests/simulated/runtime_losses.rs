//! A runtime that is away, that says nothing, or that has lost everything.

use std::time::{Duration, Instant};

use crate::node::{Node, WAIT_LIMIT, full, is_ready, runs, status_of};
use crate::pods::simple;
use crate::support::fake_runtime::{FakeRuntime, Features, Options, Rpc};
use crate::support::wait::{holds, wait_for};

#[tokio::test]
async fn a_runtime_that_is_not_there_yet_is_waited_for() {
    let mut node = Node::new().await;
    node.fake.vanish();
    node.put(&simple("web"));
    node.start().await;
    node.wait_healthy().await;
    assert!(node.pods().await.is_empty());
    node.fake.come_back();
    node.wait_phase("web", "Running").await;
}

#[tokio::test]
async fn a_runtime_that_goes_and_comes_back_finds_its_pods_untouched() {
    let node = Node::started().await;
    node.put(&simple("web"));
    let before = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.vanish();
    node.put(&simple("late"));
    wait_for("the new pod is known", WAIT_LIMIT, async || {
        holds(node.pod("late").await.is_some(), "it is not")
    })
    .await;
    assert!(is_ready(&node.pod("web").await.unwrap()));
    node.wait_healthy().await;
    node.fake.clear_calls();
    node.fake.come_back();
    node.fake.wait_until("it listens again", WAIT_LIMIT, |fake| fake.subscribers() > 0).await;
    node.wait_pod("late", "runs", WAIT_LIMIT, |pod| runs(pod, "main")).await;
    let after = node.wait_runs("web").await;
    assert_eq!(after.id, before.id);
    let touched = node.fake.calls();
    let touched: Vec<_> = touched
        .iter()
        .filter(|call| call.rpc.is_mutating() && call.subject.pod == full("web"))
        .collect();
    assert!(touched.is_empty(), "{touched:?}");
}

#[tokio::test]
async fn pods_whose_sync_failed_while_the_runtime_was_away_are_synced_when_it_returns() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.fake.vanish();
    node.put(&simple("late"));
    wait_for("the sync of the new pod fails", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains("FailedCreatePodSandBox"), "it has not")
    })
    .await;
    node.fake.come_back();
    let back = Instant::now();
    node.wait_runs("late").await;
    // The delay after an error is at least 10 s.
    assert!(back.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn what_happened_while_nobody_listened_is_found_when_listening_again() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.end_event_streams(None);
    node.fake.exit("main", 1);
    let again =
        |pod: &_| runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count == 1);
    node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
}

#[tokio::test]
async fn one_event_that_nobody_heard_is_made_up_for_by_the_next_list() {
    let mut node = Node::new().await;
    node.periods().pleg.relist_period_with_events = Duration::from_secs(2);
    node.start().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    let listens = |fake: &FakeRuntime| (fake.subscribers(), fake.count(Rpc::GetContainerEvents));
    let before = listens(&node.fake);
    node.fake.lose_events(1);
    node.fake.exit("main", 1);
    let again =
        |pod: &_| runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count == 1);
    node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
    assert_eq!(listens(&node.fake), before, "the stream was never down");
}

#[tokio::test]
async fn a_sandbox_whose_death_nobody_heard_is_replaced_after_the_next_list() {
    let mut node = Node::new().await;
    node.periods().pleg.relist_period_with_events = Duration::from_secs(2);
    node.start().await;
    node.put(&simple("web"));
    let first = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    // That of its container, and its own.
    node.fake.lose_events(2);
    node.fake.kill_sandbox(&full("web"));
    let replaced = |fake: &FakeRuntime| {
        let newest = fake.container(&format!("{}/main", full("web")));
        newest.is_some_and(|c| c.is_running() && c.id != first.id)
    };
    node.fake.wait_until("it is replaced", WAIT_LIMIT, replaced).await;
    assert_eq!(node.fake.pod(&full("web")).unwrap().attempt, 1);
}

#[tokio::test]
async fn a_runtime_that_says_it_is_not_ready_is_asked_for_nothing_new_until_it_is() {
    let mut node = Node::new().await;
    node.periods().pleg.status_period = Duration::from_millis(200);
    node.start().await;
    node.put(&simple("old"));
    node.wait_runs("old").await;
    node.wait_phase("old", "Running").await;
    node.fake.set_runtime_ready(Err("not today"));
    let requested = node.fake.count(Rpc::Status);
    let received = |fake: &FakeRuntime| fake.count(Rpc::Status) >= requested + 2;
    node.fake.wait_until("it says so", WAIT_LIMIT, received).await;
    node.put(&simple("web"));
    node.fake.exit(&format!("{}/main", full("old")), 1);
    node.wait_shown(2).await;
    let starts = |fake: &FakeRuntime| {
        fake.count(Rpc::RunPodSandbox) > 1 || fake.count(Rpc::CreateContainer) > 1
    };
    assert!(node.never(Duration::from_secs(1), starts).await);
    // The loop, and with it statuses and the end of pods, goes on.
    let ended = |pod: &_| status_of(pod, "main").is_some_and(|s| s.restart_count > 0 || !s.ready);
    node.wait_pod("old", "is shown to have ended", WAIT_LIMIT, ended).await;
    node.remove("old");
    node.wait_removed("old").await;
    node.fake.set_runtime_ready(Ok(()));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
}

#[tokio::test]
async fn a_runtime_without_events_is_listed_every_second() {
    deaths_show_in_lists(Features::old()).await;
}

#[tokio::test]
async fn a_runtime_that_closes_every_event_stream_is_listed_every_second() {
    let features = Features { event_streams_end: true, ..Features::default() };
    let node = deaths_show_in_lists(features).await;
    assert_eq!(node.fake.count(Rpc::GetContainerEvents), 3);
    let streams = |fake: &FakeRuntime| fake.count(Rpc::GetContainerEvents) > 3;
    assert!(node.never(Duration::from_secs(2), streams).await);
}

async fn deaths_show_in_lists(features: Features) -> Node {
    let mut node = Node::with(Options { features, ..Options::default() }).await;
    node.start().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.exit("main", 1);
    let again =
        |pod: &_| runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count == 1);
    node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
    node.remove("web");
    node.wait_removed("web").await;
    node.wait_gone("web").await;
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1);
    node
}

#[tokio::test]
async fn a_runtime_that_lost_everything_gets_its_pods_again() {
    let node = Node::started().await;
    let names = ["one", "two", "three"];
    for name in names {
        node.put(&simple(name));
        node.wait_runs(name).await;
        node.wait_phase(name, "Running").await;
    }
    node.fake.clear_calls();
    node.fake.forget_everything();
    node.fake.end_event_streams(None);
    for name in names {
        node.wait_runs(name).await;
    }
    let all = |fake: &FakeRuntime| fake.pods().len() == names.len();
    node.fake.wait_until("each pod is there once", WAIT_LIMIT, all).await;
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 3);
}
