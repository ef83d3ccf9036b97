//! `/containerLogs`, from files that the fake runtime writes.

use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Code;

use crate::node::{Node, WAIT_LIMIT, waits_for};
use crate::pods::{container, pod, simple, with_spec};
use crate::support::fake_runtime::{Behaviour, Pull};
use crate::support::raw::{TIMEOUT, dechunked, exchange, read_head, read_rest, send, take_chunks};
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

const WEB: &str = "/containerLogs/default/web-node1/main";

async fn node_with_web() -> (Node, PathBuf) {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    let socket = node.path("root/kubelet.sock");
    (node, socket)
}

fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\nHost: node")
}

async fn get(socket: &Path, target: &str) -> (u16, String) {
    let (head, body) = exchange(socket, &request(target)).await;
    (head.status, body)
}

/// One who follows a log.
struct Follower {
    stream: UnixStream,
    /// What came of a chunk that is not whole yet.
    raw: Vec<u8>,
    /// What came before it.
    text: Vec<u8>,
}

impl Follower {
    async fn begin(socket: &Path, target: &str) -> Follower {
        let mut stream = send(socket, &request(target)).await;
        let head = read_head(&mut stream).await;
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.get("transfer-encoding"), Some("chunked"));
        assert_eq!(head.get("content-type"), Some("text/plain; charset=utf-8"));
        let (raw, text) = (Vec::new(), Vec::new());
        Follower { stream, raw, text }
    }

    /// Waits for a line.
    async fn wait_for(&mut self, line: &str) {
        let line = format!("{line}\n");
        let read = async {
            // What has been scanned is not scanned again: there may be megabytes of it.
            let mut from = 0;
            while !self.text[from..].windows(line.len()).any(|part| part == line.as_bytes()) {
                from = self.text.len().saturating_sub(line.len());
                let read = self.stream.read_buf(&mut self.raw).await.unwrap();
                assert!(read > 0, "it ended without {line}");
                take_chunks(&mut self.raw, &mut self.text);
            }
        };
        timeout(TIMEOUT, read).await.unwrap_or_else(|_| panic!("{line} does not come"));
    }

    /// All of it, to its end.
    async fn rest(mut self) -> String {
        self.raw.extend(read_rest(&mut self.stream).await);
        self.text.extend(dechunked(&self.raw));
        String::from_utf8(self.text).unwrap()
    }
}

#[tokio::test]
async fn a_log_is_read_as_asked_for() {
    let (node, socket) = node_with_web().await;
    for line in ["one", "two", "three"] {
        node.fake.log("main", "stdout", line);
    }
    node.fake.log("main", "stderr", "oops");
    let read = |query: &str| {
        let (socket, target) = (socket.clone(), format!("{WEB}?{query}"));
        async move { get(&socket, &target).await }
    };
    assert_eq!(read("").await, (200, "one\ntwo\nthree\noops\n".into()));
    assert_eq!(read("tailLines=2").await.1, "three\noops\n");
    assert_eq!(read("tailLines=0").await.1, "");
    assert_eq!(read("limitBytes=5").await.1, "one\nt");
    assert_eq!(read("sinceSeconds=3600").await.1, "one\ntwo\nthree\noops\n");
    assert_eq!(read("sinceTime=2999-01-01T00:00:00Z").await.1, "");
    let (_, stamped) = read("timestamps=true&tailLines=1").await;
    let (time, line) = stamped.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{stamped}");
    assert_eq!(line, "oops\n");
}

