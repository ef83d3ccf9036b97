use super::*;
use crate::base::spawn_blocking;
use crate::model::PodExt;
use crate::pods::pod_config::decode_file;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: \"{image}\"\n"
    )
}

fn scanner(directory: &Path) -> Scanner {
    let source = PodSource::File;
    let config_maps_and_secrets = LocalConfigMapsAndSecrets::None;
    Scanner::new(source, directory.into(), "n".into(), config_maps_and_secrets)
}

struct Fixture {
    lists: mpsc::Receiver<SourceList>,
    missing: MissingPath,
    recorder: EventRecorder,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Fixture {
    /// A source that can only learn of changes from events.
    fn start(path: &Path) -> Self {
        Self::with_period(path, Duration::from_secs(3600))
    }

    fn with_period(path: &Path, check_period: Duration) -> Self {
        let (sender, lists) = mpsc::channel(1);
        let (missing, recorder) = (MissingPath::default(), EventRecorder::new());
        let shutdown = CancellationToken::new();
        let config = FileConfig {
            source: PodSource::File,
            path: path.into(),
            check_period,
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        };
        let task =
            run(config, "n".into(), sender, missing.clone(), recorder.clone(), shutdown.clone());
        Self { lists, missing, recorder, shutdown, task: tokio::spawn(task) }
    }

    /// The next lists until one holds exactly these `name=image` pods, in order.
    async fn until(&mut self, wanted: &[&str]) {
        let mut last = Vec::new();
        let found = async {
            while let Some(list) = self.lists.recv().await {
                last = list.pods.iter().map(|pod| name_and_image(pod)).collect();
                if last == wanted {
                    return;
                }
            }
        };
        if timeout(TIMEOUT, found).await.is_err() {
            panic!("wanted {wanted:?}, last {last:?}");
        }
    }

    async fn until_reported(&self, text: &str) {
        let found = async {
            while !self.reported().iter().any(|message| message.contains(text)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(TIMEOUT, found).await.is_err() {
            panic!("wanted {text:?} in {:?}", self.reported());
        }
    }

    fn reported(&self) -> Vec<String> {
        let times = |e: &std::sync::Arc<crate::state::events::EventRecord>| {
            format!("{} ({})", e.message, e.count)
        };
        self.recorder.recent().iter().map(times).collect()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }
}

fn name_and_image(pod: &Pod) -> String {
    let image = pod.containers()[0].image.as_deref().unwrap_or_default();
    format!("{}={image}", pod.name().trim_end_matches("-n"))
}

#[tokio::test]
async fn files_come_change_and_go_within_an_event() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("b.yaml"), manifest("b", "1")).unwrap();
    let mut source = Fixture::start(dir.path());
    source.until(&["b=1"]).await;
    fs::write(dir.path().join("a.yaml"), manifest("a", "1")).unwrap();
    source.until(&["a=1", "b=1"]).await;
    fs::write(dir.path().join("b.yaml"), manifest("b", "2")).unwrap();
    source.until(&["a=1", "b=2"]).await;
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    source.until(&["b=2"]).await;
    fs::write(dir.path().join(".tmp"), manifest("b", "3")).unwrap();
    fs::rename(dir.path().join(".tmp"), dir.path().join("b.yaml")).unwrap();
    source.until(&["b=3"]).await;
    source.stop().await;
}

#[tokio::test]
async fn a_removed_and_restored_file_restarts_its_pod() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, manifest("a", "1")).unwrap();
    fs::write(dir.path().join("b.yaml"), manifest("b", "1")).unwrap();
    let mut source = Fixture::start(dir.path());
    source.until(&["a=1", "b=1"]).await;
    fs::remove_file(&path).unwrap();
    fs::write(&path, manifest("a", "1")).unwrap();
    source.until(&["b=1"]).await;
    source.until(&["a=1", "b=1"]).await;
    // What comes back broken does not end the pod.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "kind: Pod\nspec: [").unwrap();
    source.until_reported("the last valid version is kept").await;
    assert!(source.lists.try_recv().is_err());
    fs::write(&path, manifest("a", "1")).unwrap();
    // Replaced in one step, the file was never gone.
    let next = dir.path().join(".a.yaml");
    fs::write(&next, manifest("a", "1")).unwrap();
    fs::rename(&next, &path).unwrap();
    fs::write(dir.path().join("c.yaml"), manifest("c", "1")).unwrap();
    let list = timeout(TIMEOUT, source.lists.recv()).await.unwrap().unwrap();
    assert_eq!(list.pods.len(), 3);
    source.stop().await;
}

