//! Each rule.

use super::*;
use crate::base::clock;
use explanation::SINGLE_POD;

const READY: VolumeFacts = VolumeFacts {
    driver: Some(DriverFacts { stages: true }),
    attach_required: true,
    is_confirmed_in_use: true,
    is_attached: true,
    pods_are_known: true,
};
const NO_STAGING: VolumeFacts =
    VolumeFacts { driver: Some(DriverFacts { stages: false }), ..READY };
const AWAY: VolumeFacts = VolumeFacts { driver: None, ..READY };

fn uid(name: &str) -> PodUid {
    name.into()
}

fn publish(name: &str) -> Step {
    Step::Publish(uid(name))
}

fn unpublish(name: &str) -> Step {
    Step::Unpublish(uid(name))
}

fn failed(error: &str) -> CallOutcome {
    CallOutcome::Failed(error.to_owned())
}

fn unknown(error: &str) -> CallOutcome {
    CallOutcome::Unknown(error.to_owned())
}

fn not_called(error: &str) -> CallOutcome {
    CallOutcome::NotCalled(error.to_owned())
}

fn persistent() -> NodeVolume {
    NodeVolume::new(Lifecycle::Persistent)
}

/// A volume that these pods want.
fn wanted(pods: &[&str]) -> NodeVolume {
    let mut volume = persistent();
    for pod in pods {
        volume.want(&uid(pod), false);
    }
    volume
}

#[track_caller]
fn run(volume: &mut NodeVolume, step: Step, outcome: CallOutcome, now: Instant) {
    assert!(volume.begin(step.clone(), now), "{step} is not allowed");
    assert!(volume.ended(&step, outcome, now));
}

/// Carries out all steps successfully, and returns them with what remains.
fn settle(volume: &mut NodeVolume, facts: &VolumeFacts, now: Instant) -> (Vec<Step>, Next) {
    let mut steps = Vec::new();
    loop {
        match volume.evaluate(facts, now) {
            Next::Do(step) => {
                run(volume, step.clone(), CallOutcome::Done, now);
                steps.push(step);
            }
            next => return (steps, next),
        }
    }
}

fn reason(next: Next) -> WaitReason {
    match next {
        Next::Wait(wait) => wait.reason,
        next => panic!("{next:?} is no wait"),
    }
}

#[test]
fn a_volume_is_staged_once_published_for_each_pod_and_undone_after_the_last() {
    let now = clock::instant();
    let mut volume = wanted(&["a", "b"]);
    let (steps, next) = settle(&mut volume, &READY, now);
    assert_eq!(steps, [Step::Stage, publish("a"), publish("b")]);
    assert_eq!(next, Next::Idle);
    assert!(volume.is_ready(&uid("a")) && volume.is_in_use());
    volume.unwant(&uid("a"));
    let (steps, next) = settle(&mut volume, &READY, now);
    assert_eq!((steps, next), (vec![unpublish("a")], Next::Idle));
    volume.unwant(&uid("b"));
    let (steps, next) = settle(&mut volume, &READY, now);
    assert_eq!(steps, [unpublish("b"), Step::Unstage]);
    assert_eq!(next, Next::Forget);
    assert!(!volume.is_in_use() && volume.pods().is_empty());
}

#[test]
fn a_driver_without_staging_and_an_inline_volume_are_only_published() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    assert_eq!(settle(&mut volume, &NO_STAGING, now).0, [publish("a")]);
    volume.unwant(&uid("a"));
    let undone = settle(&mut volume, &NO_STAGING, now);
    assert_eq!(undone, (vec![unpublish("a")], Next::Forget));
    let mut inline = NodeVolume::new(Lifecycle::Ephemeral);
    inline.want(&uid("a"), false);
    let facts = VolumeFacts { is_attached: false, is_confirmed_in_use: false, ..READY };
    assert_eq!(settle(&mut inline, &facts, now).0, [publish("a")]);
    assert!(!inline.begin(Step::Stage, now));
}

