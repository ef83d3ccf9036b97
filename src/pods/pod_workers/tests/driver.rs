//! Workers on a paused clock.

use super::super::*;
use super::syncer::{How, Scripted, settle};
use super::*;
use crate::base::clock;
use crate::model::PodExt as _;
use crate::pods::pod_sync::syncer::SyncPodType;
use crate::pods::pod_sync::syncer::TerminationReason::Deleted;
use std::time::Duration;

const S: fn(u64) -> Duration = Duration::from_secs;

struct Node {
    workers: PodWorkers,
    syncer: Scripted,
}

fn node() -> Node {
    let syncer = Scripted::default();
    Node { workers: PodWorkers::new(Arc::new(syncer.clone()), None, Delays::default()), syncer }
}

impl Node {
    async fn update(&self, options: UpdatePodOptions) {
        self.workers.update_pod(options);
        settle().await;
    }

    async fn create(&self, pod: &Pod) {
        let pod = Arc::new(pod.clone());
        let uid = pod.uid();
        let nothing = in_runtime(uid.as_str(), "web", false);
        self.update(UpdatePodOptions::sync(SyncPodType::Create, pod).with_runtime_status(nothing))
            .await;
    }

    async fn sync(&self, pod: &Pod, kind: SyncPodType) {
        self.update(UpdatePodOptions::sync(kind, Arc::new(pod.clone()))).await;
    }

    async fn kill(&self, pod: &Pod) {
        self.update(UpdatePodOptions::kill(Arc::new(pod.clone()), Deleted)).await;
    }

    async fn end(&self, uid: &str, how: How) {
        assert!(self.syncer.end(uid, how), "no sync of {uid}");
        settle().await;
    }

    fn running(&self, uid: &str) -> String {
        self.syncer.running(uid).unwrap_or_default()
    }

