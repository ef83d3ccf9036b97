//! Init containers and sidecars.

use super::*;
use ProbeResult::{Success, Unknown};

#[test]
fn plain_init_containers_run_one_after_the_other() {
    let p = |policy| pod(policy, &["a"]).init("i").init("j");
    let good = Runtime::good;
    check(&[
        ("nothing was ever seen", p("Always"), good(), "init:i"),
        (
            "created: the runtime failed to start it",
            p("Always"),
            good().with("i", CREATED),
            "init:i",
        ),
        ("created, Never", p("Never"), good().with("i", CREATED), "init:i"),
        ("running: wait", p("Always"), good().with("i", RUNNING), ""),
        ("failed, Always", p("Always"), good().exited("i", 1), "init:i"),
        ("failed, OnFailure", p("OnFailure"), good().exited("i", 1), "init:i"),
        ("failed, Never", p("Never"), good().exited("i", 1), "kill-pod"),
        (
            "killed for memory, Never",
            p("Never"),
            good().exited("i", 0).change(|c| c.reason = "OOMKilled".into()),
            "kill-pod",
        ),
        (
            "failed, own OnFailure",
            p("Never").own_policy("i", "OnFailure"),
            good().exited("i", 1),
            "init:i",
        ),
        (
            "failed, own Never",
            p("Always").own_policy("i", "Never"),
            good().exited("i", 1),
            "kill-pod",
        ),
        ("succeeded: the next", p("Never"), good().exited("i", 0), "init:j"),
        ("the last succeeded", p("Never"), good().exited("i", 0).exited("j", 0), "start:a"),
        ("the first is gone", p("Never"), good().exited("j", 0), "start:a"),
        ("the second runs, the first is gone", p("Always"), good().with("j", RUNNING), ""),
        ("unknown, restartable", p("OnFailure"), good().with("i", UNKNOWN), "kill:i-0 init:i"),
        ("unknown, Never", p("Never"), good().with("i", UNKNOWN), "kill-pod"),
        ("deleted", p("Always").deleted(), good(), ""),
    ]);
}

#[test]
fn initialised_is_a_fact_or_else_a_regular_container_in_this_sandbox() {
    let p = || pod("Always", &["a"]).init("i").sidecar("s");
    let second = || Runtime::new([sandbox(1), not_ready(0)]);
    check(&[
        ("running", p(), Runtime::good().with("a", RUNNING), "init:s"),
        ("created", p(), Runtime::good().with("a", CREATED), "init:s start:a"),
        ("exited here", p(), Runtime::good().exited("a", 1), "init:s start:a"),
        ("exited in an earlier sandbox", p(), second().exited("a", 1).in_sandbox(0), "init:i"),
        ("created in an earlier sandbox", p(), second().with("a", CREATED).in_sandbox(0), "init:i"),
        ("init done in an earlier sandbox", p(), second().exited("i", 0).in_sandbox(0), "init:i"),
        ("recorded as initialized", p(), second().initialized_in(1), "init:s start:a"),
        ("recorded for another sandbox", p(), second().initialized_in(0), "init:i"),
        (
            "the record wins over a failed init container",
            pod("Never", &["a"]).init("i"),
            Runtime::good().exited("i", 1).initialized_in(0),
            "start:a",
        ),
        (
            "after initialisation plain ones are skipped in every state",
            p(),
            Runtime::good()
                .with("i", UNKNOWN)
                .with("s", RUNNING)
                .startup(Success)
                .with("a", RUNNING),
            "",
        ),
    ]);
}

#[test]
fn sidecars_during_initialisation() {
    let first = || pod("Always", &["a"]).sidecar("s").init("j");
    let last = || pod("Always", &["a"]).init("i").sidecar("s");
    let good = Runtime::good;
    let up = |probe_result| good().with("s", RUNNING).startup(probe_result);
    check(&[
        ("no status and nothing initialised", last(), good(), "init:i"),
        ("no status, a later one was seen", first(), good().with("j", RUNNING), "init:s"),
        ("created", first(), good().with("s", CREATED), "init:s"),
        ("no startup result yet", first(), good().with("s", RUNNING), ""),
        ("startup unknown", first(), up(Unknown), ""),
        ("startup failed", first(), up(Failure), "kill:s-0 init:s"),
        ("started: the next, the first time", first(), up(Success), "init:j"),
        ("started: the next has run", first(), up(Success).with("j", RUNNING), ""),
        ("the last one started", last(), up(Success), "start:a"),
        (
            "liveness does not hold the next back",
            first(),
            up(Success).liveness(Failure),
            "kill:s-0 init:s init:j",
        ),
        (
            "definition changed",
            first(),
            up(Success).change(|c| c.hash = "other".into()),
            "kill:s-0 init:s init:j",
        ),
        ("exited well", first(), good().exited("s", 0), "init:s"),
        (
            "exited, policy Never",
            pod("Never", &["a"]).sidecar("s"),
            good().exited("s", 1),
            "init:s",
        ),
        (
            "unknown, policy Never",
            pod("Never", &["a"]).sidecar("s"),
            good().with("s", UNKNOWN),
            "kill:s-0 init:s",
        ),
    ]);
}

#[test]
fn sidecars_beside_the_regular_containers() {
    let p = |policy| pod(policy, &["a"]).sidecar("s");
    let good = || Runtime::good().with("a", RUNNING);
    check(&[
        ("gone", p("Always"), good(), "init:s"),
        ("exited", p("Never"), good().exited("s", 0), "init:s"),
        (
            "liveness failed",
            p("Never"),
            good().with("s", RUNNING).startup(Success).liveness(Failure),
            "kill:s-1 init:s",
        ),
        (
            "liveness unknown",
            p("Never"),
            good().with("s", RUNNING).startup(Success).liveness(Unknown),
            "",
        ),
        (
            "still starting: regular ones are looked at",
            p("Always"),
            Runtime::good().exited("a", 1).with("s", RUNNING),
            "start:a",
        ),
        (
            "the regular ones are done",
            p("Never"),
            Runtime::good().exited("a", 0).exited("s", 0),
            "kill-pod",
        ),
        (
            "the same, sidecar running",
            p("OnFailure"),
            Runtime::good().exited("a", 0).with("s", RUNNING).startup(Success),
            "kill-pod",
        ),
    ]);
}

#[test]
fn a_sidecar_without_probes_counts_as_started_once_it_runs() {
    let plain_sidecar = k8s_openapi::api::core::v1::Container {
        restart_policy: Some("Always".into()),
        ..container("s")
    };
    let p = pod("Always", &["a"]).push_init(plain_sidecar);
    let runtime = Runtime::good().with("s", RUNNING).liveness(Failure);
    assert_eq!(line(&runtime.actions(&p)), "start:a");
}