#[test]
fn stage_and_publish_wait_for_the_attachment_and_every_step_for_the_driver() {
    let now = clock::instant();
    let unconfirmed = VolumeFacts { is_confirmed_in_use: false, ..READY };
    let detached = VolumeFacts { is_attached: false, ..READY };
    let unlisted = VolumeFacts { pods_are_known: false, ..READY };
    let free = VolumeFacts {
        attach_required: false,
        is_confirmed_in_use: false,
        is_attached: false,
        ..READY
    };
    let mut published = wanted(&["a"]);
    settle(&mut published, &READY, now);
    published.unwant(&uid("a"));
    let mut staged = published.clone();
    run(&mut staged, unpublish("a"), CallOutcome::Done, now);
    let mut stage_only = wanted(&["a"]);
    run(&mut stage_only, Step::Stage, CallOutcome::Done, now);
    let wait = |reason| Err(reason);
    for (what, volume, facts, expected) in [
        ("new", wanted(&["a"]), unconfirmed, wait(WaitReason::VolumesInUse)),
        ("new", wanted(&["a"]), detached, wait(WaitReason::Attach)),
        ("new", wanted(&["a"]), AWAY, wait(WaitReason::Driver)),
        ("new", wanted(&["a"]), unlisted, Ok(Step::Stage)),
        ("new", wanted(&["a"]), free, Ok(Step::Stage)),
        ("staged", stage_only.clone(), unconfirmed, wait(WaitReason::VolumesInUse)),
        ("staged", stage_only.clone(), detached, wait(WaitReason::Attach)),
        ("staged", stage_only, AWAY, wait(WaitReason::Driver)),
        ("unwanted", published.clone(), unconfirmed, Ok(unpublish("a"))),
        ("unwanted", published.clone(), detached, Ok(unpublish("a"))),
        ("unwanted", published.clone(), unlisted, Ok(unpublish("a"))),
        ("unwanted", published, AWAY, wait(WaitReason::Driver)),
        ("unpublished", staged.clone(), unconfirmed, Ok(Step::Unstage)),
        ("unpublished", staged.clone(), detached, Ok(Step::Unstage)),
        ("unpublished", staged.clone(), unlisted, wait(WaitReason::Pods)),
        ("unpublished", staged, AWAY, wait(WaitReason::Driver)),
    ] {
        let next = match volume.next(&facts, now) {
            Next::Do(step) => Ok(step),
            next => Err(reason(next)),
        };
        assert_eq!(next, expected, "{what} with {facts:?}");
    }
}

#[test]
fn an_outcome_settles_only_what_it_proves() {
    use Known::{No, Unknown, Yes};
    let (done, fails) = (CallOutcome::Done, failed("e"));
    let (open, none) = (unknown("e"), not_called("e"));
    for (step, before, expected) in [
        (Step::Stage, No, [Yes, No, Unknown, No]),
        (Step::Stage, Unknown, [Yes, Unknown, Unknown, Unknown]),
        (publish("a"), No, [Yes, No, Unknown, No]),
        (publish("a"), Unknown, [Yes, Unknown, Unknown, Unknown]),
        (Step::Republish(uid("a")), Yes, [Yes, Yes, Yes, Yes]),
        (unpublish("a"), Yes, [No, Unknown, Unknown, Yes]),
        (unpublish("a"), Unknown, [No, Unknown, Unknown, Unknown]),
        (Step::Unstage, Yes, [No, Unknown, Unknown, Yes]),
        (Step::Unstage, Unknown, [No, Unknown, Unknown, Unknown]),
    ] {
        let after = [&done, &fails, &open, &none].map(|end| settled(&step, before, end));
        assert_eq!(after, expected, "{step} after {before:?}");
    }
}

#[test]
fn an_unknown_stage_is_repeated_while_wanted_and_undone_afterwards() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    run(&mut volume, Step::Stage, unknown("deadline"), now);
    // A final error does not prove what the first call did.
    run(&mut volume, Step::Stage, failed("invalid"), now);
    assert_eq!(volume.staged(), Known::Unknown);
    let late = now + BACKOFF_CAP;
    assert_eq!(volume.next(&READY, late), Next::Do(Step::Stage));
    volume.unwant(&uid("a"));
    assert!(volume.is_in_use());
    assert_eq!(settle(&mut volume, &READY, now), (vec![Step::Unstage], Next::Forget));
}

#[test]
fn a_stage_that_never_was_is_forgotten() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    run(&mut volume, Step::Stage, failed("no such volume"), now);
    assert_eq!(volume.staged(), Known::No);
    assert!(volume.is_in_use());
    volume.unwant(&uid("a"));
    assert_eq!(volume.next(&READY, now), Next::Forget);
}

#[test]
fn after_a_failed_unstage_the_volume_is_staged_again_before_it_is_published() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    settle(&mut volume, &READY, now);
    volume.unwant(&uid("a"));
    run(&mut volume, unpublish("a"), CallOutcome::Done, now);
    run(&mut volume, Step::Unstage, failed("busy"), now);
    volume.want(&uid("b"), false);
    let (steps, _) = settle(&mut volume, &READY, now);
    assert_eq!(steps, [Step::Stage, publish("b")]);
}

#[test]
fn one_step_runs_at_a_time_and_is_unknown_meanwhile() {
    let now = clock::instant();
    let mut volume = wanted(&["a", "b"]);
    assert!(volume.begin(Step::Stage, now));
    assert_eq!(volume.staged(), Known::Unknown);
    assert_eq!(reason(volume.next(&READY, now)), WaitReason::Step(Step::Stage));
    assert!(!volume.begin(publish("a"), now));
    assert!(!volume.ended(&publish("a"), CallOutcome::Done, now));
    volume.unwant(&uid("a"));
    volume.unwant(&uid("b"));
    assert!(volume.is_in_use());
    assert!(volume.ended(&Step::Stage, CallOutcome::Done, now));
    assert_eq!(settle(&mut volume, &READY, now).0, [Step::Unstage]);
}

