//! Ephemeral and regular containers.

use super::*;
use ProbeResult::{Success, Unknown};

#[test]
fn ephemeral_containers_are_started_once() {
    let p = || pod("Always", &["a"]).ephemeral("e");
    check(&[
        ("fresh", p(), Runtime::good().with("a", RUNNING), "ephemeral:e"),
        ("during initialisation", p().init("i"), Runtime::good().with("i", RUNNING), "ephemeral:e"),
        ("exited", p(), Runtime::good().with("a", RUNNING).exited("e", 1), ""),
        ("unknown", p(), Runtime::good().with("a", RUNNING).with("e", UNKNOWN), ""),
        ("exited and removed", p(), Runtime::good().with("a", RUNNING).exit_fact("e", 1), ""),
        (
            "a pod that ends",
            pod("Never", &["a"]).ephemeral("e"),
            Runtime::good().exited("a", 0),
            "kill-pod",
        ),
    ]);
}

#[test]
fn regular_containers_row_by_row() {
    let p = |policy| pod(policy, &["a", "b"]);
    let b = || Runtime::good().with("b", RUNNING);
    let own = |policy, own| p(policy).own_policy("a", own);
    check(&[
        ("none", p("Never"), b(), "start:a"),
        ("none, being deleted", p("Always").deleted(), b(), ""),
        ("created, Never", p("Never"), b().with("a", CREATED), "start:a"),
        ("created, being deleted", p("Never").deleted(), b().with("a", CREATED), ""),
        ("unknown, Never", p("Never"), b().with("a", UNKNOWN), "kill:a-1 start:a"),
        ("exited 0, Always", p("Always"), b().exited("a", 0), "start:a"),
        ("exited 0, OnFailure", p("OnFailure"), b().exited("a", 0), ""),
        ("exited 1, OnFailure", p("OnFailure"), b().exited("a", 1), "start:a"),
        ("exited 1, Never", p("Never"), b().exited("a", 1), ""),
        ("exited, being deleted", p("Always").deleted(), b().exited("a", 1), ""),
        (
            "exited 1, Never, own OnFailure",
            own("Never", "OnFailure"),
            b().exited("a", 1),
            "start:a",
        ),
        ("exited 1, Always, own Never", own("Always", "Never"), b().exited("a", 1), ""),
        (
            "exited 0, OnFailure, own Always",
            own("OnFailure", "Always"),
            b().exited("a", 0),
            "start:a",
        ),
        ("instances gone, recorded exit 0, OnFailure", p("OnFailure"), b().exit_fact("a", 0), ""),
        (
            "instances gone, recorded exit 1, OnFailure",
            p("OnFailure"),
            b().exit_fact("a", 1),
            "start:a",
        ),
        ("instances gone, recorded exit 1, Never", p("Never"), b().exit_fact("a", 1), ""),
        (
            "hash differs, Never",
            p("Never"),
            b().with("a", RUNNING).change(|c| c.hash = "other".into()),
            "kill:a-1 start:a",
        ),
        (
            "no hash to compare",
            p("Never"),
            b().with("a", RUNNING).change(|c| c.hash = "".into()),
            "",
        ),
        (
            "liveness failed",
            p("OnFailure"),
            b().with("a", RUNNING).liveness(Failure),
            "kill:a-1 start:a",
        ),
        (
            "liveness failed, Never",
            p("Never"),
            b().with("a", RUNNING).liveness(Failure),
            "kill:a-1",
        ),
        (
            "liveness failed, own Always",
            own("Never", "Always"),
            b().with("a", RUNNING).liveness(Failure),
            "kill:a-1 start:a",
        ),
        (
            "liveness failed, own Never",
            own("Always", "Never"),
            b().with("a", RUNNING).liveness(Failure),
            "kill:a-1",
        ),
        (
            "startup failed",
            p("Always"),
            b().with("a", RUNNING).startup(Failure),
            "kill:a-1 start:a",
        ),
        ("startup failed, Never", p("Never"), b().with("a", RUNNING).startup(Failure), "kill:a-1"),
        (
            "probe failed, being deleted",
            p("Always").deleted(),
            b().with("a", RUNNING).liveness(Failure),
            "kill:a-1",
        ),
        ("running", p("Never"), b().with("a", RUNNING).liveness(Unknown).startup(Success), ""),
        ("only the newest instance counts", p("Never"), b().with("a", UNKNOWN).exited("a", 0), ""),
        (
            "nothing kept, nothing to start",
            p("OnFailure"),
            Runtime::good().exited("a", 0).exited("b", 0),
            "kill-pod",
        ),
        (
            "the last one to go is killed by its probe",
            pod("Never", &["a"]),
            Runtime::good().with("a", RUNNING).liveness(Failure),
            "kill-pod kill:a-0",
        ),
    ]);
}

#[test]
fn a_container_that_was_killed_to_be_restarted_is_started_after_any_exit_code() {
    let p = |policy| pod(policy, &["a", "b"]);
    let killed = |code| Runtime::good().with("b", RUNNING).exited("a", code);
    let killed = |code| killed(code).killed_to_restart();
    let mut removed = Runtime::good().with("b", RUNNING);
    removed.facts = killed(0).facts;
    check(&[
        ("OnFailure", p("OnFailure"), killed(0), "start:a"),
        ("Never", p("Never"), killed(143), "start:a"),
        ("being deleted", p("Never").deleted(), killed(0), ""),
        ("removed", p("Never"), removed.clone(), "start:a"),
        (
            "the only one",
            pod("Never", &["a"]),
            Runtime::good().exited("a", 0).killed_to_restart(),
            "start:a",
        ),
        (
            "not killed yet",
            p("Never"),
            Runtime::good().with("b", RUNNING).with("a", RUNNING).killed_to_restart(),
            "",
        ),
        ("its successor has ended", p("OnFailure"), killed(0).exited("a", 0), ""),
        ("its successor was removed", p("OnFailure"), removed.exit_fact("a", 0), ""),
    ]);
    let actions = killed(0).actions(&p("OnFailure"));
    let reason = actions.containers_to_start[0].reason;
    assert_eq!(reason, StartReason::KilledToRestart);
}

#[test]
fn a_kill_is_recorded_only_if_the_policy_might_take_the_exit_for_final() {
    let p = |policy| pod(policy, &["a", "b"]).sidecar("s");
    let sick = || Runtime::good().with("s", RUNNING).liveness(Failure);
    let sick = || sick().startup(Failure).with("b", RUNNING);
    let sick = || sick().with("a", RUNNING).liveness(Failure);
    let edited = || sick().change(|c| c.hash = "other".into());
    let lost = || Runtime::new([not_ready(0)]).with("a", RUNNING);
    let none: &[&str] = &[];
    for (case, pod, runtime, expected) in [
        ("OnFailure", p("OnFailure"), sick(), &["a"][..]),
        ("Always", p("Always"), sick(), none),
        ("not restarted", p("Never"), sick(), none),
        ("edited", p("Never"), edited(), &["a"]),
        ("being deleted", p("OnFailure").deleted(), sick(), none),
        ("a new sandbox", pod("OnFailure", &["a"]), lost(), &["a"]),
        ("a new sandbox, Always", pod("Always", &["a"]), lost(), none),
        ("no new sandbox", pod("Never", &["a"]), lost(), none),
        ("nothing to do", p("OnFailure"), Runtime::good(), none),
    ] {
        let actions = runtime.actions(&pod);
        let killed = actions.killed_to_restart(&pod, &runtime.status);
        let names: Vec<&str> = killed.iter().map(|one| &*one.name).collect();
        assert_eq!(names, expected, "{case}");
    }
}
