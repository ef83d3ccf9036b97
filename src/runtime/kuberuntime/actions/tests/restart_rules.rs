//! A container's own policy and rules.

use super::*;

#[test]
fn rules_decide_about_exited_regular_containers_before_policies_do() {
    let p = |own| pod("Never", &["a", "b"]).own_policy("a", own);
    let on_42 = || p("Never").rule("a", "Restart", "In", &[42]);
    let not_0 = || p("Never").rule("a", "Restart", "NotIn", &[0]);
    let exited = |code| Runtime::good().with("b", RUNNING).exited("a", code);
    check(&[
        ("In, matches", on_42(), exited(42), "start:a"),
        ("In, another code", on_42(), exited(1), ""),
        ("NotIn, matches", not_0(), exited(7), "start:a"),
        ("NotIn, excluded", not_0(), exited(0), ""),
        (
            "no match, then the container's policy",
            p("OnFailure").rule("a", "Restart", "In", &[42]),
            exited(1),
            "start:a",
        ),
        (
            "no match, the container's policy before the pod's",
            pod("Always", &["a", "b"]).own_policy("a", "Never").rule("a", "Restart", "In", &[42]),
            exited(1),
            "",
        ),
        ("own Always under Never", p("Always"), exited(0), "start:a"),
        ("own OnFailure, success", p("OnFailure"), exited(0), ""),
        ("own OnFailure, failure", p("OnFailure"), exited(1), "start:a"),
        (
            "the runtime has no instance, its exit is recorded",
            on_42(),
            Runtime::good().with("b", RUNNING).exit_fact("a", 42),
            "start:a",
        ),
        (
            "the last one ended for good",
            pod("Never", &["a"]).own_policy("a", "Never").rule("a", "Restart", "In", &[42]),
            Runtime::good().exited("a", 1),
            "kill-pod",
        ),
    ]);
}

#[test]
fn rules_say_nothing_about_a_container_that_is_killed() {
    let rule = |p: Pod| p.rule("a", "Restart", "NotIn", &[]);
    let p = |own| rule(pod("Always", &["a", "b"]).own_policy("a", own));
    let sick = || {
        let runtime = Runtime::good().with("b", RUNNING).with("a", RUNNING);
        runtime.liveness(Failure)
    };
    check(&[
        ("own Never", p("Never"), sick(), "kill:a-1"),
        ("own OnFailure", p("OnFailure"), sick(), "kill:a-1 start:a"),
        (
            "own Always under Never",
            rule(pod("Never", &["a", "b"]).own_policy("a", "Always")),
            sick(),
            "kill:a-1 start:a",
        ),
    ]);
}

#[test]
fn an_init_container_that_failed_is_judged_by_its_own_rules_first() {
    let p = |of_pod, own| pod(of_pod, &["a"]).init("i").own_policy("i", own);
    let on_42 = || p("Never", "Never").rule("i", "Restart", "In", &[42]);
    let exited = |code| Runtime::good().exited("i", code);
    check(&[
        ("rule matches", on_42(), exited(42), "init:i"),
        ("no rule matches", on_42(), exited(1), "kill-pod"),
        ("own OnFailure under Never", p("Never", "OnFailure"), exited(1), "init:i"),
        ("own Never under Always", p("Always", "Never"), exited(1), "kill-pod"),
        (
            "a success is a success, whatever the rules",
            p("Never", "Never").rule("i", "Restart", "In", &[0]),
            exited(0),
            "start:a",
        ),
        (
            "killed for memory with code 0, own OnFailure",
            p("Never", "OnFailure"),
            exited(0).change(|c| c.reason = "OOMKilled".into()),
            "init:i",
        ),
        (
            "of unknown state there is no code",
            p("Always", "Never").rule("i", "Restart", "NotIn", &[]),
            Runtime::good().with("i", UNKNOWN),
            "kill-pod",
        ),
        (
            "of unknown state, own OnFailure under Never",
            p("Never", "OnFailure"),
            Runtime::good().with("i", UNKNOWN),
            "kill:i-0 init:i",
        ),
    ]);
}

#[test]
fn a_lost_sandbox_comes_back_for_those_that_run_again() {
    let dead = || Runtime::new([not_ready(0)]);
    let own = |policy| pod("Never", &["a", "b"]).own_policy("a", policy);
    let on_42 = || own("Never").rule("a", "Restart", "In", &[42]);
    check(&[
        (
            "own Always under Never, was running",
            own("Always"),
            dead().exited("b", 0).with("a", RUNNING),
            "kill-pod new-sandbox start:a",
        ),
        (
            "own OnFailure under Never, succeeded",
            own("OnFailure"),
            dead().exited("b", 1).exited("a", 0),
            "kill-pod",
        ),
        (
            "a rule under Never matches the exit",
            on_42(),
            dead().exited("b", 1).exited("a", 42),
            "kill-pod new-sandbox start:a",
        ),
        (
            "no rule under Never matches",
            on_42(),
            dead().exited("b", 1).exited("a", 137),
            "kill-pod",
        ),
        (
            "own Never under Always, was running",
            pod("Always", &["a", "b"]).own_policy("a", "Never"),
            dead().with("b", RUNNING).with("a", RUNNING),
            "kill-pod new-sandbox start:b",
        ),
    ]);
}
