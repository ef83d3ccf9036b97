use super::*;
use crate::model::{ProbeKind, ProbeResult};
use futures::FutureExt as _;
use jiff::Timestamp;

fn state_store(directory: &Path) -> PodStateStore {
    PodStateStore::open(directory.to_path_buf()).unwrap()
}

#[tokio::test]
async fn a_recorded_fact_is_read_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let uid = PodUid::from("abc");
    let since: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    state_store(dir.path())
        .update_and_wait(&uid, |r| {
            r.initialized_in = Some("s1".into());
            r.set_probe_result(&"c1".into(), ProbeKind::Readiness, ProbeResult::Success);
            r.back_off.insert(
                "web".into(),
                SavedBackOff {
                    key: u64::MAX,
                    delay_seconds: 40,
                    since,
                },
            );
        })
        .await;
    let record = state_store(dir.path()).get(&uid);
    assert_eq!(record.initialized_sandbox(), Some("s1".into()));
    assert_eq!(
        record.probe_result(&"c1".into(), ProbeKind::Readiness),
        Some(ProbeResult::Success)
    );
    assert_eq!(record.back_off["web"].key, u64::MAX);
}

#[tokio::test]
async fn a_pod_without_facts_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let state_store = state_store(dir.path());
    let uid = PodUid::from("abc");
    state_store.update_and_wait(&uid, |_| {}).await;
    state_store
        .update_and_wait(&uid, |r| r.initialized_in = Some("s".into()))
        .await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    state_store
        .update_and_wait(&uid, |r| r.initialized_in = None)
        .await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn garbage_on_disk_is_skipped_and_does_not_stop_the_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.json"), b"{ not json").unwrap();
    fs::write(dir.path().join("b.json"), br#"{"version":99}"#).unwrap();
    fs::write(dir.path().join(".c.json.1-2.tmp"), b"half").unwrap();
    let state_store = state_store(dir.path());
    assert_eq!(state_store.uids(), Vec::<PodUid>::new());
    assert!(!dir.path().join(".c.json.1-2.tmp").exists());
}

#[tokio::test]
async fn what_a_newer_kubelet_added_is_passed_over_and_the_rest_counts() {
    let dir = tempfile::tempdir().unwrap();
    let newer = br#"{"version":1,"initializedIn":"s","fromTheFuture":{"a":1}}"#;
    fs::write(dir.path().join("abc.json"), newer).unwrap();
    let read = state_store(dir.path()).get(&PodUid::from("abc"));
    assert_eq!(read.initialized_in.as_deref(), Some("s"));
}

#[tokio::test]
async fn what_an_earlier_version_kept_of_a_status_is_read_as_a_status() {
    let dir = tempfile::tempdir().unwrap();
    let earlier = br#"{"version":1,"started":"2026-01-02T03:04:05Z","phase":"Running","conditions":
        {"Ready":{"status":true,"since":"2026-01-02T03:04:09Z"}}}"#;
    fs::write(dir.path().join("abc.json"), earlier).unwrap();
    let ended = br#"{"version":1,"started":"2026-01-02T03:04:05Z","phase":"Running",
        "terminal":{"status":{"phase":"Succeeded"}}}"#;
    fs::write(dir.path().join("def.json"), ended).unwrap();
    let state_store = state_store(dir.path());
    let status = state_store.get(&"abc".into()).last_status().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let at = |time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| time.0.to_string();
    assert_eq!(
        status.start_time.as_ref().map(at).as_deref(),
        Some("2026-01-02T03:04:05Z")
    );
    let [ready] = &status.conditions.as_deref().unwrap() else {
        panic!("{status:?}");
    };
    assert_eq!((&*ready.type_, &*ready.status), ("Ready", "True"));
    let since = ready.last_transition_time.as_ref().map(at);
    assert_eq!(since.as_deref(), Some("2026-01-02T03:04:09Z"));
    let ended = state_store.get(&"def".into());
    assert_eq!(
        ended.last_status().unwrap().phase.as_deref(),
        Some("Succeeded")
    );
}

#[tokio::test]
async fn a_status_that_cannot_be_read_hides_nothing_else_of_its_pod() {
    let dir = tempfile::tempdir().unwrap();
    let newer = br#"{"version":1,"status":{"phase":7},"terminal":{"status":{"phase":7}}}"#;
    fs::write(dir.path().join("abc.json"), newer).unwrap();
    let read = state_store(dir.path()).get(&PodUid::from("abc"));
    assert!(read.terminal.is_some());
    assert_eq!(read.last_status(), None);
}

