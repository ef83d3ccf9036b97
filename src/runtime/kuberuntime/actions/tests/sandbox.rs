//! Is the sandbox good, and what follows when it is not.

use super::*;
use crate::model::{NetworkMode, SandboxStatus};

fn sandbox_of(actions: &PodActions) -> (Option<SandboxChange>, u32, Option<&str>) {
    let id = actions.sandbox.as_ref().map(SandboxId::as_str);
    (actions.sandbox_change, actions.attempt, id)
}

#[test]
fn the_newest_sandbox_is_judged_row_by_row() {
    use SandboxChange::*;
    let ours = pod("Always", &["a"]);
    let node = || SandboxStatus { network: NetworkMode::Node, ips: Vec::new(), ..sandbox(3) };
    let ips = |has_network_status, ips: &[&str]| SandboxStatus {
        has_network_status,
        ips: ips.iter().map(|ip| ip.to_string()).collect(),
        ..sandbox(3)
    };
    let hosts = ours.clone().host_network();
    for (pod, sandboxes, change, attempt, id) in [
        (&ours, vec![], Some(NoSandbox), 0, None),
        (&ours, vec![sandbox(4), sandbox(3)], Some(SeveralReady), 5, Some("s4")),
        (&ours, vec![not_ready(3)], Some(NotReady), 4, Some("s3")),
        (&ours, vec![not_ready(4), sandbox(3)], Some(NotReady), 5, Some("s4")),
        (&ours, vec![node()], Some(NetworkModeDiffers), 4, None),
        (&hosts, vec![sandbox(3)], Some(NetworkModeDiffers), 4, None),
        (&ours, vec![ips(true, &[])], Some(LostIp), 4, Some("s3")),
        (&ours, vec![ips(true, &[""])], Some(LostIp), 4, Some("s3")),
        (&ours, vec![ips(false, &[])], None, 3, Some("s3")),
        (&hosts, vec![node()], None, 3, Some("s3")),
        (&ours, vec![sandbox(4), not_ready(3)], None, 4, Some("s4")),
    ] {
        let actions = Runtime::new(sandboxes.clone()).actions(pod);
        assert_eq!(sandbox_of(&actions), (change, attempt, id), "{sandboxes:?}");
        assert_eq!(actions.create_sandbox, change.is_some());
    }
}

#[test]
fn without_a_good_sandbox_everything_is_killed_and_started_again_or_not() {
    let dead = || Runtime::new([not_ready(0)]);
    let p = |policy| pod(policy, &["a", "b"]);
    let again = "kill-pod new-sandbox start:a start:b";
    check(&[
        ("first sandbox", p("Never"), Runtime::default(), again),
        ("1: Never, created before", p("Never"), dead().exited("a", 1), "kill-pod"),
        ("1: Never, running", p("Never"), dead().with("a", RUNNING), "kill-pod"),
        ("1: Never, nothing ever created", p("Never"), dead(), again),
        ("1: Never, only a recorded exit", p("Never"), dead().exit_fact("a", 0), "kill-pod"),
        (
            "Never, nothing in the runtime, one recorded exit",
            p("Never"),
            Runtime::default().exit_fact("a", 0),
            "kill-pod new-sandbox start:b",
        ),
        ("Always restarts all", p("Always"), dead().exited("a", 0), again),
        (
            "2: OnFailure, one succeeded",
            p("OnFailure"),
            dead().exited("a", 0),
            "kill-pod new-sandbox start:b",
        ),
        ("2: OnFailure, one failed", p("OnFailure"), dead().exited("a", 1), again),
        (
            "2: a success although a child was killed for memory",
            p("OnFailure"),
            dead().exited("a", 0).change(|c| c.reason = "OOMKilled".into()),
            "kill-pod new-sandbox start:b",
        ),
        (
            "2: own policy OnFailure",
            p("Always").own_policy("a", "OnFailure"),
            dead().exited("a", 0),
            "kill-pod new-sandbox start:b",
        ),
        (
            "2: own policy Never",
            p("Always").own_policy("a", "Never"),
            dead().exited("a", 1),
            "kill-pod new-sandbox start:b",
        ),
        (
            "2: own policy Always",
            p("OnFailure").own_policy("a", "Always"),
            dead().exited("a", 0),
            again,
        ),
        ("3: all succeeded", p("OnFailure"), dead().exited("a", 0).exited("b", 0), "kill-pod"),
        (
            "3: the same by recorded exits",
            p("OnFailure"),
            dead().exited("a", 0).exit_fact("b", 0),
            "kill-pod",
        ),
        (
            "3: killed to be restarted, OnFailure",
            p("OnFailure"),
            dead().exited("b", 0).exited("a", 0).killed_to_restart(),
            "kill-pod new-sandbox start:a",
        ),
        (
            "1: killed to be restarted, Never",
            p("Never"),
            dead().exited("b", 0).exited("a", 0).killed_to_restart(),
            "kill-pod new-sandbox start:a",
        ),
        (
            "4: init containers start over",
            p("Always").init("i").init("j"),
            dead().exited("i", 0).exited("j", 0).with("a", RUNNING),
            "kill-pod new-sandbox init:i",
        ),
        (
            "5: ephemeral ones do not come back",
            p("Always").ephemeral("e"),
            dead().exited("e", 0),
            again,
        ),
        ("being deleted", p("Always").deleted(), dead().with("a", RUNNING), "kill-pod"),
    ]);
}
