//! Logs of containers that write much.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures::StreamExt as _;
use kubelet::runtime::logs::{LogOptions, LogStream, Logs};
use tokio::sync::oneshot;

use crate::node::{Node, WAIT_LIMIT, manifest, phase};
use crate::support::wait::{holds, wait_for};

const LIMITS: &str =
    "containerLogMaxSize: 64Ki\ncontainerLogMaxFiles: 3\ncontainerLogMonitorInterval: 3s\n";

/// Lines that the container writes, and every how many there is one that the runtime has to split.
const LINES: usize = 20_000;
const LONG: usize = 1000;
const LONG_LENGTH: usize = 40_000;

/// Some megabytes in some seconds, with pauses, so that there is something to rotate several times; both
/// streams, and some lines are very long. The runtime takes each stream by itself: nothing is promised of
/// the order between them, and a line of one may stand between the parts of a long line of the other.
const CHATTER: &str = r#"
    y=$(head -c 40000 /dev/zero | tr '\0' y); i=0
    while [ $i -lt 20000 ]; do
      case $i in
      *000) echo "$i $y" ;;
      *00) usleep 80000; echo "$i of the chatter" >&2 ;;
      *) echo "$i of the chatter" ;;
      esac
      i=$((i+1))
    done
"#;

fn options(follow: bool) -> LogOptions {
    LogOptions { follow, ..LogOptions::default() }
}

/// All that a stream gives.
async fn text(stream: LogStream) -> String {
    let pieces: Vec<_> = stream.map(Result::unwrap).collect().await;
    String::from_utf8(pieces.concat()).unwrap()
}

