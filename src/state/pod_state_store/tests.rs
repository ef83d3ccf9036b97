use super::*;
use crate::base::clock;
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
            r.back_off
                .insert("web".into(), SavedBackOff { key: u64::MAX, delay_seconds: 40, since });
        })
        .await;
    let record = state_store(dir.path()).get(&uid);
    assert_eq!(record.initialized_sandbox(), Some("s1".into()));
    assert_eq!(record.probe_result(&"c1".into(), ProbeKind::Readiness), Some(ProbeResult::Success));
    assert_eq!(record.back_off["web"].key, u64::MAX);
}

#[tokio::test]
async fn a_pod_without_facts_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let state_store = state_store(dir.path());
    let uid = PodUid::from("abc");
    state_store.update_and_wait(&uid, |_| {}).await;
    state_store.update_and_wait(&uid, |r| r.initialized_in = Some("s".into())).await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    state_store.update_and_wait(&uid, |r| r.initialized_in = None).await;
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
    assert_eq!(status.start_time.as_ref().map(at).as_deref(), Some("2026-01-02T03:04:05Z"));
    let [ready] = &status.conditions.as_deref().unwrap() else {
        panic!("{status:?}");
    };
    assert_eq!((&*ready.type_, &*ready.status), ("Ready", "True"));
    let since = ready.last_transition_time.as_ref().map(at);
    assert_eq!(since.as_deref(), Some("2026-01-02T03:04:09Z"));
    let ended = state_store.get(&"def".into());
    assert_eq!(ended.last_status().unwrap().phase.as_deref(), Some("Succeeded"));
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
        let terminal = TerminalRecord { status, stopped_sandboxes: Vec::new() };
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
    state_store.update_and_wait(&uid, |r| r.initialized_in = Some("s".into())).await;
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

/// A disk whose writes hang until the test lets them go, or fail.
#[derive(Clone, Default)]
struct Disk(Arc<(Mutex<DiskState>, parking_lot::Condvar)>);

#[derive(Default)]
struct DiskState {
    hangs: HashSet<String>,
    fails: HashSet<String>,
    writes: Vec<String>,
}

impl Disk {
    fn state_store(&self, directory: &Path) -> PodStateStore {
        let disk = self.clone();
        let write = move |path: &Path, bytes: Option<&[u8]>| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let (state, changed) = &*disk.0;
            let mut state = state.lock();
            changed.wait_while(&mut state, |state| state.hangs.contains(&name));
            if state.fails.contains(&name) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.writes.push(name);
            write_file(path, bytes)
        };
        PodStateStore::open_with(directory.to_path_buf(), Arc::new(write)).unwrap()
    }

    fn set(&self, change: impl FnOnce(&mut DiskState)) {
        change(&mut self.0.0.lock());
        self.0.1.notify_all();
    }

    fn hang(&self, name: &str) {
        self.set(|state| state.hangs = HashSet::from([name.into()]));
    }

    fn go_on(&self) {
        self.set(|state| state.hangs.clear());
    }
}

