//! Ephemeral and regular containers.

use super::*;
use ProbeResult::{Success, Unknown};

#[test]
fn ephemeral_containers_are_started_once() {
    let p = || pod("Always", &["a"]).ephemeral("e");
    check(&[
        (
            "fresh",
            p(),
            Runtime::good().with("a", RUNNING),
            "ephemeral:e",
        ),
        (
            "during initialisation",
            p().init("i"),
            Runtime::good().with("i", RUNNING),
            "ephemeral:e",
        ),
        (
            "exited",
            p(),
            Runtime::good().with("a", RUNNING).exited("e", 1),
            "",
        ),
        (
            "unknown",
            p(),
            Runtime::good().with("a", RUNNING).with("e", UNKNOWN),
            "",
        ),
        (
            "exited and removed",
            p(),
            Runtime::good().with("a", RUNNING).exit_fact("e", 1),
            "",
        ),
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
        (
            "created, Never",
            p("Never"),
            b().with("a", CREATED),
            "start:a",
        ),
        (
            "created, being deleted",
            p("Never").deleted(),
            b().with("a", CREATED),
            "",
        ),
        (
            "unknown, Never",
            p("Never"),
            b().with("a", UNKNOWN),
            "kill:a-1 start:a",
        ),
        (
            "exited 0, Always",
            p("Always"),
            b().exited("a", 0),
            "start:a",
        ),
        (
            "exited 0, OnFailure",
            p("OnFailure"),
            b().exited("a", 0),
            "",
        ),
        (
            "exited 1, OnFailure",
            p("OnFailure"),
            b().exited("a", 1),
            "start:a",
        ),
        ("exited 1, Never", p("Never"), b().exited("a", 1), ""),
        (
            "exited, being deleted",
            p("Always").deleted(),
            b().exited("a", 1),
            "",
        ),
        (
            "exited 1, Never, own OnFailure",
            own("Never", "OnFailure"),
            b().exited("a", 1),
            "start:a",
        ),
        (
            "exited 1, Always, own Never",
            own("Always", "Never"),
            b().exited("a", 1),
            "",
        ),
        (
            "exited 0, OnFailure, own Always",
            own("OnFailure", "Always"),
            b().exited("a", 0),
            "start:a",
        ),
        (
            "instances gone, recorded exit 0, OnFailure",
            p("OnFailure"),
            b().exit_fact("a", 0),
            "",
        ),
        (
            "instances gone, recorded exit 1, OnFailure",
            p("OnFailure"),
            b().exit_fact("a", 1),
            "start:a",
        ),
        (
            "instances gone, recorded exit 1, Never",
            p("Never"),
            b().exit_fact("a", 1),
            "",
        ),
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
        (
            "startup failed, Never",
            p("Never"),
            b().with("a", RUNNING).startup(Failure),
            "kill:a-1",
        ),
        (
            "probe failed, being deleted",
            p("Always").deleted(),
            b().with("a", RUNNING).liveness(Failure),
            "kill:a-1",
        ),
        (
            "running",
            p("Never"),
            b().with("a", RUNNING).liveness(Unknown).startup(Success),
            "",
        ),
        (
            "only the newest instance counts",
            p("Never"),
            b().with("a", UNKNOWN).exited("a", 0),
            "",
        ),
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
