use super::rotate::{compress_file, put_back};
use super::{Config, Rotation, RotationPolicy};
use crate::base::clock;
use crate::cri::test_server::{Reply, TestRuntime, until};
use crate::cri::v1;
use crate::model::{ContainerId, ContainerState, ContainerStatus};
use crate::runtime::logs::{LogPathFn, files};
use crate::state::pod_cache::{self, InspectedItem as Seen, ItemId, PodCacheWriter, PodRef};
use flate2::read::GzDecoder;
use prost::Message as _;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;

const INTERVAL: Duration = Duration::from_millis(40);

/// Rotation of the logs of containers, of which each has a log of its name in one directory.
struct Bed {
    dir: tempfile::TempDir,
    runtime: TestRuntime,
    pods: PodCacheWriter,
    shutdown: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = TestRuntime::started();
        let (pods, cache) = pod_cache::pod_cache();
        pods.apply_list(pods.next_seq(), vec![], vec![]);
        let root = dir.path().to_owned();
        let path: LogPathFn = Arc::new(move |_, container| Some(log_of(&root, &container.name)));
        let config = Config {
            policy: RotationPolicy { max_size: 100, max_files: 3 },
            workers: 1,
            interval: INTERVAL,
        };
        let client = runtime.client(Duration::from_secs(2));
        let rotation = Rotation::new(client, cache, path, config);
        let shutdown = CancellationToken::new();
        let bed = Self {
            dir,
            runtime,
            pods,
            task: tokio::spawn(rotation.run(shutdown.clone())),
            shutdown,
        };
        let root = bed.dir.path().to_owned();
        bed.runtime.script.on("ReopenContainerLog", move |request| {
            make_log(&log_of(&root, &asked_for(request)));
            Reply::message(&v1::ReopenContainerLogResponse {})
        });
        bed
    }

    fn log(&self, name: &str) -> PathBuf {
        log_of(self.dir.path(), name)
    }

    /// The runtime has a container, whose id is its name.
    fn container(&self, name: &str, state: ContainerState) {
        let status = ContainerStatus {
            id: ContainerId::from(name),
            name: name.into(),
            state,
            ..ContainerStatus::default()
        };
        let pod_ref = PodRef { uid: "u".into(), name: "p".into(), namespace: "n".into() };
        let item = ItemId::Container(status.id.clone());
        let seq = self.pods.next_seq();
        self.pods.apply(&pod_ref, &item, seq, Seen::Container(status));
    }

    fn running(&self, name: &str) {
        self.container(name, ContainerState::Running);
    }

    /// What the container writes.
    fn write(&self, name: &str, text: &str) {
        let mut options = OpenOptions::new();
        let log = options.create(true).append(true).open(self.log(name));
        log.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// The names of a log's rotated files without what is before the stamp, oldest first.
    fn rotated(&self, name: &str) -> Vec<String> {
        let files = files::rotated(&self.log(name)).unwrap();
        let mut names: Vec<String> = files.into_iter().map(|file| file.name).collect();
        names.sort();
        names
    }

    async fn rotated_when(&self, name: &str, what: &str, holds: impl Fn(&[String]) -> bool) {
        until(what, || holds(&self.rotated(name))).await;
    }

    fn calls(&self, method: &str) -> usize {
        self.runtime.script.calls(method)
    }

    async fn some_looks(&self) {
        tokio::time::sleep(INTERVAL * 5).await;
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn log_of(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}.log"))
}

fn asked_for(request: &[u8]) -> String {
    v1::ReopenContainerLogRequest::decode(request).unwrap().container_id
}

fn make_log(log: &Path) {
    let mut options = OpenOptions::new();
    options.create(true).append(true).open(log).unwrap();
}

fn unpacked(file: &Path) -> String {
    let mut text = String::new();
    let file = fs::File::open(file).unwrap();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn a_log_over_the_size_is_rotated_and_older_files_are_compressed_and_counted() {
    let bed = Bed::new();
    bed.running("c");
    for round in 0..5 {
        bed.write("c", &format!("{round}").repeat(100));
        until("it is rotated", || bed.calls("ReopenContainerLog") == round + 1).await;
        let done = |names: &[String]| {
            names.len() == round.min(1) + 1
                && names.iter().filter(|name| name.ends_with(".gz")).count() == round.min(1)
        };
        bed.rotated_when("c", "the one before is compressed", done).await;
        assert_eq!(fs::metadata(bed.log("c")).unwrap().len(), 0);
    }
    let names = bed.rotated("c");
    assert_eq!(unpacked(&bed.dir.path().join(&names[0])), "3".repeat(100));
    let newest = fs::read_to_string(bed.dir.path().join(&names[1])).unwrap();
    assert_eq!(newest, "4".repeat(100));
    bed.stop().await;
}

#[tokio::test]
async fn logs_that_are_small_enough_or_finished_are_left_alone_and_cost_no_call() {
    let bed = Bed::new();
    bed.running("small");
    bed.write("small", &"x".repeat(99));
    bed.container("ended", ContainerState::Exited);
    bed.write("ended", &"x".repeat(500));
    bed.container("created", ContainerState::Created);
    bed.some_looks().await;
    assert_eq!(bed.calls("ReopenContainerLog"), 0);
    assert_eq!(bed.calls("ContainerStatus"), 0);
    assert_eq!(bed.rotated("small").len() + bed.rotated("ended").len(), 0);
    bed.stop().await;
}

#[tokio::test]
async fn a_log_that_cannot_be_reopened_is_put_back_and_tried_again() {
    let bed = Bed::new();
    let script = &bed.runtime.script;
    script.on("ReopenContainerLog", |_| Reply::Fail(Code::Unknown, "no"));
    bed.write("c", &"x".repeat(200));
    let inode = fs::metadata(bed.log("c")).unwrap().ino();
    bed.running("c");
    until("it was tried twice", || bed.calls("ReopenContainerLog") >= 2).await;
    until("it was put back", || bed.log("c").exists()).await;
    let root = bed.dir.path().to_owned();
    script.on("ReopenContainerLog", move |request| {
        make_log(&log_of(&root, &asked_for(request)));
        Reply::message(&v1::ReopenContainerLogResponse {})
    });
    let reopened = |names: &[String]| names.len() == 1 && bed.log("c").exists();
    bed.rotated_when("c", "it is rotated in the end", reopened).await;
    let rotated = bed.dir.path().join(&bed.rotated("c")[0]);
    assert_eq!(fs::metadata(&rotated).unwrap().ino(), inode);
    assert_eq!(fs::read_to_string(rotated).unwrap(), "x".repeat(200));
    bed.stop().await;
}

#[tokio::test]
async fn a_rotation_that_is_undone_costs_no_older_file() {
    let bed = Bed::new();
    bed.runtime
        .script
        .on("ReopenContainerLog", |_| Reply::Fail(Code::Unknown, "it has just ended"));
    let older = ["c.log.20260101-000001.gz", "c.log.20260101-000002"];
    for name in older {
        fs::write(bed.dir.path().join(name), "older").unwrap();
    }
    bed.write("c", &"x".repeat(200));
    bed.running("c");
    until("it was tried twice", || bed.calls("ReopenContainerLog") >= 2).await;
    let undone = |names: &[String]| names == older && bed.log("c").exists();
    bed.rotated_when("c", "it was put back", undone).await;
    bed.stop().await;
}

#[tokio::test]
async fn a_log_that_was_made_though_the_runtime_reports_a_failure_is_never_replaced() {
    let bed = Bed::new();
    let root = bed.dir.path().to_owned();
    bed.runtime.script.on("ReopenContainerLog", move |request| {
        let log = log_of(&root, &asked_for(request));
        make_log(&log);
        fs::write(log, "new").unwrap();
        Reply::Fail(Code::DeadlineExceeded, "late")
    });
    bed.write("c", &"x".repeat(200));
    bed.running("c");
    bed.rotated_when("c", "it is rotated", |names| names.len() == 1).await;
    until("there is a new one", || bed.log("c").exists()).await;
    bed.some_looks().await;
    assert_eq!(fs::read_to_string(bed.log("c")).unwrap(), "new");
    assert_eq!(bed.rotated("c").len(), 1);
    bed.stop().await;
}

#[tokio::test]
async fn a_missing_log_is_reopened_where_the_runtime_says_it_is() {
    let bed = Bed::new();
    let root = bed.dir.path().to_owned();
    bed.runtime.script.on("ContainerStatus", move |request| {
        let id = v1::ContainerStatusRequest::decode(request).unwrap().container_id;
        let directory = if id == "moved" { root.join("old") } else { root.clone() };
        let status = v1::ContainerStatus {
            log_path: log_of(&directory, &id).display().to_string(),
            metadata: Some(v1::ContainerMetadata::default()),
            state: v1::ContainerState::ContainerRunning.into(),
            id,
            ..Default::default()
        };
        Reply::message(&v1::ContainerStatusResponse { status: Some(status), ..Default::default() })
    });
    let old = bed.dir.path().join("old");
    fs::create_dir(&old).unwrap();
    fs::write(log_of(&old, "moved"), "x".repeat(50)).unwrap();
    bed.running("taken");
    bed.running("moved");
    until("it is there again", || bed.log("taken").exists()).await;
    until("both were asked for", || bed.calls("ContainerStatus") == 2).await;
    bed.some_looks().await;
    assert_eq!(bed.calls("ReopenContainerLog"), 1, "the other one is not missing");
    assert_eq!(bed.calls("ContainerStatus"), 2, "that is not asked again");
    fs::write(log_of(&old, "moved"), "x".repeat(200)).unwrap();
    until("it is rotated where it is", || {
        files::rotated(&log_of(&old, "moved")).unwrap().len() == 1
    })
    .await;
    bed.stop().await;
}

#[tokio::test]
async fn a_log_that_stays_missing_is_asked_for_less_and_less() {
    let bed = Bed::new();
    bed.runtime.script.on("ContainerStatus", |_| Reply::Fail(Code::Unavailable, "no"));
    bed.running("c");
    let begin = clock::instant();
    tokio::time::sleep(INTERVAL * 20).await;
    until("it is asked for again", || bed.calls("ContainerStatus") >= 2).await;
    let calls = bed.calls("ContainerStatus");
    let looks = clock::since(begin).as_millis() / INTERVAL.as_millis();
    assert!(calls as u32 <= looks.ilog2() + 2, "{calls} of {looks}");
    bed.stop().await;
}

#[tokio::test]
async fn what_an_interrupted_rotation_left_is_made_up_for() {
    let bed = Bed::new();
    let beside = |name: &str| bed.dir.path().join(name);
    fs::write(beside("c.log.20260101-000001"), "one").unwrap();
    fs::write(beside("c.log.20260101-000002.tmp"), "half").unwrap();
    fs::write(beside("c.log.bak"), "the user's").unwrap();
    bed.write("c", &"x".repeat(200));
    bed.running("c");
    bed.rotated_when("c", "all is well", |names| {
        names.len() == 2 && names[0] == "c.log.20260101-000001.gz"
    })
    .await;
    assert_eq!(unpacked(&beside("c.log.20260101-000001.gz")), "one");
    assert!(beside("c.log.bak").exists());
    bed.stop().await;
}

#[tokio::test]
async fn a_rotation_that_has_begun_ends_before_the_kubelet_does() {
    let bed = Bed::new();
    bed.runtime.script.on("ReopenContainerLog", |_| Reply::Hang);
    bed.write("c", &"x".repeat(200));
    bed.running("c");
    until("it is under way", || bed.calls("ReopenContainerLog") == 1).await;
    assert!(!bed.log("c").exists());
    let log = bed.log("c");
    bed.shutdown.cancel();
    bed.task.await.unwrap().unwrap();
    assert_eq!(fs::read_to_string(log).unwrap(), "x".repeat(200));
}

#[test]
fn a_compressed_file_is_whole_and_keeps_mode_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.log.20260101-000001");
    let text = "line\n".repeat(200_000);
    fs::write(&file, &text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    compress_file(&file, &CancellationToken::new()).unwrap();
    let compressed = dir.path().join("c.log.20260101-000001.gz");
    let metadata = fs::metadata(&compressed).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.modified().unwrap(), written);
    assert_eq!(unpacked(&compressed), text);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    compress_file(&file, &CancellationToken::new()).expect("nothing to do any more");
}

#[test]
fn compressing_that_is_cut_short_leaves_the_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.log.20260101-000001");
    fs::write(&file, "text").unwrap();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    compress_file(&file, &shutdown).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_log_is_put_back_only_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let (rotated, log) = (dir.path().join("r"), dir.path().join("l"));
    fs::write(&rotated, "old").unwrap();
    assert!(put_back(&rotated, &log).unwrap());
    fs::write(&rotated, "older").unwrap();
    assert!(!put_back(&rotated, &log).unwrap());
    assert_eq!(fs::read_to_string(&log).unwrap(), "old");
    assert_eq!(fs::read_to_string(&rotated).unwrap(), "older");
    fs::remove_file(&rotated).unwrap();
    fs::remove_file(&log).unwrap();
    assert!(put_back(&rotated, &log).is_err());
}
