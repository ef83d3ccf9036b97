//! All containers of a pod start over.

use super::conditions::{condition, says};
use super::*;
use RestartAllStage::{Removed, Removing};
use serde_json::json;

/// Containers `a`, which causes a restart of all when it exits with 88, and `b`.
fn starting_over(init: &[&str]) -> Pod {
    let mut pod = pod("Never", init, &["a", "b"]);
    let rule =
        json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}});
    edit(&mut pod, "a", |a| {
        a.restart_policy = Some("Never".into());
        a.restart_policy_rules = Some(vec![serde_json::from_value(rule).unwrap()]);
    });
    pod
}

fn at(
    stage: RestartAllStage,
    pod: &Pod,
    containers: &[model::ContainerStatus],
    old: &PodStatus,
) -> PodStatus {
    let runtime_status = runtime_status(containers);
    let inputs = StatusInputs {
        old: Some(old),
        restart_all: stage,
        ..StatusInputs::new(pod, &runtime_status, now())
    };
    generate_api_pod_status(&inputs).unwrap()
}

#[test]
fn what_was_removed_waits_and_counts_as_restarted_once() {
    let pod = starting_over(&["i"]);
    let all = [running("b", "c2"), running("a", "c1"), exited("i", "c0", 0)];
    let before = generate(&pod, &all);
    let ended = [running("b", "c2"), exited("a", "c1", 88), exited("i", "c0", 0)];
    let removing = at(Removing, &pod, &ended, &before);
    assert_eq!(state_text(&of(&removing, "a").state), "terminated:Error:88");
    let mut shown = at(Removing, &pod, &[exited("a", "c1", 88)], &removing);
    for stage in [Removing, Removed, Removed] {
        shown = at(stage, &pod, &[], &shown);
        for name in ["i", "a", "b"] {
            let status = of(&shown, name);
            assert_eq!(state_text(&status.state), "waiting:RestartingAllContainers");
            let last = "terminated:RestartingAllContainers:137";
            assert_eq!((state_text(&status.last_state).as_str(), status.restart_count), (last, 1));
        }
        assert_eq!(shown.phase.as_deref(), Some("Running"));
        assert_eq!(says(&shown, "Initialized"), "True", "once is for good");
    }
    let again = instance("i", "c3", Cri::Running, 1);
    let shown = at(RestartAllStage::None, &pod, &[again], &shown);
    let i = of(&shown, "i");
    assert_eq!(state_text(&i.last_state), "terminated:RestartingAllContainers:137");
    assert_eq!((state_text(&i.state).as_str(), i.restart_count), ("running", 1));
}

#[test]
fn what_had_not_begun_is_not_restarted() {
    let pod = starting_over(&[]);
    let before = generate(&pod, &[exited("a", "c1", 88)]);
    let shown = at(Removed, &pod, &[], &before);
    let b = of(&shown, "b");
    assert_eq!((state_text(&b.state).as_str(), b.restart_count), ("waiting:ContainerCreating", 0));
}

#[test]
fn the_container_whose_exit_was_the_reason_shows_the_back_off_of_all() {
    let pod = starting_over(&[]);
    let mut shown = generate(&pod, &[exited("a", "c1", 88), running("b", "c2")]);
    let nothing = runtime_status(&[]);
    for (holds, expected) in [
        (true, "waiting:CrashLoopBackOff"),
        (true, "waiting:CrashLoopBackOff"),
        (false, "waiting:RestartingAllContainers"),
    ] {
        let back_off = |name: &str| (holds && name == "a").then(|| "back-off 10s".to_string());
        let inputs = StatusInputs {
            old: Some(&shown),
            restart_all: Removed,
            back_off: &back_off,
            ..StatusInputs::new(&pod, &nothing, now())
        };
        shown = generate_api_pod_status(&inputs).unwrap();
        let a = of(&shown, "a");
        assert_eq!((state_text(&a.state).as_str(), a.restart_count), (expected, 1));
        let b = state_text(&of(&shown, "b").state);
        assert_eq!(b, "waiting:RestartingAllContainers");
    }
}

#[test]
fn the_condition_is_there_where_a_rule_is_and_true_until_all_are_removed() {
    let plain = generate(&pod("Never", &[], &["a"]), &[running("a", "c")]);
    let kinds = plain.conditions.iter().flatten().map(|c| c.type_.as_str());
    assert!(!kinds.collect::<Vec<_>>().contains(&"AllContainersRestarting"));
    let pod = starting_over(&[]);
    let old = generate(&pod, &[running("a", "c1"), running("b", "c2")]);
    let kind = "AllContainersRestarting";
    assert_eq!(says(&old, kind), "False");
    let ended = [exited("a", "c1", 88), running("b", "c2")];
    let started = "True:RestartAllContainersStarted:container exited with restart policy rule";
    assert_eq!(says(&at(Removing, &pod, &ended, &old), kind), started);
    assert_eq!(says(&at(Removed, &pod, &[], &old), kind), "False");
    let done = [exited("a", "c1", 0), exited("b", "c2", 0)];
    assert_eq!(says(&generate(&pod, &done), kind), "False:PodCompleted:");
    let failed = [exited("a", "c1", 1), exited("b", "c2", 0)];
    let failed = generate(&pod, &failed);
    assert_eq!(says(&failed, kind), "False:PodFailed:");
    assert_eq!(condition(&failed, kind).observed_generation, None);
}

#[test]
fn a_rule_that_restarts_is_no_end() {
    let mut pod = pod("Never", &["i"], &["a"]);
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
    for name in ["i", "a"] {
        edit(&mut pod, name, |c| {
            c.restart_policy = Some("Never".into());
            c.restart_policy_rules = Some(vec![serde_json::from_value(rule.clone()).unwrap()]);
        });
    }
    let done = exited("i", "c0", 0);
    for (instances, phase) in [
        (vec![exited("a", "c1", 42), done.clone()], "Running"),
        (vec![exited("a", "c1", 1), done.clone()], "Failed"),
        (vec![exited("a", "c1", 0), done], "Succeeded"),
        (vec![exited("i", "c0", 42)], "Pending"),
        (vec![exited("i", "c0", 1)], "Failed"),
    ] {
        let status = generate(&pod, &instances);
        assert_eq!(status.phase.as_deref(), Some(phase), "{instances:?}");
    }
    let old = generate(&pod, &[exited("a", "c1", 42)]);
    let alive = after(&pod, &[running("a", "c2"), exited("a", "c1", 42)], Some(&old));
    assert_eq!(state_text(&of(&alive, "a").state), "running", "it may leave its end");
}

#[test]
fn any_container_may_leave_its_end_where_all_may_be_restarted() {
    let pod = starting_over(&[]);
    let old = generate(&pod, &[exited("b", "c2", 0), running("a", "c1")]);
    let alive = after(&pod, &[running("b", "c3"), running("a", "c4")], Some(&old));
    assert_eq!(state_text(&of(&alive, "b").state), "running");
}