#[tokio::test]
async fn what_is_not_to_be_had_is_told_in_upstreams_words() {
    let (node, socket) = node_with_web().await;
    let refused = Pull { error: Some((Code::Unknown, "no".into())), ..Pull::default() };
    node.fake.on_pull("localhost/slow:1", refused);
    let mut slow = pod("slow", &[container("main")]);
    slow["spec"]["containers"][0]["image"] = "localhost/slow:1".into();
    node.put(&slow);
    let waits = |pod: &_| waits_for(pod, "main").contains("Pull");
    node.wait_pod("slow", "its image cannot be pulled", WAIT_LIMIT, waits).await;
    let rows = [
        ("/containerLogs/default/other-node1/main", 404, "pod \"other-node1\" does not exist"),
        ("/containerLogs/other/web-node1/main", 404, "pod \"web-node1\" does not exist"),
        (
            "/containerLogs/default/web-node1/other",
            404,
            "container \"other\" not found in pod \"web-node1\"",
        ),
        (
            "/containerLogs/default/web-node1/main?previous=true",
            400,
            "previous terminated container \"main\" in pod \"web-node1\" not found",
        ),
        (
            "/containerLogs/default/slow-node1/main",
            400,
            "container \"main\" in pod \"slow-node1\" is waiting to start: ",
        ),
        (
            "/containerLogs/default/slow-node1/main?follow=true",
            400,
            "container \"main\" in pod \"slow-node1\" is waiting to start: ",
        ),
        (
            "/containerLogs/default/web-node1/main?tailLines=many",
            400,
            "query parameter \"tailLines\"",
        ),
        ("/containerLogs/default/web-node1/main?tailLines=-1", 422, "tailLines"),
        ("/containerLogs/default/web-node1/main?limitBytes=0", 422, "limitBytes"),
        (
            "/containerLogs/default/web-node1/main?stream=Stdout",
            400,
            "Please enable PodLogsQuerySplitStreams feature gate in kubelet",
        ),
        ("/containerLogs/default/web-node1", 404, "404"),
    ];
    for (target, status, text) in rows {
        let (code, body) = get(&socket, target).await;
        assert_eq!(code, status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
    assert_eq!(node.get(WEB).await.0, 404, "the read-only port has no logs");
}

#[tokio::test]
async fn one_stream_alone_can_be_had_where_the_gate_is_on() {
    let mut node = Node::new().await;
    node.configure("featureGates: {PodLogsQuerySplitStreams: true}");
    node.start().await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    node.fake.log("main", "stdout", "out");
    node.fake.log("main", "stderr", "err");
    let socket = node.path("root/kubelet.sock");
    let target = format!("{WEB}?stream=Stderr");
    assert_eq!(get(&socket, &target).await, (200, "err\n".into()));
}

#[tokio::test]
async fn the_log_of_the_instance_before_can_be_had() {
    let node = Node::started().await;
    let first = Behaviour::exits(Duration::ZERO, 1).with_output(&["first life"]);
    let second = Behaviour::runs().with_output(&["second life"]);
    node.fake.behave_in_turn("main", vec![first, second]);
    node.put(&simple("web"));
    let restarted = |pod: &_| {
        crate::node::status_of(pod, "main")
            .is_some_and(|s| s.restart_count == 1 && s.started == Some(true))
    };
    node.wait_pod("web", "it was restarted", WAIT_LIMIT, restarted).await;
    let socket = node.path("root/kubelet.sock");
    assert_eq!(get(&socket, WEB).await, (200, "second life\n".into()));
    let previous = format!("{WEB}?previous=1");
    assert_eq!(get(&socket, &previous).await, (200, "first life\n".into()));
}

#[tokio::test]
async fn following_goes_on_to_the_containers_last_word() {
    let (node, socket) = node_with_web().await;
    node.fake.log("main", "stdout", "one");
    let mut follower = Follower::begin(&socket, &format!("{WEB}?follow=true")).await;
    follower.wait_for("one").await;
    node.fake.log("main", "stdout", "two");
    follower.wait_for("two").await;
    node.fake.log("main", "stdout", "last");
    assert!(node.fake.exit("web-node1/main", 0));
    assert_eq!(follower.rest().await, "one\ntwo\nlast\n");
}

#[tokio::test]
async fn a_follower_that_goes_away_leaves_nothing_open() {
    let (node, socket) = node_with_web().await;
    node.fake.log("main", "stdout", "one");
    let log = log_file(&node);
    let mut follower = Follower::begin(&socket, &format!("{WEB}?follow=true")).await;
    follower.wait_for("one").await;
    assert_eq!(open_files(&log), 2, "one is the runtime's");
    assert_eq!(watches(&log), 1);
    drop(follower);
    // The container is silent, so only the closed connection shows that the client is gone.
    wait_for("the log is closed", WAIT_LIMIT, async || {
        let left = (open_files(&log), watches(&log));
        holds(left == (1, 0), format!("{left:?}"))
    })
    .await;
}

/// One log of many followers: each has all of it, and one watch serves them.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_followers_of_one_log_share_a_watch_and_each_gets_all_of_it() {
    real_time("it reads on several threads");
    const FOLLOWERS: usize = 1000;
    let (node, socket) = node_with_web().await;
    node.fake.log("main", "stdout", "line 0");
    let log = log_file(&node);
    let mut followers = Vec::new();
    for _ in 0..FOLLOWERS {
        let target = format!("{WEB}?follow=true");
        followers.push(Follower::begin(&socket, &target).await);
    }
    for follower in &mut followers {
        follower.wait_for("line 0").await;
    }
    let open = open_files(&log);
    assert_eq!(open, FOLLOWERS + 1, "one is the runtime's");
    assert_eq!(watches(&log), 1);
    // Others are still answered.
    assert_eq!(get(&socket, "/pods").await.0, 200);
    let mut expected = String::from("line 0\n");
    for n in 1..200 {
        node.fake.log("main", "stdout", &format!("line {n}"));
        expected += &format!("line {n}\n");
        if n % 20 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(node.fake.exit("web-node1/main", 0));
    for follower in followers {
        assert!(follower.rest().await == expected);
    }
    wait_for("the log is closed", WAIT_LIMIT, async || holds(watches(&log) == 0, "it is watched"))
        .await;
}

/// A follower that takes nothing for a while gets everything all the same, and blocks no other client.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_follower_loses_nothing_and_holds_up_nobody() {
    real_time("it reads on several threads");
    let (node, socket) = node_with_web().await;
    let target = format!("{WEB}?follow=true");
    let slow = Follower::begin(&socket, &target).await;
    let mut quick = Follower::begin(&socket, &target).await;
    // More than any buffer on the way.
    let filling = "x".repeat(1000);
    let mut expected = String::new();
    for n in 0..8000 {
        let line = format!("{n} {filling}");
        node.fake.log("main", "stdout", &line);
        expected += &line;
        expected.push('\n');
        if n % 1000 == 999 {
            quick.wait_for(&line).await;
        }
    }
    assert!(node.fake.exit("web-node1/main", 0));
    assert!(quick.rest().await == expected);
    assert!(slow.rest().await == expected, "nothing is lost");
}

#[tokio::test]
async fn a_log_that_breaks_off_with_the_kubelet_is_not_taken_for_whole() {
    let (mut node, socket) = node_with_web().await;
    node.fake.log("main", "stdout", "one");
    let mut follower = Follower::begin(&socket, &format!("{WEB}?follow=true")).await;
    follower.wait_for("one").await;
    timeout(WAIT_LIMIT, node.stop()).await.expect("it stops");
    let rest = read_rest(&mut follower.stream).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the end of a whole log");
}

#[tokio::test]
async fn a_log_that_was_made_a_link_is_not_read() {
    let (node, socket) = node_with_web().await;
    node.fake.log("main", "stdout", "one");
    let log = log_file(&node);
    let secret = node.path("secret");
    fs::write(&secret, "2026-01-02T03:04:05Z stdout F secret\n").unwrap();
    fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink(&secret, &log).unwrap();
    for query in ["", "?follow=true"] {
        let (code, body) = get(&socket, &format!("{WEB}{query}")).await;
        assert_eq!(code, 500, "{body}");
        assert!(body.contains("link") && !body.contains("secret"), "{body}");
    }
}

#[tokio::test]
async fn init_containers_have_logs_too() {
    let node = Node::started().await;
    let done = Behaviour::exits(Duration::ZERO, 0).with_output(&["prepared"]);
    node.fake.behave("init", done);
    let init = serde_json::json!({"initContainers": [container("init")]});
    node.put(&with_spec(simple("web"), init));
    node.wait_phase("web", "Running").await;
    let socket = node.path("root/kubelet.sock");
    let target = "/containerLogs/default/web-node1/init?tail=1";
    assert_eq!(get(&socket, target).await, (200, "prepared\n".into()));
}

fn log_file(node: &Node) -> PathBuf {
    let pods = node.entries("logs");
    let log = node.path("logs").join(&pods[0]).join("main/0.log");
    log.canonicalize().unwrap()
}

/// How often this process, the fake runtime included, has a file open.
fn open_files(path: &Path) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let links = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    links.filter(|link| link == path).count()
}

/// How many watches this process has on the directory of a file.
fn watches(path: &Path) -> usize {
    use std::os::unix::fs::MetadataExt as _;
    let inode = fs::metadata(path.parent().unwrap()).unwrap().ino();
    let wanted = format!(" ino:{inode:x} ");
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|fd| fd.unwrap().file_name().to_str()?.parse::<RawFd>().ok());
    let infos = fds.filter_map(|fd| fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok());
    infos.map(|info| info.matches(&wanted).count()).sum()
}
