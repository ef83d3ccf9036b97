//! The exit of one container restarts all of them.

use super::*;

fn on_88(p: Pod, name: &str) -> Pod {
    p.rule(name, "RestartAllContainers", "In", &[88])
}

fn two() -> Pod {
    on_88(pod("Never", &["a", "b"]).own_policy("a", "Never"), "a")
}

#[test]
fn a_matching_exit_removes_every_instance_its_own_last() {
    let full = || two().init("i").sidecar("s");
    let started = || Runtime::good().exited("i", 0).with("s", RUNNING);
    check(&[
        ("another code", two(), Runtime::good().with("b", RUNNING).exited("a", 1), ""),
        (
            "the rest runs",
            full(),
            started().with("b", RUNNING).exited("a", 88),
            "stop-and-reset:b-2 | reset:i-0 stop-and-reset:s-1 | reset:a-3",
        ),
        (
            "also what ended, was never started, or is unknown",
            two().init("i"),
            Runtime::good().with("i", UNKNOWN).with("b", CREATED).exited("a", 88),
            "stop-and-reset:b-1 | stop-and-reset:i-0 | reset:a-2",
        ),
        (
            "older instances too",
            two(),
            Runtime::good().exited("b", 0).exited("a", 1).with("b", RUNNING).exited("a", 88),
            "reset:a-1 stop-and-reset:b-2 reset:b-0 | reset:a-3",
        ),
        (
            "a sidecar asks",
            on_88(pod("Never", &["a"]).sidecar("s"), "s"),
            Runtime::good().exited("s", 88).with("a", RUNNING),
            "stop-and-reset:a-1 | reset:s-0",
        ),
        (
            "an init container asks",
            on_88(pod("Never", &["a"]).init("i").own_policy("i", "Never"), "i"),
            Runtime::good().exited("i", 88),
            "reset:i-0",
        ),
        (
            "a success may ask",
            pod("Never", &["a"]).own_policy("a", "Never").rule(
                "a",
                "RestartAllContainers",
                "In",
                &[0],
            ),
            Runtime::good().exited("a", 0),
            "reset:a-0",
        ),
        (
            "ephemeral containers stay as they are",
            two().ephemeral("e"),
            Runtime::good().with("e", RUNNING).exited("a", 88),
            "reset:a-1",
        ),
        (
            "it restarts alone by another rule that comes first",
            on_88(two().spec_rules_first(), "a"),
            Runtime::good().with("b", RUNNING).exited("a", 88),
            "start:a",
        ),
    ]);
}

trait First {
    fn spec_rules_first(self) -> Self;
}

impl First for Pod {
    /// The pod with a rule that restarts `a` alone, and no other yet.
    fn spec_rules_first(mut self) -> Self {
        self.spec_mut().containers[0].restart_policy_rules = None;
        self.rule("a", "Restart", "In", &[88])
    }
}

#[test]
fn once_everything_is_removed_the_pod_starts_from_its_first_init_container() {
    let p = two().init("i");
    let line_of = |runtime: Runtime| line(&runtime.actions(&p));
    assert_eq!(line_of(Runtime::good()), "init:i");
    let listed = Runtime::good().restart_all_instances(&["a-0", "b-1"]);
    assert_eq!(line_of(listed), "init:i", "what is gone needs no removal");
}

#[test]
fn a_reset_that_was_interrupted_goes_on_with_what_it_began() {
    let actions = Runtime::good()
        .exited("a", 88)
        .with("b", RUNNING)
        .restart_all_instances(&["a-0", "b-1"])
        .actions(&two());
    assert_eq!(line(&actions), "stop-and-reset:b-1 | reset:a-0");
    assert_eq!(actions.reset.unwrap().trigger, None);
    let without_its_reason = Runtime::good().with("b", RUNNING).restart_all_instances(&["b-0"]);
    assert_eq!(line(&without_its_reason.actions(&two())), "stop-and-reset:b-0");
    let with_new_ones = Runtime::good()
        .exited("b", 88)
        .with("a", RUNNING)
        .with("b", RUNNING)
        .restart_all_instances(&["b-0"]);
    assert_eq!(line(&with_new_ones.actions(&two())), "reset:b-0", "what was started since stays");
}

#[test]
fn the_trigger_is_reported_and_newest_instances_are_marked() {
    let runtime = Runtime::good().exited("a", 1).exited("a", 88).change(|c| c.finished_at = 7);
    let reset = runtime.actions(&two()).reset.unwrap();
    let trigger = RestartAllTrigger { name: "a".into(), exit_code: 88, finished_at: 7 };
    assert_eq!(reset.trigger, Some(trigger));
    let marks: Vec<_> = reset.groups.iter().flatten().collect();
    let marks: Vec<_> = marks.iter().map(|c| (c.id.as_str(), c.newest)).collect();
    assert_eq!(marks, [("a-0", false), ("a-1", true)]);
}

#[test]
fn only_an_exit_in_the_present_sandbox_of_an_active_pod_triggers_a_reset() {
    let asks = || Runtime::good().with("b", RUNNING).exited("a", 88);
    check(&[
        ("being deleted", two().deleted(), asks(), ""),
        (
            "the sandbox is gone: everything starts over anyway",
            two(),
            Runtime::new([not_ready(0)]).with("b", RUNNING).exited("a", 88),
            "kill-pod new-sandbox start:a",
        ),
        (
            "it exited in an earlier sandbox",
            two(),
            Runtime::new([sandbox(1), not_ready(0)])
                .exited("a", 88)
                .in_sandbox(0)
                .with("b", RUNNING),
            "start:a",
        ),
        (
            "a newer instance runs",
            two(),
            Runtime::good().exited("a", 88).with("b", RUNNING).with("a", RUNNING),
            "",
        ),
    ]);
    let mut over = asks();
    over.facts.terminal = true;
    assert_eq!(line(&over.actions(&two())), "kill-pod");
}
