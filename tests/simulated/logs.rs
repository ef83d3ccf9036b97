//! Logs of a kubelet's containers, as it looks after them on its own.

use std::path::PathBuf;

use tonic::Code;

use crate::node::{Node, WAIT_LIMIT};
use crate::pods::simple;
use crate::support::fake_runtime::{Fault, Rpc};
use crate::support::wait::{holds, wait_for};

/// A node on which the log of `web` is rotated once it has 1000 bytes.
async fn node_with_web() -> (Node, PathBuf) {
    let mut node = Node::new().await;
    node.configure("containerLogMaxSize: \"1000\"\ncontainerLogMonitorInterval: 3s");
    node.start().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    let pods = node.entries("logs");
    let log = node.path("logs").join(&pods[0]).join("main/0.log");
    assert!(log.exists(), "{pods:?}");
    (node, log)
}

fn say_much(node: &Node) {
    node.fake.log("main", "stdout", &"x".repeat(1000));
}

fn names(log: &std::path::Path) -> Vec<String> {
    let mut names = crate::node::entries(log.parent().unwrap());
    names.sort();
    names
}

#[tokio::test]
async fn a_log_over_its_size_is_rotated_and_written_on() {
    let (node, log) = node_with_web().await;
    say_much(&node);
    wait_for("it is rotated", WAIT_LIMIT, async || {
        let names = names(&log);
        holds(names.len() == 2, format!("{names:?}"))
    })
    .await;
    node.fake.log("main", "stdout", "on the new one");
    wait_for("the runtime writes to the new one", WAIT_LIMIT, async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        holds(text.ends_with("on the new one\n"), text)
    })
    .await;
    assert_eq!(node.fake.count(Rpc::ReopenContainerLog), 1);
}

#[tokio::test]
async fn a_rotation_that_the_runtime_refuses_is_undone_and_done_later() {
    let (node, log) = node_with_web().await;
    let refuse = Fault::fail(Rpc::ReopenContainerLog, Code::Unknown, "not now");
    node.fake.inject(refuse);
    say_much(&node);
    let reopens = |n| {
        move |fake: &crate::support::fake_runtime::FakeRuntime| {
            fake.count(Rpc::ReopenContainerLog) >= n
        }
    };
    node.fake.wait_until("it was refused", WAIT_LIMIT, reopens(1)).await;
    wait_for("it is undone", WAIT_LIMIT, async || {
        let names = names(&log);
        holds(names == ["0.log"], format!("{names:?}"))
    })
    .await;
    node.fake.log("main", "stdout", "still the same");
    let refused = node.fake.count(Rpc::ReopenContainerLog);
    node.fake.clear_faults();
    node.fake.wait_until("it is tried again", WAIT_LIMIT, reopens(refused + 1)).await;
    let rotated = wait_for("it is done", WAIT_LIMIT, async || match &names(&log)[..] {
        [current, rotated] if current == "0.log" => Ok(log.with_file_name(rotated)),
        names => Err(format!("{names:?}")),
    })
    .await;
    let text = std::fs::read_to_string(rotated).unwrap();
    assert!(text.ends_with("still the same\n"), "nothing was lost: {text}");
}

#[tokio::test]
async fn a_log_that_an_earlier_kubelet_renamed_and_left_is_made_again() {
    let (mut node, log) = node_with_web().await;
    node.stop().await;
    std::fs::rename(&log, log.with_file_name("0.log.20260102-030405")).unwrap();
    node.start().await;
    wait_for("there is a log again", WAIT_LIMIT, async || {
        holds(log.exists(), format!("{:?}", names(&log)))
    })
    .await;
    assert_eq!(names(&log), ["0.log", "0.log.20260102-030405"]);
}
