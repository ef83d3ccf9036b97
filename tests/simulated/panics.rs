//! What the log says of a panic. The panic hook is the process's, so it is installed in a process of its own.

use std::process::Command;

use kubelet::base::panics::{self, PanicScope, catch_panic};
use kubelet::config::logging::{self, LoggingConfig};

use crate::node::Node;

#[tokio::test]
#[ignore = "the test below runs it, in a process of its own"]
async fn panicking_process() {
    let _log = logging::init(&LoggingConfig::default()).expect("a log");
    panics::install_hook();
    let secret = "hunter2".to_owned();
    let work = async { assert!(secret.is_empty(), "cannot read {secret:?}") };
    let ended = catch_panic(PanicScope::Probe, work).await;
    assert!(ended.is_err());
    let alone = tokio::task::spawn_blocking(|| panic!("nothing catches it"));
    assert!(alone.await.is_err());
    for (place, count) in panics::counts().filter(|(_, count)| *count > 0) {
        println!("counted {place} {count}");
    }
}

#[test]
fn a_panic_is_logged_once_with_its_place_and_without_values_and_counted() {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("panics::panicking_process")
        .output()
        .expect("it runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (shown, log) = (said(&child.stdout), said(&child.stderr));
    assert!(child.status.success(), "{shown}\n{log}");
    let lines: Vec<_> = log.lines().collect();
    let observed: Vec<_> =
        lines.iter().filter(|line| line.contains("\"Observed a panic\"")).collect();
    assert_eq!((observed.len(), lines.len()), (2, 2), "{log}");
    assert!(observed[0].starts_with('E'), "{log}");
    for (line, said) in [
        (observed[0], "panic=\"cannot read …\""),
        (observed[0], "location=\"tests/simulated/panics.rs:"),
        (observed[0], "thread=\"panics::panicking_process\""),
        (observed[0], "scope=\"probe\""),
        (observed[1], "panic=\"nothing catches it\""),
        (observed[1], "scope=\"other\""),
    ] {
        assert!(line.contains(said), "{said} in {line}");
    }
    assert!(!log.contains("hunter2"), "{log}");
    assert!(shown.contains("counted probe 1\n"), "{shown}");
    assert!(shown.contains("counted other 1\n"), "{shown}");
}

#[tokio::test]
async fn panics_have_a_count_for_each_thing_that_they_may_end() {
    let node = Node::started().await;
    let (_, text) = node.get("/metrics").await;
    for place in ["sync", "probe", "http_request", "inspection", "task"] {
        // Not always 0: kubelets that other tests kill in this process panic in their timers.
        let sample = format!("kubelet_panics_total{{where=\"{place}\"}} ");
        assert!(text.contains(&sample), "{sample} in {text}");
    }
}
