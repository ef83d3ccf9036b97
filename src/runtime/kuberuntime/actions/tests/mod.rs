//! Every row of the decision table.

mod init;
mod regular;
mod resize;
mod restart_all;
mod restart_rules;
mod sandbox;

use super::fixture::*;
use super::*;
use crate::model::ProbeResult;
use ProbeResult::Failure;

/// Rows: what the case is, the pod, the runtime, the actions in one line.
fn check(rows: &[(&str, Pod, Runtime, &str)]) {
    for (case, pod, runtime, expected) in rows {
        assert_eq!(line(&runtime.actions(pod)), *expected, "{case}");
    }
}

#[test]
fn a_pod_that_reached_its_end_is_only_ever_stopped() {
    let p = pod("Always", &["a"]);
    let mut runtime = Runtime::good().with("a", RUNNING);
    runtime.facts.terminal = true;
    assert_eq!(line(&runtime.actions(&p)), "kill-pod");
    let mut gone = Runtime::new([not_ready(0)]).exited("a", 1);
    gone.facts.terminal = true;
    assert!(gone.actions(&p).is_empty());
    let mut forgotten = Runtime::default();
    forgotten.facts.terminal = true;
    assert!(forgotten.actions(&p).is_empty());
}

#[test]
fn kill_messages_are_upstreams() {
    let p = pod("Always", &["a", "b"]).sidecar("s");
    let runtime = Runtime::good()
        .with("s", RUNNING)
        .startup(Failure)
        .with("a", RUNNING)
        .liveness(Failure)
        .with("b", UNKNOWN);
    let said: Vec<_> =
        runtime.actions(&p).containers_to_kill.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "Init container s failed startup probe",
            "Container a failed liveness probe, will be restarted",
            "Container is in \"unknown\" state, try killing it before restart",
        ]
    );
    let never = pod("Never", &["a", "b"]);
    let runtime = Runtime::good().with("b", RUNNING).with("a", RUNNING).startup(Failure);
    assert_eq!(
        runtime.actions(&never).containers_to_kill[0].to_string(),
        "Container a failed startup probe"
    );
    let changed =
        Runtime::good().with("b", RUNNING).with("a", RUNNING).change(|c| c.hash = "other".into());
    assert_eq!(
        changed.actions(&never).containers_to_kill[0].to_string(),
        "Container a definition changed, will be restarted"
    );
}

#[test]
fn starts_say_why() {
    let p = pod("Always", &["a", "b", "c"]);
    let runtime = Runtime::good().exited("b", 7).with("c", RUNNING).liveness(Failure);
    let why: Vec<_> = runtime
        .actions(&p)
        .containers_to_start
        .iter()
        .map(|start| format!("{} {}", start.name, start.reason))
        .collect();
    assert_eq!(why, ["a has no instance yet", "b exited with code 7", "c failed liveness probe"]);
}