#[tokio::test]
async fn a_missing_path_is_an_empty_list_and_is_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("etc/manifests");
    let mut source = Fixture::start(&path);
    source.until(&[]).await;
    let warning = source.missing.warning().unwrap();
    assert!(
        warning.contains(path.to_str().unwrap()) && warning.contains("does not exist"),
        "{warning}"
    );
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("a.yaml"), manifest("a", "1")).unwrap();
    source.until(&["a=1"]).await;
    assert_eq!(source.missing.warning(), None);
    fs::remove_dir_all(dir.path().join("etc")).unwrap();
    source.until(&[]).await;
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("a.yaml"), manifest("a", "2")).unwrap();
    source.until(&["a=2"]).await;
    source.stop().await;
}

#[tokio::test]
async fn a_single_file_is_followed_over_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod.json");
    let mut source = Fixture::start(&path);
    source.until(&[]).await;
    fs::write(&path, manifest("a", "1")).unwrap();
    source.until(&["a=1"]).await;
    fs::write(dir.path().join("new"), manifest("a", "2")).unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    source.until(&["a=2"]).await;
    source.stop().await;
}

#[tokio::test]
async fn a_file_that_turns_bad_keeps_its_pod_and_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, manifest("a", "1")).unwrap();
    let mut source = Fixture::start(dir.path());
    source.until(&["a=1"]).await;
    fs::write(&path, format!("{}  hostNetwork: maybe\n", manifest("a", "2"))).unwrap();
    let expected = "a.yaml: line 9, column 16: spec.hostNetwork: expected a boolean, found string; the last valid version is kept (1)";
    source.until_reported(expected).await;
    // Another file's change causes further scans; the bad file is not reported again.
    fs::write(dir.path().join("b.yaml"), manifest("b", "1")).unwrap();
    source.until(&["a=1", "b=1"]).await;
    fs::write(&path, manifest("a", "2")).unwrap();
    source.until(&["a=2", "b=1"]).await;
    assert_eq!(source.reported().len(), 1, "{:?}", source.reported());
    source.stop().await;
}

#[tokio::test]
async fn bad_files_do_not_stand_in_the_way_of_good_ones() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("a.yaml", "not: a pod");
    write("b.yaml", &manifest("same", "1"));
    write("c.yaml", &manifest("same", "2"));
    write("d.yaml", &format!("#{}\n{}", "x".repeat(10 << 20), manifest("d", "1")));
    write(".hidden.yaml", &manifest("hidden", "1"));
    write("e.yaml", &manifest("good", "1"));
    write("f.yaml", "");
    fs::create_dir(dir.path().join("x.yaml")).unwrap();
    let status = std::process::Command::new("mkfifo").arg(dir.path().join("y.yaml")).status();
    assert!(status.unwrap().success());
    symlink("nowhere", dir.path().join("z.yaml")).unwrap();
    let mut source = Fixture::start(dir.path());
    source.until(&["same=1", "good=1"]).await;
    for text in [
        "a.yaml: apiVersion: Required value",
        "c.yaml: pod default/same-n is already in",
        "d.yaml: larger than 10 MiB",
        "f.yaml: no object in the manifest",
        "x.yaml: is a directory",
        "y.yaml: is not a regular file",
        "z.yaml: does not exist or is a dangling symbolic link",
    ] {
        source.until_reported(text).await;
    }
    source.stop().await;
}