/// Hung writes end with the test, or its runtime would wait for their threads.
impl Drop for DiskGuard {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

struct DiskGuard(Disk);

fn initialized(text: &'static str) -> impl Fn(&mut PodRecord) + Send + Sync + Clone {
    move |record| record.initialized_in = Some(text.into())
}

fn on_disk(directory: &Path, uid: &PodUid) -> Option<String> {
    state_store(directory).get(uid).initialized_in
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_record_is_written_also_when_its_caller_stops_waiting() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let _guard = DiskGuard(disk.clone());
    let (state_store, uid) = (disk.state_store(dir.path()), PodUid::from("abc"));
    disk.hang("abc");
    let recording = state_store.update_and_wait(&uid, initialized("s"));
    assert!(recording.now_or_never().is_none());
    disk.go_on();
    until(|| on_disk(dir.path(), &uid).as_deref() == Some("s")).await;
}

#[tokio::test]
async fn changes_during_a_write_are_in_the_next_one_and_nobody_writes_twice() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let _guard = DiskGuard(disk.clone());
    let (state_store, uid) = (disk.state_store(dir.path()), PodUid::from("abc"));
    disk.hang("abc");
    let mut first = Box::pin(state_store.update_and_wait(&uid, initialized("1")));
    assert!(futures::poll!(&mut first).is_pending());
    let begun = || state_store.shared.records.lock().unwritten() == [uid.clone()];
    until(begun).await;
    let mut second = Box::pin(state_store.update_and_wait(&uid, initialized("2")));
    let mut third = Box::pin(state_store.update_and_wait(&uid, initialized("3")));
    assert!(futures::poll!(&mut second).is_pending());
    assert!(futures::poll!(&mut third).is_pending());
    disk.go_on();
    tokio::join!(first, second, third, state_store.flush());
    assert_eq!(on_disk(dir.path(), &uid).as_deref(), Some("3"));
    let writes = disk.0.0.lock().writes.len();
    assert!(writes <= 2, "{writes}");
    assert!(state_store.shared.records.lock().unwritten().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_holds_up_no_other_pod_and_its_own_for_a_while() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let _guard = DiskGuard(disk.clone());
    let state_store = disk.state_store(dir.path());
    let (hung, other) = (PodUid::from("hung"), PodUid::from("other"));
    disk.hang("hung");
    let mut recording = Box::pin(state_store.update_and_wait(&hung, initialized("s")));
    assert!(futures::poll!(&mut recording).is_pending());
    state_store.update_and_wait(&other, initialized("s")).await;
    assert_eq!(on_disk(dir.path(), &other).as_deref(), Some("s"));
    tokio::time::advance(WRITE_TIMEOUT - Duration::from_millis(1)).await;
    assert!(futures::poll!(&mut recording).is_pending());
    tokio::time::advance(Duration::from_millis(1)).await;
    recording.await;
    assert_eq!(state_store.get(&hung).initialized_in.as_deref(), Some("s"));
    assert_eq!(on_disk(dir.path(), &hung), None);
    // Callers that give up leave nothing behind but the one write.
    let metrics = tokio::runtime::Handle::current().metrics();
    let tasks = metrics.num_alive_tasks();
    for _ in 0..10 {
        assert!(state_store.flush().now_or_never().is_none());
    }
    assert_eq!(metrics.num_alive_tasks(), tasks);
    disk.go_on();
    state_store.flush().await;
    assert_eq!(on_disk(dir.path(), &hung).as_deref(), Some("s"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_file_cannot_be_written_delays_no_other_and_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let state_store = state_store(dir.path());
    let (bad, good) = (PodUid::from("bad"), PodUid::from("good"));
    // Nothing can be renamed to a directory that is not empty.
    fs::create_dir_all(dir.path().join("bad.json/x")).unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn(state_store.clone().run(shutdown.clone()));
    state_store.update(&bad, initialized("s"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = clock::instant();
    state_store.update(&good, initialized("s"));
    while on_disk(dir.path(), &good).is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = clock::since(begun);
    assert!(took < Duration::from_millis(100), "{took:?}");
    fs::remove_dir_all(dir.path().join("bad.json")).unwrap();
    while on_disk(dir.path(), &bad).is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = clock::since(begun);
    assert!(took < RETRY_INTERVAL, "{took:?}");
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_change_that_is_written_first_is_read_only_when_it_is_on_disk() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let _guard = DiskGuard(disk.clone());
    let (state_store, uid) = (disk.state_store(dir.path()), PodUid::from("abc"));
    let read = || state_store.get(&uid).initialized_in;
    disk.hang("abc");
    let mut recording = Box::pin(state_store.write_and_update(&uid, initialized("s")));
    assert!(futures::poll!(&mut recording).is_pending());
    // A change beside it is neither lost nor held up.
    state_store.update(&uid, |record| record.pre_stop_ran = vec!["c".into()]);
    for _ in 0..20 {
        assert!(futures::poll!(&mut recording).is_pending());
        assert_eq!(read(), None);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.go_on();
    recording.await;
    assert_eq!(read().as_deref(), Some("s"));
    assert_eq!(on_disk(dir.path(), &uid).as_deref(), Some("s"));
    state_store.flush().await;
    let again = self::state_store(dir.path()).get(&uid);
    assert_eq!(again.pre_stop_ran, ["c"]);
    assert_eq!(again.initialized_in.as_deref(), Some("s"));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_or_hangs_hides_a_change_for_a_while_at_most() {
    for hangs in [false, true] {
        let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
        let _guard = DiskGuard(disk.clone());
        let (state_store, uid) = (disk.state_store(dir.path()), PodUid::from("abc"));
        if hangs {
            disk.hang("abc");
        } else {
            disk.set(|state| state.fails = HashSet::from(["abc".into()]));
        }
        let mut recording = Box::pin(state_store.write_and_update(&uid, initialized("s")));
        assert!(futures::poll!(&mut recording).is_pending());
        if hangs {
            tokio::time::advance(WRITE_TIMEOUT).await;
        }
        recording.await;
        assert_eq!(state_store.get(&uid).initialized_in.as_deref(), Some("s"));
        assert_eq!(on_disk(dir.path(), &uid), None);
        disk.set(|state| *state = DiskState::default());
        state_store.flush().await;
        assert_eq!(on_disk(dir.path(), &uid).as_deref(), Some("s"));
    }
}