/// The numbers of the lines, each checked for being whole.
fn numbers(text: &str) -> Vec<usize> {
    let number = |line: &str| {
        let (number, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let number: usize = number.parse().unwrap_or_else(|_| panic!("{line:?}"));
        match number % LONG {
            0 if number > 0 => assert_eq!(rest.len(), LONG_LENGTH, "line {number}"),
            _ => assert_eq!(rest, "of the chatter", "line {number}"),
        }
        number
    };
    text.lines().map(number).collect()
}

/// What each of the streams wrote, from a text with all that both of them wrote.
fn apart(text: &str) -> (String, Vec<usize>) {
    let on_stderr = |number: &usize| number.is_multiple_of(100) && !number.is_multiple_of(LONG);
    let on_stderr: Vec<usize> = (0..LINES).filter(on_stderr).collect();
    let (mut stdout, mut rest) = (String::new(), text);
    for number in &on_stderr {
        let line = format!("{number} of the chatter\n");
        let (before, after) = rest
            .split_once(&line)
            .unwrap_or_else(|| panic!("line {number} of stderr is lost, or not in its place"));
        stdout += before;
        rest = after;
    }
    (stdout + rest, on_stderr)
}

/// All complete lines of a log file, as the runtime marks them.
fn complete_lines(text: &str) -> usize {
    let tag = |line: &str| line.split(' ').nth(2).map(str::to_owned);
    text.lines().filter(|line| tag(line).as_deref() == Some("F")).count()
}

/// The directory with the logs of `main` of a pod.
async fn log_directory(node: &Node, pod: &str) -> PathBuf {
    let logs = node.kubelet.settings().dir.join("logs");
    let name = format!("default_{pod}-node1_");
    wait_for("there is a log", WAIT_LIMIT, || async {
        let entries = std::fs::read_dir(&logs).map_err(|error| error.to_string())?;
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let of_pod = |path: &PathBuf| path.to_string_lossy().contains(&name);
        let directory = paths.find(of_pod).ok_or("no pod directory")?.join("main");
        holds(directory.join("0.log").exists(), "no log")?;
        Ok(directory)
    })
    .await
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub async fn a_chatty_container_is_rotated_and_no_line_is_lost() {
    let node = Node::start_with(LIMITS).await;
    let script = serde_json::to_string(CHATTER).unwrap();
    let spec = format!(
        "restartPolicy: Never\ncontainers:\n- {{ name: main, image: \"localhost/busybox:dev\", command: [sh, -c, {script}] }}"
    );
    node.put("chat", &manifest("chat", &spec));
    let directory = log_directory(&node, "chat").await;
    let (end, ended) = oneshot::channel::<()>();
    let ended = async {
        let _ = ended.await;
    };
    let logs = Logs::new();
    let stream = logs.open(directory.join("0.log"), options(true), ended);
    let following = tokio::spawn(text(stream.await.unwrap()));

    let mut most = 0;
    let mut rotations = std::collections::HashSet::new();
    wait_for("it has written all", Duration::from_secs(300), || {
        let names = names(&directory);
        // For a moment there may be a file that is just being compressed.
        let whole = |name: &&String| !name.ends_with(".tmp");
        most = most.max(names.iter().filter(whole).count());
        let stamps = names.iter().filter_map(|name| name.get("0.log.".len()..));
        rotations.extend(stamps.filter_map(|stamp| stamp.get(..15).map(str::to_owned)));
        let ended = node.kubelet.pod("default", "chat-node1");
        async {
            let pod = ended.await.ok_or("no pod")?;
            holds(phase(&pod) == "Succeeded", phase(&pod))
        }
    })
    .await;
    end.send(()).unwrap();
    let followed = tokio::time::timeout(WAIT_LIMIT, following).await;
    let followed = followed.expect("following ends with the container").unwrap();

    let (stdout, on_stderr) = apart(&followed);
    let on_stdout: Vec<usize> = (0..LINES).filter(|n| !on_stderr.contains(n)).collect();
    assert!(numbers(&stdout) == on_stdout, "each line comes once and in the order of its stream");
    assert!(rotations.len() >= 3, "{rotations:?}");
    // In the moment after a file was compressed, it is there twice.
    assert!(most <= 4, "{most} files at once");
    // The last rotation may still be under way.
    let names = wait_for("three files, one of them packed", WAIT_LIMIT, || {
        let names = names(&directory);
        let packed: Vec<bool> = names.iter().map(|name| name.ends_with(".gz")).collect();
        async move { holds(packed == [false, true, false], format!("{names:?}")).map(|()| names) }
    })
    .await;
    let zcat = Command::new("zcat").arg(directory.join(&names[1])).output().unwrap();
    assert!(zcat.status.success() && zcat.stdout.len() >= 64 * 1024);
    let packed = String::from_utf8(zcat.stdout).unwrap();
    let tagged = |line: &str| line.contains(" stdout ") || line.contains(" stderr ");
    assert!(packed.lines().all(tagged));

    // What is left of the log is read as one.
    let read = logs.open(directory.join("0.log"), options(false), async {});
    let read = text(read.await.unwrap()).await;
    let plain = |name: &String| std::fs::read_to_string(directory.join(name)).unwrap();
    let left = [packed, plain(&names[2]), plain(&names[0])];
    let left: usize = left.iter().map(|text| complete_lines(text)).sum();
    assert_eq!(read.matches('\n').count(), left);
    assert!(followed.ends_with(&read));
}

pub async fn a_log_that_was_moved_away_is_reopened_and_followed_on() {
    let node = Node::start_with(LIMITS).await;
    let script = "i=0; while true; do echo $i of the chatter; i=$((i+1)); usleep 10000; done";
    let spec = format!(
        "containers:\n- {{ name: main, image: \"localhost/busybox:dev\", command: [sh, -c, \"{script}\"] }}"
    );
    node.put("moved", &manifest("moved", &spec));
    let directory = log_directory(&node, "moved").await;
    let log = directory.join("0.log");
    let logs = Logs::new();
    let stream = logs.open(log.clone(), options(true), std::future::pending());
    let mut stream = stream.await.unwrap();
    // As a kubelet leaves it that dies between renaming the log and having it reopened.
    std::fs::rename(&log, directory.join("0.log.20260102-030405")).unwrap();
    wait_for("there is a log again", WAIT_LIMIT, || async {
        holds(log.exists(), format!("{:?}", names(&directory)))
    })
    .await;
    let mut followed = String::new();
    let going_on = async {
        let lines_of_new = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let last = text.trim_end().lines().last().map(str::to_owned);
            last.and_then(|line| line.split(' ').nth(3).map(str::to_owned))
        };
        let last = loop {
            match lines_of_new() {
                Some(last) => break last,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let until = format!("{last} of the chatter\n");
        while !followed.contains(&format!("\n{until}")) {
            followed += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
        }
    };
    let gone_on = tokio::time::timeout(WAIT_LIMIT, going_on).await;
    gone_on.expect("the new log is followed");
    let found: Vec<usize> =
        followed.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(found == (0..found.len()).collect::<Vec<_>>(), "{found:?}");
}