#[tokio::test]
async fn a_linked_manifest_is_followed_to_where_it_really_is() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map");
    let manifests = dir.path().join("manifests");
    for version in ["..v1", "..v2"] {
        fs::create_dir_all(map.join(version)).unwrap();
        fs::write(map.join(version).join("pod.yaml"), manifest("a", version.trim_matches('.')))
            .unwrap();
    }
    symlink("..v1", map.join("..data")).unwrap();
    symlink("..data/pod.yaml", map.join("pod.yaml")).unwrap();
    fs::create_dir(&manifests).unwrap();
    symlink(map.join("pod.yaml"), manifests.join("pod.yaml")).unwrap();
    let mut source = Fixture::start(&manifests);
    source.until(&["a=v1"]).await;
    fs::write(map.join("..v1/pod.yaml"), manifest("a", "v1b")).unwrap();
    source.until(&["a=v1b"]).await;
    symlink("..v2", map.join("..tmp")).unwrap();
    fs::rename(map.join("..tmp"), map.join("..data")).unwrap();
    source.until(&["a=v2"]).await;
    source.stop().await;
}

#[tokio::test]
async fn a_linked_directory_is_followed_when_the_link_changes() {
    let dir = tempfile::tempdir().unwrap();
    for version in ["1", "2"] {
        fs::create_dir(dir.path().join(version)).unwrap();
        fs::write(dir.path().join(version).join("a.yaml"), manifest("a", version)).unwrap();
    }
    let path = dir.path().join("manifests");
    symlink("1", &path).unwrap();
    let mut source = Fixture::start(&path);
    source.until(&["a=1"]).await;
    symlink("2", dir.path().join("next")).unwrap();
    fs::rename(dir.path().join("next"), &path).unwrap();
    source.until(&["a=2"]).await;
    source.stop().await;
}

#[tokio::test]
async fn a_storm_of_changes_ends_with_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, manifest("a", "0")).unwrap();
    let mut source = Fixture::start(dir.path());
    source.until(&["a=0"]).await;
    let writer = spawn_blocking(move || {
        // Same size every time, many within one tick of the clock.
        for image in 1000..3000 {
            fs::write(&path, manifest("a", &image.to_string())).unwrap();
        }
    });
    source.until(&["a=2999"]).await;
    writer.await.unwrap();
    source.stop().await;
}

#[tokio::test]
async fn a_path_that_cannot_be_listed_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifests");
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::write(dir.path().join("real/a.yaml"), manifest("a", "1")).unwrap();
    symlink("real", &path).unwrap();
    let mut source = Fixture::start(&path);
    source.until(&["a=1"]).await;
    // A link to itself can be neither listed nor said to be missing.
    symlink("manifests", dir.path().join("circle")).unwrap();
    fs::rename(dir.path().join("circle"), &path).unwrap();
    source.until_reported("keeping the current static pods").await;
    assert!(source.lists.try_recv().is_err());
    symlink("real", dir.path().join("back")).unwrap();
    fs::write(dir.path().join("real/a.yaml"), manifest("a", "2")).unwrap();
    fs::rename(dir.path().join("back"), &path).unwrap();
    source.until(&["a=2"]).await;
    source.stop().await;
}

#[tokio::test]
async fn the_periodic_scan_finds_changes_without_an_event() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), manifest("a", "1")).unwrap();
    let mut scanner = scanner(dir.path());
    assert_eq!(scanner.scan(&BTreeSet::new()).pods.unwrap().len(), 1);
    fs::write(dir.path().join("b.yaml"), manifest("b", "1")).unwrap();
    assert_eq!(scanner.scan(&BTreeSet::new()).pods.unwrap().len(), 2);
    let mut source = Fixture::with_period(dir.path(), Duration::from_millis(20));
    source.until(&["a=1", "b=1"]).await;
    source.stop().await;
}

#[test]
fn a_scan_of_many_unchanged_files_reads_none_of_them() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..2000 {
        fs::write(dir.path().join(format!("{i:05}.yaml")), manifest(&format!("p{i}"), "1"))
            .unwrap();
    }
    let mut scanner = scanner(dir.path());
    let first = scanner.scan(&BTreeSet::new()).pods.unwrap();
    assert_eq!(first.len(), 2000);
    while !scanner.scan(&BTreeSet::new()).reread.is_empty() {
        std::thread::yield_now();
    }
    let before = bytes_read();
    let again = scanner.scan(&BTreeSet::new());
    assert!(bytes_read() - before < 100 * 1024, "2000 manifests have 200 KB");
    assert!(again.notices.is_empty() && again.reread.is_empty());
    assert!(is_same_list(&first, &again.pods.unwrap()), "the same pods, not copies");
}