/// The version before this one required `terminal.status` to be there.
#[tokio::test]
async fn an_earlier_version_finds_the_end_of_a_pod() {
    let dir = tempfile::tempdir().unwrap();
    for status in [None, Some(Arc::default())] {
        let terminal = TerminalRecord {
            status,
            stopped_sandboxes: Vec::new(),
        };
        let uid = PodUid::from("abc");
        state_store(dir.path())
            .update_and_wait(&uid, |record| record.terminal = Some(terminal))
            .await;
        let text = fs::read(dir.path().join("abc.json")).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert!(text["terminal"].as_object().unwrap().contains_key("status"));
    }
}

#[tokio::test]
async fn a_uid_cannot_leave_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let state_store = state_store(&dir.path().join("journal"));
    let uid = PodUid::from("../escape");
    state_store
        .update_and_wait(&uid, |r| r.initialized_in = Some("s".into()))
        .await;
    assert!(!dir.path().join("escape.json").exists());
    assert_eq!(state_store.get(&uid).initialized_in.as_deref(), Some("s"));
}

#[tokio::test]
async fn updates_are_written_by_the_task_and_flushed_at_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let first = state_store(dir.path());
    let uid = PodUid::from("abc");
    first.update(&uid, |r| r.post_start_pending.push("c".into()));
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    first.run(shutdown).await.unwrap();
    assert_eq!(state_store(dir.path()).get(&uid).post_start_pending, ["c"]);
}

#[tokio::test]
async fn what_was_flushed_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let first = state_store(dir.path());
    let uid = PodUid::from("abc");
    first.update(&uid, |r| r.initialized_in = Some("s".into()));
    first.flush().await;
    first.flush().await;
    let again = state_store(dir.path()).get(&uid);
    assert_eq!(again.initialized_in.as_deref(), Some("s"));
}

#[tokio::test]
async fn a_change_in_memory_is_written_with_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = state_store(dir.path());
    let uid = PodUid::from("abc");
    let on_disk = || state_store(dir.path()).get(&uid).initialized_in;
    first.update_in_memory(&uid, |r| r.initialized_in = Some("s".into()));
    first.flush().await;
    assert_eq!(on_disk(), None);
    first.update(&uid, |r| r.pre_stop_ran = vec!["c".into()]);
    first.flush().await;
    assert_eq!(on_disk().as_deref(), Some("s"));
}

#[tokio::test]
async fn what_changes_after_the_writer_has_ended_is_written_by_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let state_store = PodStateStore::open(dir.path().to_path_buf()).unwrap();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    state_store.clone().run(shutdown).await.unwrap();
    state_store.update(&"u".into(), |r| r.initialized_in = Some("s".into()));
    let reopened = || PodStateStore::open(dir.path().to_path_buf()).unwrap();
    assert!(reopened().uids().is_empty());
    state_store.flush().await;
    let record = reopened().get(&"u".into());
    assert_eq!(record.initialized_in.as_deref(), Some("s"));
}

#[tokio::test]
async fn a_record_is_written_also_when_its_caller_stops_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (state_store, uid) = (state_store(dir.path()), PodUid::from("abc"));
    let busy = state_store.shared.writing.lock().await;
    let recording = state_store.update_and_wait(&uid, |r| r.initialized_in = Some("s".into()));
    assert!(
        recording.now_or_never().is_none(),
        "it waits for the running write"
    );
    drop(busy);
    state_store.flush().await;
    let again = self::state_store(dir.path()).get(&uid);
    assert_eq!(again.initialized_in.as_deref(), Some("s"));
}

#[tokio::test]
async fn changes_that_an_earlier_write_included_need_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (state_store, uid) = (state_store(dir.path()), PodUid::from("abc"));
    for only in [None, Some(uid.clone())] {
        let busy = state_store.shared.writing.lock().await;
        state_store.shared.dirty.mark(uid.clone());
        let mut write = Box::pin(state_store.write(only));
        assert!(futures::poll!(&mut write).is_pending());
        assert!(state_store.shared.dirty.unmark(&uid));
        drop(busy);
        assert!(futures::poll!(&mut write).is_ready());
    }
}

#[test]
fn a_write_is_not_overtaken_by_a_later_one_when_its_caller_stops_waiting() {
    // One thread for blocking work, and that is busy: the first write cannot end.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (state_store, uid) = (state_store(dir.path()), PodUid::from("abc"));
        let (free, busy) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || busy.recv());
        let set =
            |text: &'static str| move |r: &mut PodRecord| r.initialized_in = Some(text.into());
        let mut first = Box::pin(state_store.update_and_wait(&uid, set("first")));
        assert!(futures::poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
        drop(first);
        assert!(
            state_store.shared.writing.try_lock().is_err(),
            "it is still being written"
        );
        let second = state_store.update_and_wait(&uid, set("second"));
        free.send(()).unwrap();
        second.await;
        busy.await.unwrap().unwrap();
        let again = self::state_store(dir.path()).get(&uid);
        assert_eq!(again.initialized_in.as_deref(), Some("second"));
    });
}