#[test]
fn steps_that_the_state_does_not_allow_do_not_begin() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    for step in [unpublish("a"), publish("x"), Step::Unstage, Step::Republish(uid("a"))] {
        assert!(!volume.begin(step.clone(), now), "{step}");
    }
    settle(&mut volume, &READY, now);
    for step in [Step::Stage, publish("a"), unpublish("a"), Step::Unstage] {
        assert!(!volume.begin(step.clone(), now), "{step}");
    }
}

#[test]
fn a_pod_that_is_wanted_again_waits_for_its_unpublish() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    settle(&mut volume, &READY, now);
    volume.unwant(&uid("a"));
    assert!(volume.begin(unpublish("a"), now));
    volume.want(&uid("a"), false);
    assert!(!volume.is_ready(&uid("a")));
    assert_eq!(reason(volume.next(&READY, now)), WaitReason::Step(unpublish("a")));
    assert!(volume.ended(&unpublish("a"), unknown("deadline"), now));
    assert_eq!(settle(&mut volume, &READY, now).0, [publish("a")]);
}

#[test]
fn one_pod_waits_for_the_other_if_only_one_may_have_the_volume() {
    let now = clock::instant();
    let mut volume = persistent();
    volume.want(&uid("b"), true);
    settle(&mut volume, &READY, now);
    volume.want(&uid("a"), true);
    let waits = || WaitReason::OtherPod(uid("b"));
    assert_eq!(reason(volume.evaluate(&READY, now)), waits());
    let text = volume.waits_for(Some(&uid("a")), now).unwrap();
    assert!(text.starts_with(SINGLE_POD), "{text}");
    assert_eq!(volume.waits_for(Some(&uid("b")), now), None);
    assert!(!volume.begin(publish("a"), now));
    volume.unwant(&uid("b"));
    run(&mut volume, unpublish("b"), unknown("deadline"), now);
    let waiting = volume.candidates(&READY, now);
    assert!(waiting.contains(&(publish("a"), Some(waits()))));
    let later = now + BACKOFF_CAP;
    assert_eq!(settle(&mut volume, &READY, later).0, [unpublish("b"), publish("a")]);
}

#[test]
fn pods_of_an_earlier_kubelet_stay_until_their_wish_is_known() {
    let now = clock::instant();
    let pods = ["a", "b"].map(uid);
    let mut volume = NodeVolume::recovered(Lifecycle::Persistent, true, pods);
    assert_eq!(reason(volume.next(&READY, now)), WaitReason::Pods);
    assert!(volume.is_in_use());
    volume.want(&uid("a"), false);
    let (steps, next) = settle(&mut volume, &READY, now);
    assert_eq!(steps, [Step::Stage, publish("a")]);
    assert_eq!(reason(next), WaitReason::Pods);
    volume.unwant(&uid("b"));
    assert_eq!(settle(&mut volume, &READY, now).0, [unpublish("b")]);
    let mut alone = NodeVolume::recovered(Lifecycle::Persistent, true, []);
    let unlisted = VolumeFacts { pods_are_known: false, ..READY };
    assert_eq!(reason(alone.next(&unlisted, now)), WaitReason::Pods);
    assert_eq!(settle(&mut alone, &READY, now), (vec![Step::Unstage], Next::Forget));
    // What a driver without staging may have staged is only a directory.
    let mut odd = NodeVolume::recovered(Lifecycle::Persistent, true, [uid("a")]);
    odd.want(&uid("a"), false);
    assert_eq!(settle(&mut odd, &NO_STAGING, now).0, [publish("a")]);
    odd.unwant(&uid("a"));
    assert_eq!(settle(&mut odd, &NO_STAGING, now).0, [unpublish("a"), Step::Unstage]);
}