/// Bytes that this thread has read so far.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_list_lacks_the_pods_of_files_that_were_never_seen_good() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("directory.yaml")).unwrap();
    fs::write(dir.path().join("good.yaml"), manifest("a", "1")).unwrap();
    let mut scanner = scanner(dir.path());
    let complete = Completeness::Complete;
    let found = scanner.scan(&BTreeSet::new()).completeness;
    assert_eq!(found, complete, "a directory is not a manifest");
    fs::write(dir.path().join("good.yaml"), "{ broken").unwrap();
    let found = scanner.scan(&BTreeSet::new()).completeness;
    assert_eq!(found, complete, "the last good version is known");
    fs::write(dir.path().join("never.yaml"), "{ broken").unwrap();
    let never = dir.path().join("never.yaml").display().to_string();
    let found = scanner.scan(&BTreeSet::new()).completeness;
    assert_eq!(found, BTreeSet::from([never]).into());
    fs::write(dir.path().join("never.yaml"), manifest("b", "1")).unwrap();
    assert_eq!(scanner.scan(&BTreeSet::new()).completeness, complete);
}

#[test]
fn a_scan_of_entries_reads_those_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, image: &str| {
        fs::write(dir.path().join(format!("{name}.yaml")), manifest(name, image)).unwrap();
    };
    let mut scanner = scanner(dir.path());
    let list = |scan: Scan| -> Vec<String> {
        scan.pods.unwrap().iter().map(|p| name_and_image(p)).collect()
    };
    let names = |names: &[&str]| names.iter().map(std::ffi::OsString::from).collect();
    assert!(scanner.scan_entries(&names(&["a.yaml"]), &BTreeSet::new()).is_none());
    write("a", "1");
    write("b", "1");
    assert_eq!(list(scanner.scan(&BTreeSet::new())), ["a=1", "b=1"]);
    write("a", "2");
    write("b", "2");
    write("c", "2");
    fs::write(dir.path().join(".d.yaml"), manifest("d", "2")).unwrap();
    let scan = scanner.scan_entries(&names(&["b.yaml", "c.yaml", ".d.yaml"]), &BTreeSet::new());
    assert_eq!(list(scan.unwrap()), ["a=1", "b=2", "c=2"]);
    fs::remove_file(dir.path().join("b.yaml")).unwrap();
    let scan = scanner.scan_entries(&names(&["b.yaml", "unheard-of"]), &BTreeSet::new());
    assert_eq!(list(scan.unwrap()), ["a=1", "c=2"]);
    assert_eq!(list(scanner.scan(&BTreeSet::new())), ["a=2", "c=2"]);
    symlink(dir.path().join("c.yaml"), dir.path().join("l.yaml")).unwrap();
    assert!(scanner.scan_entries(&names(&["l.yaml"]), &BTreeSet::new()).is_none());
    assert_eq!(list(scanner.scan(&BTreeSet::new())), ["a=2", "c=2"]);
    assert!(scanner.scan_entries(&names(&["c.yaml"]), &BTreeSet::new()).is_none());
}

#[tokio::test]
async fn a_manifest_whose_reading_panics_is_refused_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.yaml"), manifest("bad", "panics")).unwrap();
    fs::write(dir.path().join("good.yaml"), manifest("good", "1")).unwrap();
    let mut scanner = scanner(dir.path());
    scanner.decoder = |bytes, origin, now| {
        let panics = bytes.windows(6).any(|part| part == b"panics");
        assert!(!panics, "on purpose");
        decode_file(bytes, origin, now)
    };
    let before = panics();
    scanner.scan(&BTreeSet::new());
    assert!(panics() > before, "it is counted");
    // What is wrong with a file is reported once the file is not changed any more.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let scan = scanner.scan(&BTreeSet::new());
    let names: Vec<_> = scan.pods.unwrap().iter().map(|pod| pod.full_name().to_string()).collect();
    assert_eq!(names, ["good-n_default"]);
    let [Notice::Unusable(text)] = &scan.notices[..] else { panic!("{:?}", scan.notices) };
    assert!(
        text.contains("bad.yaml") && text.contains("reading the manifest panicked: on purpose"),
        "{text}"
    );
}

fn panics() -> u64 {
    let manifests = crate::base::panics::counts().find(|(place, _)| *place == "manifest");
    manifests.unwrap().1
}