    /// How long until a sync of the pod begins, to the millisecond.
    async fn time_to_sync(&self, uid: &str) -> Duration {
        let started_at = clock::instant();
        while self.syncer.running(uid).is_none() {
            assert!(clock::since(started_at) < S(200), "no sync of {uid} in 200 s");
            tokio::time::advance(Duration::from_millis(1)).await;
            tokio::task::yield_now().await;
        }
        clock::since(started_at)
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_synced_resynced_stopped_and_cleaned_up() {
    let node = node();
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    assert_eq!(node.running("u"), "sync");
    node.end("u", How::Well).await;
    let rest = node.time_to_sync("u").await;
    assert!((S(60)..S(91)).contains(&rest), "{rest:?}");
    assert_eq!(node.running("u"), "sync");
    node.end("u", How::Well).await;
    node.kill(&pod).await;
    node.end("u", How::Well).await;
    node.end("u", How::Well).await;
    assert_eq!(node.syncer.log(), ["sync:u", "sync:u", "stop:u", "clean-up:u"]);
    assert_eq!(node.workers.finished().await, HashSet::from(["u".into()]));
    assert_eq!(node.workers.remove_terminated(&"u".into(), false), WorkerRemoval::Removed);
    assert!(node.workers.shared.map.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_next_sync_begins_when_the_last_one_returned() {
    let node = node();
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    for (how, from, to) in [
        (How::Badly, S(10), S(15)),
        (How::NetworkNotReady, S(1), Duration::from_millis(1500)),
        (
            How::AgainIn(Duration::from_millis(7250)),
            Duration::from_millis(7250),
            Duration::from_millis(7250),
        ),
        (How::AgainIn(S(300)), S(60), S(90)),
        (How::Panic, S(10), S(15)),
        (How::Well, S(60), S(90)),
    ] {
        node.end("u", how).await;
        let rest = node.time_to_sync("u").await;
        let slack = Duration::from_millis(3);
        assert!(rest >= from && rest <= to + slack, "{how:?}: {rest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn updates_while_busy_become_one_sync_with_the_newest_pod() {
    let node = node();
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    for _ in 0..5 {
        node.sync(&pod, SyncPodType::Sync).await;
        node.sync(&pod, SyncPodType::Update).await;
        node.sync(&pod, SyncPodType::Sync).await;
    }
    assert_eq!(node.syncer.log(), ["sync:u"]);
    node.end("u", How::Badly).await;
    assert_eq!(node.running("u"), "sync", "at once, although the sync failed");
    node.end("u", How::Well).await;
    assert_eq!(node.running("u"), "", "and only once");
}

#[tokio::test(start_paused = true)]
async fn a_kill_ends_a_running_sync_and_survives_later_updates() {
    let node = node();
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    node.sync(&pod, SyncPodType::Update).await;
    assert!(!node.syncer.is_cancelled("u"));
    node.kill(&pod).await;
    assert!(node.syncer.is_cancelled("u"));
    node.sync(&pod, SyncPodType::Update).await;
    node.sync(&pod, SyncPodType::Sync).await;
    node.end("u", How::Badly).await;
    assert_eq!(node.running("u"), "stop");
}

#[tokio::test(start_paused = true)]
async fn a_running_stop_gets_a_shorter_grace() {
    let node = node();
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    node.end("u", How::Well).await;
    node.kill(&pod).await;
    assert_eq!(node.syncer.time_left("u"), S(30));
    let again = UpdatePodOptions::kill(Arc::new(pod), Deleted);
    node.update(again.clone().with_grace(4)).await;
    assert_eq!(node.syncer.time_left("u"), S(4));
    node.update(again.with_grace(20)).await;
    assert_eq!(node.syncer.time_left("u"), S(4));
    assert_eq!(node.syncer.log(), ["sync:u", "stop:u"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_or_panics_is_tried_again() {
    let node = node();
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    node.end("u", How::Well).await;
    node.kill(&pod).await;
    for (how, rests) in [(How::Badly, S(2)..S(4)), (How::Panic, S(4)..S(7))] {
        node.end("u", how).await;
        let rest = node.time_to_sync("u").await;
        assert!(rests.contains(&rest), "{rest:?}");
        assert_eq!(node.running("u"), "stop");
    }
    node.end("u", How::Well).await;
    node.end("u", How::Panic).await;
    node.time_to_sync("u").await;
    assert_eq!(node.running("u"), "clean-up");
}

#[tokio::test(start_paused = true)]
async fn an_edited_static_pod_starts_the_moment_the_old_one_is_finished() {
    let node = node();
    let (old, new, newer) =
        (static_pod("u1", "web"), static_pod("u2", "web"), static_pod("u3", "web"));
    node.create(&old).await;
    node.end("u1", How::Well).await;
    node.kill(&old).await;
    node.create(&new).await;
    // A second edit comes before the first could start.
    node.kill(&new).await;
    node.create(&newer).await;
    assert!(node.workers.should_pod_be_finished(&"u2".into()));
    let in_use = |except: &str| {
        let except = PodUid::from(except);
        node.workers.is_name_in_use(&new.full_name(), Some(&except))
    };
    assert!(in_use("u3"), "the first one has not ended");
    node.end("u1", How::Badly).await;
    node.time_to_sync("u1").await;
    assert_eq!(node.syncer.busy(), ["u1".into()]);
    node.end("u1", How::Well).await;
    assert_eq!(node.syncer.busy(), ["u1".into()], "still cleaning up");
    node.end("u1", How::Well).await;
    assert_eq!(node.running("u3"), "sync");
    assert!(!in_use("u3") && in_use("u1"));
    assert!(!node.syncer.log().contains(&"sync:u2".to_string()));
    assert_eq!(node.syncer.broken(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_still_runs_from_before_is_not_started_beside_it() {
    let node = node();
    let old = in_runtime("old", "web", true);
    node.workers.update_start_gate(&[old.clone(), in_runtime("x", "other", false)]);
    node.create(&static_pod("new", "web")).await;
    node.create(&static_pod("y", "other")).await;
    assert_eq!(node.syncer.busy(), ["y".into()]);
    node.update(UpdatePodOptions::orphan(old)).await;
    assert_eq!(node.running("old"), "stop-runtime");
    assert_eq!(node.running("new"), "");
    node.end("old", How::Well).await;
    assert_eq!(node.running("new"), "sync");
    assert_eq!(node.workers.finished().await, HashSet::from(["old".into()]));
    assert_eq!(node.workers.remove_terminated(&"old".into(), false), WorkerRemoval::Removed);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_free_once_the_runtime_shows_that_its_pod_is_gone() {
    let node = node();
    node.workers.update_start_gate(&[in_runtime("old", "web", true)]);
    node.create(&static_pod("new", "web")).await;
    node.workers.update_start_gate(&[in_runtime("old", "web", true)]);
    settle().await;
    assert_eq!(node.running("new"), "");
    node.workers.update_start_gate(&[]);
    settle().await;
    assert_eq!(node.running("new"), "sync");
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_is_adopted_by_its_own_uid() {
    let node = node();
    node.workers.update_start_gate(&[in_runtime("u", "web", true)]);
    node.create(&static_pod("u", "web")).await;
    assert_eq!(node.running("u"), "sync");
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_gets_a_new_worker_only_after_it_was_collected() {
    let node = node();
    let running = in_runtime("u", "web", true);
    node.update(UpdatePodOptions::orphan(running)).await;
    node.end("u", How::Well).await;
    assert!(!node.workers.has_worker(&"u".into()));
    let pod = static_pod("u", "web");
    node.create(&pod).await;
    assert_eq!(node.running("u"), "", "its remains come first");
    assert_eq!(node.workers.finished().await, HashSet::from(["u".into()]));
    // That something of it changed is not a reason to start it.
    let update = UpdatePodOptions::sync(SyncPodType::Sync, Arc::new(pod.clone()));
    node.workers.update_known_pod(update.clone());
    settle().await;
    assert!(!node.workers.has_worker(&"u".into()));
    node.create(&pod).await;
    assert_eq!(node.running("u"), "sync");
    node.workers.update_known_pod(update);
    node.end("u", How::Well).await;
    assert_eq!(node.running("u"), "sync");
}

#[tokio::test(start_paused = true)]
async fn the_same_uid_added_again_restarts_after_it_finished() {
    let node = node();
    let pod = static_pod("u", "web");
    node.create(&pod).await;
    node.end("u", How::Well).await;
    node.kill(&pod).await;
    node.create(&pod).await;
    node.end("u", How::Well).await;
    node.end("u", How::Well).await;
    assert_eq!(node.workers.finished().await, HashSet::from(["u".into()]));
    assert_eq!(node.workers.remove_terminated(&"u".into(), true), WorkerRemoval::Removed);
    node.create(&pod).await;
    assert_eq!(node.running("u"), "sync");
    // One that finished before it is added again is announced again.
    node.kill(&pod).await;
    for _ in 0..3 {
        node.end("u", How::Well).await;
    }
    assert_eq!(node.workers.finished().await.len(), 1);
    assert_eq!(node.workers.remove_terminated(&"u".into(), true), WorkerRemoval::Kept);
    node.create(&pod).await;
    assert_eq!(node.workers.finished().await.len(), 1);
    assert_eq!(node.workers.remove_terminated(&"u".into(), true), WorkerRemoval::Removed);
}

#[tokio::test(start_paused = true)]
async fn sync_known_pods_stops_forgets_and_returns_pods_to_create() {
    let node = node();
    for uid in ["run", "done", "wanted"] {
        node.create(&api_pod(uid, uid)).await;
        node.end(uid, How::Well).await;
    }
    node.create(&static_pod("first", "web")).await;
    node.create(&static_pod("line", "web")).await;
    node.kill(&api_pod("done", "done")).await;
    node.end("done", How::Well).await;
    node.end("done", How::Well).await;
    let desired = HashSet::from(["wanted".into(), "first".into(), "missing".into()]);
    let mut reconciled = node.workers.sync_known_pods(&desired);
    settle().await;
    reconciled.forgotten.sort();
    assert_eq!(reconciled.forgotten, ["done".into(), "line".into()]);
    assert_eq!(reconciled.to_create, ["missing".into()]);
    assert_eq!(node.running("run"), "stop");
    assert_eq!(node.running("wanted"), "");
    // A failing stop of an unwanted pod is left to its own delay.
    node.end("run", How::Badly).await;
    node.workers.sync_known_pods(&desired);
    settle().await;
    assert_eq!(node.running("run"), "");
    let rest = node.time_to_sync("run").await;
    assert!((S(2)..S(4)).contains(&rest), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn answers_about_a_pod_through_its_life() {
    let node = node();
    let pod = deleted(api_pod("u", "web"), None);
    let uid = PodUid::from("u");
    let request = || {
        let w = &node.workers;
        [
            w.has_worker(&uid),
            w.is_pod_termination_requested(&uid),
            w.should_pod_be_finished(&uid),
            w.could_have_running_containers(&uid),
        ]
    };
    assert_eq!(request(), [false, false, false, true], "unknown at start");
    node.create(&api_pod("u", "web")).await;
    assert_eq!(request(), [true, false, false, true], "syncing");
    node.sync(&pod, SyncPodType::Update).await;
    assert_eq!(request(), [true, true, false, true], "the sync still runs");
    node.end("u", How::Well).await;
    assert_eq!(request(), [true, true, false, true], "terminating");
    node.end("u", How::Well).await;
    assert_eq!(request(), [true, true, false, false], "terminated");
    node.end("u", How::Well).await;
    assert_eq!(request(), [true, true, true, false], "finished");
    node.workers.sync_known_pods(&HashSet::new());
    assert_eq!(request(), [false, false, true, false], "unknown once all is known");
    assert!(node.workers.worker_pods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_in_error_are_synced_when_the_runtime_returns() {
    let node = node();
    for uid in ["failed", "well", "stops"] {
        node.create(&api_pod(uid, uid)).await;
    }
    node.end("failed", How::Badly).await;
    node.end("well", How::Well).await;
    node.kill(&api_pod("stops", "stops")).await;
    node.end("stops", How::Well).await;
    node.end("stops", How::Badly).await;
    node.workers.runtime_recovered();
    settle().await;
    let syncs = ["failed", "well", "stops"].map(|uid| node.running(uid));
    assert_eq!(syncs, ["sync", "", "stop"]);
    node.end("failed", How::Well).await;
    node.workers.runtime_recovered();
    settle().await;
    assert_eq!(node.running("failed"), "", "it is well again");
}

#[tokio::test(start_paused = true)]
async fn stopping_the_workers_waits_for_running_syncs_and_stops_no_pod() {
    let node = node();
    for uid in ["busy", "idle"] {
        node.create(&api_pod(uid, uid)).await;
    }
    node.end("idle", How::Well).await;
    let workers = node.workers.clone();
    let stopping = tokio::spawn(async move { workers.stop().await });
    settle().await;
    assert!(node.syncer.is_cancelled("busy"));
    assert!(!stopping.is_finished());
    node.kill(&api_pod("idle", "idle")).await;
    node.end("busy", How::Well).await;
    stopping.await.unwrap();
    assert_eq!(node.syncer.log(), ["sync:busy", "sync:idle"]);
}

#[tokio::test(start_paused = true)]
async fn a_resting_worker_is_small() {
    let node = node();
    let (_sender, inbox) = tokio::sync::mpsc::channel(1);
    let task = task::run(node.workers.shared.clone(), "u".into(), 1, inbox);
    let size = std::mem::size_of_val(&task);
    assert!(size <= 512, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_panics_is_retried_and_no_other_pod_notices() {
    let node = node();
    let (pod, other) = (api_pod("u", "web"), api_pod("v", "db"));
    node.create(&pod).await;
    node.create(&other).await;
    let before = panics();
    node.end("u", How::Panic).await;
    assert!(panics() > before, "it is counted");
    node.end("v", How::Well).await;
    let rest = node.time_to_sync("u").await;
    assert!((S(10)..S(16)).contains(&rest), "{rest:?}");
    node.end("u", How::Well).await;
    node.kill(&other).await;
    assert_eq!(node.running("v"), "stop");
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_own_bookkeeping_panics_goes_on() {
    let syncer = Scripted::default();
    // No instant is that late, so the end of every good sync panics.
    let delays = Delays { resync: Duration::MAX, ..Delays::default() };
    let workers = PodWorkers::new(Arc::new(syncer.clone()), None, delays);
    let node = Node { workers, syncer };
    let pod = api_pod("u", "web");
    node.create(&pod).await;
    let before = panics();
    node.end("u", How::Well).await;
    assert!(panics() > before, "it is counted");
    let rest = node.time_to_sync("u").await;
    assert!((S(10)..S(16)).contains(&rest), "{rest:?}");
    node.end("u", How::Well).await;
    node.kill(&pod).await;
    assert_eq!(node.running("u"), "stop");
    node.end("u", How::Well).await;
    node.end("u", How::Well).await;
    assert_eq!(node.workers.finished().await, HashSet::from(["u".into()]));
}

fn panics() -> u64 {
    let syncs = crate::base::panics::counts().find(|(place, _)| *place == "sync");
    syncs.unwrap().1
}