#[test]
fn failures_have_a_back_off_of_their_own_step() {
    let now = clock::instant();
    let mut volume = wanted(&["a", "b"]);
    run(&mut volume, Step::Stage, CallOutcome::Done, now);
    let mut at = now;
    for expected in [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000] {
        run(&mut volume, publish("a"), unknown("e"), at);
        let Some((_, Some(WaitReason::Retry(retry)))) =
            volume.candidates(&READY, at).first().cloned()
        else {
            panic!("no back-off");
        };
        assert_eq!((retry - at).as_millis(), expected);
        assert_eq!(volume.next(&READY, at), Next::Do(publish("b")));
        at = retry;
    }
    run(&mut volume, publish("b"), CallOutcome::Done, at);
    assert_eq!(volume.failure(&publish("a")).unwrap().count, 10);
    assert_eq!(volume.next(&READY, at), Next::Do(publish("a")));
    run(&mut volume, publish("a"), not_called("e"), at);
    let Next::Wait(wait) = volume.next(&READY, at) else {
        panic!("no back-off");
    };
    assert_eq!(wait.retry_at, Some(at + BACKOFF_CAP));
    // An undo has no back-off yet, and neither has anything once the driver is registered.
    let mut unwanted = volume.clone();
    unwanted.unwant(&uid("a"));
    assert_eq!(unwanted.next(&READY, at), Next::Do(unpublish("a")));
    volume.driver_registered();
    assert_eq!(settle(&mut volume, &READY, at).0, [publish("a")]);
    assert_eq!(volume.failure(&publish("a")), None);
}

#[test]
fn a_republish_changes_nothing_that_is_there() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    volume.request_republish(&uid("a"));
    assert_eq!(settle(&mut volume, &READY, now).0, [Step::Stage, publish("a")]);
    volume.request_republish(&uid("a"));
    let step = Step::Republish(uid("a"));
    assert_eq!(volume.next(&READY, now), Next::Do(step.clone()));
    run(&mut volume, step.clone(), failed("denied"), now);
    assert!(volume.is_ready(&uid("a")));
    assert!(matches!(reason(volume.next(&READY, now)), WaitReason::Retry(_)));
    assert_eq!(settle(&mut volume, &READY, now + BACKOFF_CAP), (vec![step.clone()], Next::Idle));
    volume.request_republish(&uid("a"));
    assert!(volume.begin(step.clone(), now));
    volume.unwant(&uid("a"));
    assert!(volume.ended(&step, unknown("e"), now));
    assert_eq!(settle(&mut volume, &READY, now).0, [unpublish("a"), Step::Unstage]);
}

#[test]
fn a_pod_that_never_had_the_volume_leaves_nothing() {
    let now = clock::instant();
    let mut volume = persistent();
    volume.unwant(&uid("a"));
    assert_eq!(volume.next(&READY, now), Next::Forget);
    volume.want(&uid("a"), false);
    assert!(volume.is_in_use());
    volume.unwant(&uid("a"));
    assert_eq!(volume.next(&READY, now), Next::Forget);
}

#[test]
fn a_driver_that_no_longer_requires_attaching_is_honoured() {
    for (earlier, now, required) in [
        (None, true, true),
        (None, false, false),
        (Some(true), true, true),
        (Some(true), false, false),
        (Some(false), true, false),
    ] {
        assert_eq!(attach_required(earlier, now), required);
    }
}

#[test]
fn what_a_pod_waits_for_has_the_step_the_time_and_the_last_error() {
    let start = clock::instant();
    let at = |seconds| start + Duration::from_secs(seconds);
    let a = uid("a");
    let mut volume = wanted(&["a"]);
    let waits = |volume: &NodeVolume, seconds| volume.waits_for(Some(&a), at(seconds)).unwrap();
    volume.evaluate(&AWAY, at(0));
    volume.evaluate(&AWAY, at(3));
    let expected = "NodeStageVolume has been waiting for 5 s for the CSI driver to register";
    assert_eq!(waits(&volume, 5), expected);
    assert!(volume.begin(Step::Stage, at(5)));
    let expected = "NodeStageVolume has been running for 7 s";
    assert_eq!(waits(&volume, 12), expected);
    assert!(volume.ended(&Step::Stage, unknown("deadline"), at(12)));
    volume.evaluate(&READY, at(12));
    let expected = "NodeStageVolume failed 1 times, last 0 s ago: deadline; next attempt in 0 s";
    assert_eq!(waits(&volume, 12), expected);
    volume.evaluate(&AWAY, at(20));
    let expected = "NodeStageVolume has been waiting for 1 s for the CSI driver to register; last error: deadline";
    assert_eq!(waits(&volume, 21), expected);
    settle(&mut volume, &READY, at(30));
    assert_eq!(volume.waits_for(Some(&a), at(30)), None);
    assert_eq!(volume.waits_for(None, at(30)), None);
    volume.unwant(&a);
    run(&mut volume, unpublish("a"), CallOutcome::Done, at(30));
    volume.evaluate(&AWAY, at(30));
    let expected = "NodeUnstageVolume has been waiting for 0 s for the CSI driver to register";
    assert_eq!(volume.waits_for(None, at(30)).unwrap(), expected);
}

#[test]
fn an_error_of_a_driver_is_cut() {
    let now = clock::instant();
    let mut volume = wanted(&["a"]);
    run(&mut volume, Step::Stage, failed(&"ä".repeat(1 << 20)), now);
    assert_eq!(volume.failure(&Step::Stage).unwrap().error.len(), 1024);
}
