//! The machine alone.

use super::super::phase::*;
use super::super::state::*;
use super::super::update::*;
use super::*;
use crate::base::clock::{self, Instant};
use crate::model::{ContainerState, ContainerStatus};
use crate::pods::pod_sync::syncer::{NextSync, SyncDelay, SyncPodType, TerminationReason};
use SyncPodType::{Create, Sync, Update};
use TerminationReason::{Deleted, Orphaned, PodTerminal};
use std::time::Duration;

const REST: NextSync = NextSync { at: None, delay: SyncDelay::Resync };
const LIVE: SyncOutcome = SyncOutcome::SyncEnded { terminal: false, next: REST };

/// A state machine with a fake clock; each step returns its effects as one line.
struct Pod1 {
    state: PodSyncStatus,
    now: Instant,
}

fn first(options: UpdatePodOptions) -> (Pod1, String) {
    let now = clock::instant();
    let (state, effects) = PodSyncStatus::from_update(options, now).unwrap();
    let pod = Pod1 { state, now };
    let words = pod.words(&effects);
    (pod, words)
}

impl Pod1 {
    fn words(&self, effects: &[Effect]) -> String {
        let word = |effect: &Effect| match (effect, self.state.phase()) {
            (Effect::Deliver(SyncPodType::Kill), WorkerPhase::Terminating { grace, .. }) => {
                format!("kill:{}", grace.seconds())
            }
            (Effect::Deliver(SyncPodType::Kill), _) => "kill".into(),
            (Effect::Deliver(kind), _) => format!("deliver:{kind:?}"),
            (Effect::ShortenGrace(grace), _) => format!("shorten:{}", grace.grace_seconds),
            (other, _) => format!("{other:?}").to_lowercase(),
        };
        effects.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn on(&mut self, input: Input) -> String {
        let effects = self.state.on(input, self.now);
        self.words(&effects)
    }

    fn update(&mut self, options: UpdatePodOptions) -> String {
        self.on(Input::Update(options))
    }

    fn begin(&mut self) -> String {
        self.begin_for(None)
    }

    fn begin_for(&mut self, update: Option<SyncPodType>) -> String {
        match self.state.begin_call(update, self.now) {
            Some(PodSyncCall::Sync(_, kind)) => format!("sync:{kind:?}"),
            Some(PodSyncCall::Terminating(_, grace, _)) => format!("stop:{}", grace.grace_seconds),
            Some(PodSyncCall::TerminatingRuntime(_, grace)) => {
                format!("stop-runtime:{}", grace.grace_seconds)
            }
            Some(PodSyncCall::Terminated(_)) => "clean-up".into(),
            None => String::new(),
        }
    }

    /// The effects, then the delay or the next call.
    fn ended(&mut self, outcome: SyncOutcome) -> String {
        let (next, effects) = self.state.end_call(outcome);
        match next {
            Some(next) => format!("rest:{:?}", next.delay),
            None if effects.is_empty() => "continue".into(),
            None => self.words(&effects),
        }
    }

    fn later(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Whether its stop has begun.
    fn stops(&self) -> bool {
        matches!(self.state.phase(), WorkerPhase::Terminating { grace, .. } if grace.deadline().is_some())
    }

    fn termination(&self) -> Termination {
        self.state.termination().unwrap().clone()
    }
}

fn api() -> Arc<Pod> {
    Arc::new(api_pod("u", "web"))
}

fn fixed() -> Arc<Pod> {
    Arc::new(static_pod("u", "web"))
}

fn sync(kind: SyncPodType, pod: &Arc<Pod>) -> UpdatePodOptions {
    UpdatePodOptions::sync(kind, pod.clone())
}

fn kill(pod: &Arc<Pod>) -> UpdatePodOptions {
    UpdatePodOptions::kill(pod.clone(), Deleted)
}

fn syncing(pod: &Arc<Pod>) -> Pod1 {
    let (mut p, _) = first(sync(Create, pod));
    p.on(Input::MayStart);
    p.begin();
    assert_eq!(p.ended(LIVE), "rest:Resync");
    p
}

fn finished(pod: &Arc<Pod>) -> Pod1 {
    let mut p = syncing(pod);
    p.update(kill(pod));
    for _ in 0..2 {
        p.begin();
        p.ended(SyncOutcome::StopSucceeded);
    }
    assert!(p.state.is_finished());
    p
}

#[test]
fn a_pod_lives_from_create_to_finished() {
    let pod = api();
    let (mut p, said) = first(sync(Create, &pod));
    assert_eq!(said, "deliver:Create");
    assert_eq!(p.begin_for(Some(Create)), "sync:Create");
    assert_eq!(p.ended(LIVE), "rest:Resync");
    assert_eq!(p.begin(), "sync:Sync");
    assert_eq!(p.update(kill(&pod)), "cancelsync kill:30");
    assert!(!p.stops(), "the sync still runs");
    assert_eq!(p.ended(LIVE), "continue");
    assert_eq!(p.begin(), "stop:30");
    assert!(p.stops());
    for failures in 1..=2 {
        assert_eq!(p.ended(SyncOutcome::StopFailed), format!("rest:Stop({failures})"));
        assert_eq!(p.begin(), "stop:30");
    }
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "continue");
    assert!(matches!(p.state.phase(), WorkerPhase::Terminated { .. }));
    assert_eq!(p.begin(), "clean-up");
    assert_eq!(p.ended(SyncOutcome::StopFailed), "rest:Stop(1)");
    assert_eq!(p.begin(), "clean-up");
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "releasename markfinished");
    assert!(p.state.is_finished());
}

#[test]
fn a_pod_that_ends_by_itself_is_stopped_at_once() {
    let pod = api();
    let mut p = syncing(&pod);
    p.begin();
    let over = SyncOutcome::SyncEnded { terminal: true, next: REST };
    assert_eq!(p.ended(over), "continue");
    assert_eq!(p.termination().reason, PodTerminal);
    assert_eq!(p.begin(), "stop:30");
}

#[test]
fn what_makes_a_pod_end() {
    let evicted = TerminationReason::Evicted {
        disruption: true,
        reason: "Evicted".into(),
        message: "memory".into(),
    };
    let gone = Arc::new(deleted(api_pod("u", "web"), None));
    let failed = Arc::new(in_phase(api_pod("u", "web"), "Failed"));
    let succeeded = Arc::new(in_phase(api_pod("u", "web"), "Succeeded"));
    let orphan = UpdatePodOptions::orphan(in_runtime("u", "web", true));
    for (options, reason) in [
        (sync(Update, &gone), Deleted),
        (sync(Sync, &failed), PodTerminal),
        (sync(Update, &succeeded), PodTerminal),
        (kill(&api()), Deleted),
        (UpdatePodOptions::kill(api(), evicted.clone()), evicted),
        (orphan, Orphaned),
    ] {
        let mut p = syncing(&api());
        p.update(options.clone());
        let expected = Termination { reason, restart_requested: false };
        assert_eq!(p.termination(), expected, "{options:?}");
    }
}

#[test]
fn the_first_reason_to_end_stays() {
    let mut p = syncing(&api());
    p.update(sync(Update, &Arc::new(in_phase(api_pod("u", "web"), "Failed"))));
    p.update(sync(Update, &Arc::new(deleted(api_pod("u", "web"), None))));
    assert_eq!(p.termination(), Termination { reason: PodTerminal, restart_requested: false });
}

#[test]
fn grace_is_the_least_of_those_given_and_at_least_a_second() {
    let own = |grace| {
        let mut pod = api_pod("u", "web");
        pod.spec.as_mut().unwrap().termination_grace_period_seconds = grace;
        Arc::new(pod)
    };
    let api = |grace| Arc::new(deleted(api_pod("u", "web"), Some(grace)));
    for (options, seconds) in [
        (kill(&own(Some(45))), 45),
        (kill(&own(None)), 30),
        (kill(&own(Some(0))), 1),
        (kill(&own(Some(45))).with_grace(60), 60),
        (kill(&own(Some(45))).with_grace(5), 5),
        (kill(&own(Some(45))).with_grace(0), 1),
        (kill(&own(Some(45))).with_grace(-7), 1),
        (kill(&api(20)), 20),
        (kill(&api(0)), 1),
        (kill(&api(20)).with_grace(10), 10),
        (kill(&api(20)).with_grace(40), 20),
    ] {
        let mut p = syncing(&own(Some(45)));
        p.update(options.clone());
        assert_eq!(p.begin(), format!("stop:{seconds}"), "{options:?}");
    }
}

#[test]
fn grace_runs_from_the_moment_stopping_begins_and_only_shrinks() {
    let pod = api();
    let mut p = syncing(&pod);
    p.begin();
    p.update(kill(&pod));
    p.later(20);
    p.ended(LIVE);
    assert_eq!(p.begin(), "stop:30");
    let begun = p.now;
    p.later(10);
    assert_eq!(p.update(kill(&pod).with_grace(25)), "kill:25", "would end later than now planned");
    assert_eq!(p.update(kill(&pod).with_grace(5)), "shorten:5 kill:5");
    assert_eq!(p.update(kill(&pod).with_grace(8)), "kill:5");
    assert_eq!(p.update(sync(Sync, &pod)), "kill:5");
    p.ended(SyncOutcome::StopFailed);
    p.later(100);
    let call = p.state.begin_call(None, p.now).unwrap();
    let deadline = call.deadline().unwrap().deadline;
    assert_eq!(deadline, begun + Duration::from_secs(15));
}

#[test]
fn a_pod_that_is_to_start_again_ends_as_soon_as_a_later_deletion_says() {
    let slow = Arc::new(deleted(api_pod("u", "web"), Some(60)));
    let mut p = syncing(&api());
    p.update(sync(Update, &slow));
    assert_eq!(p.begin(), "stop:60");
    // It was missing from a list, came back, and is deleted again.
    p.update(sync(Create, &api()));
    assert!(p.state.restart_requested());
    let quick = Arc::new(deleted(api_pod("u", "web"), Some(1)));
    assert_eq!(p.update(sync(Update, &quick)), "shorten:1 kill:1");
}

#[test]
fn a_longer_override_is_not_cut_by_later_updates() {
    let pod = api();
    let mut p = syncing(&pod);
    p.update(kill(&pod).with_grace(60));
    assert_eq!(p.begin(), "stop:60");
    assert_eq!(p.update(sync(Sync, &pod)), "kill:60");
}

#[test]
fn a_pod_of_which_only_the_runtime_knows_is_killed() {
    let running = in_runtime("u", "web", true);
    let (mut p, said) = first(UpdatePodOptions::orphan(running.clone()));
    assert_eq!(said, "blockname kill:1");
    assert_eq!(p.begin(), "stop-runtime:1");
    assert_eq!(p.update(UpdatePodOptions::orphan(running)), "kill:1");
    assert_eq!(p.ended(SyncOutcome::StopFailed), "rest:Stop(1)");
    assert_eq!(p.begin(), "stop-runtime:1");
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "releasename forget");
}

#[test]
fn a_replaced_orphan_keeps_the_grace_period_of_its_containers() {
    let with_grace = |grace_seconds| {
        let running = ContainerStatus {
            state: ContainerState::Running,
            grace_seconds,
            ..ContainerStatus::default()
        };
        let mut status = PodStatus::clone(&in_runtime("u", "web", true));
        status.containers = vec![running];
        UpdatePodOptions::replaced_orphan(Arc::new(status))
    };
    assert_eq!(first(with_grace(None)).1, "blockname kill:1");
    let (mut p, said) = first(with_grace(Some(20)));
    assert_eq!(said, "blockname kill:20");
    assert_eq!(p.begin(), "stop-runtime:20");
    assert_eq!(p.update(sync(Create, &fixed())), "");
    assert_eq!(p.update(sync(Sync, &fixed())), "kill:20");
    let orphan = UpdatePodOptions::orphan(in_runtime("u", "web", true));
    assert_eq!(p.update(orphan), "kill:20");
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "releasename forget");
}

#[test]
fn what_is_left_to_do_for_an_end_is_tried_again_when_the_runtime_status_changes() {
    let pod = api();
    let (mut starting, _) = first(sync(Create, &pod));
    assert_eq!(starting.on(Input::RuntimeStatusChanged), "");
    let mut p = syncing(&pod);
    assert_eq!(p.on(Input::RuntimeStatusChanged), "");
    p.update(kill(&pod));
    p.begin();
    assert_eq!(p.ended(SyncOutcome::StopFailed), "rest:Stop(1)");
    assert_eq!(p.on(Input::RuntimeStatusChanged), "kill:30");
    p.begin();
    p.ended(SyncOutcome::StopSucceeded);
    assert_eq!(p.on(Input::RuntimeStatusChanged), "kill");
    assert_eq!(finished(&pod).on(Input::RuntimeStatusChanged), "");
}

#[test]
fn a_spec_that_was_seen_is_used_to_kill_what_the_runtime_shows() {
    let mut p = syncing(&api());
    assert_eq!(p.update(UpdatePodOptions::orphan(in_runtime("u", "web", true))), "kill:30");
    assert_eq!(p.begin(), "stop:30");
}

#[test]
fn a_spec_that_comes_later_is_used_to_stop_once_more() {
    let (mut p, _) = first(UpdatePodOptions::orphan(in_runtime("u", "web", true)));
    p.begin();
    assert_eq!(p.update(kill(&api())), "kill:1");
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "continue");
    assert_eq!(p.begin(), "stop:1");
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "continue");
    assert_eq!(p.begin(), "clean-up");
}

#[test]
fn a_terminal_pod_seen_first_is_only_cleaned_up_unless_it_may_run() {
    let over = Arc::new(in_phase(api_pod("u", "web"), "Succeeded"));
    let (mut p, said) =
        first(sync(Create, &over).with_runtime_status(in_runtime("u", "web", false)));
    assert_eq!(said, "deliver:Create");
    assert!(matches!(p.state.phase(), WorkerPhase::Terminated { .. }));
    assert_eq!(p.begin(), "clean-up");
    for options in
        [sync(Create, &over).with_runtime_status(in_runtime("u", "web", true)), sync(Create, &over)]
    {
        let (mut p, said) = first(options);
        assert_eq!(said, "kill:30");
        assert_eq!(p.begin(), "stop:30");
    }
}

#[test]
fn a_terminating_pod_keeps_its_own_spec_when_its_uid_is_added_again() {
    let named = |command: &str| {
        let mut pod = static_pod("u", "web");
        let labels = [("made".to_string(), command.to_string())];
        pod.metadata.labels = Some(labels.into());
        Arc::new(pod)
    };
    let made = |call: Option<PodSyncCall>| match call {
        Some(PodSyncCall::Terminating(pod, ..) | PodSyncCall::Terminated(pod)) => {
            pod.metadata.labels.clone().unwrap_or_default()["made"].clone()
        }
        other => panic!("{other:?}"),
    };
    let (mut p, _) = first(UpdatePodOptions::sync(Create, named("first")));
    p.on(Input::MayStart);
    p.begin();
    p.ended(LIVE);
    p.update(UpdatePodOptions::kill(named("first"), Deleted));
    p.update(UpdatePodOptions::sync(Create, named("second")));
    p.update(UpdatePodOptions::sync(Sync, named("second")));
    assert_eq!(made(p.state.begin_call(None, p.now)), "first");
    // A kill of the second one still hurries the first.
    let hurried = p.update(UpdatePodOptions::kill(named("second"), Deleted).with_grace(1));
    assert_eq!(hurried, "shorten:1 kill:1");
    p.ended(SyncOutcome::StopSucceeded);
    p.update(UpdatePodOptions::sync(Update, named("second")));
    assert_eq!(made(p.state.begin_call(None, p.now)), "first");
    assert!(p.termination().restart_requested);
}

#[test]
fn a_uid_that_is_added_again_restarts_after_its_end_and_not_before() {
    let pod = api();
    let mut p = syncing(&pod);
    p.update(kill(&pod));
    p.begin();
    assert_eq!(p.update(sync(Create, &pod)), "");
    assert!(p.termination().restart_requested);
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "continue");
    assert_eq!(p.update(sync(Create, &pod)), "");
    assert_eq!(p.begin(), "clean-up");
    assert_eq!(p.ended(SyncOutcome::StopSucceeded), "releasename markfinished");
    assert!(p.termination().restart_requested);
}

#[test]
fn a_finished_pod_ignores_all_but_being_added_again_and_being_forgotten() {
    let pod = api();
    let mut p = finished(&pod);
    for options in [
        sync(Update, &pod),
        sync(Sync, &pod),
        kill(&pod),
        UpdatePodOptions::orphan(in_runtime("u", "web", true)),
    ] {
        assert_eq!(p.update(options), "");
    }
    assert_eq!(p.on(Input::MayStart), "");
    assert_eq!(p.begin(), "");
    p.ended(LIVE);
    assert!(p.state.is_finished());
    assert_eq!(p.update(sync(Create, &pod)), "markfinished");
    assert_eq!(p.begin(), "");
    assert_eq!(p.on(Input::NotDesired), "forget");
}

#[test]
fn a_terminated_pod_ignores_old_runtime_statuses() {
    let pod = api();
    let mut p = syncing(&pod);
    p.update(kill(&pod));
    p.begin();
    p.ended(SyncOutcome::StopSucceeded);
    assert_eq!(p.update(UpdatePodOptions::orphan(in_runtime("u", "web", true))), "");
    assert_eq!(p.update(kill(&pod)), "kill");
}

#[test]
fn a_static_pod_waits_in_the_queue_and_keeps_the_strongest_update() {
    let pod = fixed();
    let (mut p, said) = first(sync(Create, &pod));
    assert_eq!(said, "queuestart");
    assert_eq!(p.update(sync(Update, &pod)), "");
    assert_eq!(p.begin(), "", "not before the gate opens");
    assert_eq!(p.on(Input::MayStart), "deliver:Create");
    assert_eq!(p.on(Input::MayStart), "", "only once");
    assert_eq!(p.begin(), "sync:Sync");
}

#[test]
fn a_static_pod_killed_before_it_ran_is_finished_without_a_sync() {
    let pod = fixed();
    let nothing = || in_runtime("u", "web", false);
    let (mut waiting, _) = first(sync(Create, &pod).with_runtime_status(nothing()));
    assert_eq!(waiting.update(kill(&pod)), "releasename markfinished");
    let (mut starting, _) = first(sync(Create, &pod).with_runtime_status(nothing()));
    starting.on(Input::MayStart);
    assert_eq!(starting.update(kill(&pod)), "releasename markfinished");
    assert_eq!(starting.begin(), "");
    let (at_first_sight, said) = first(kill(&pod).with_runtime_status(nothing()));
    assert_eq!(said, "releasename markfinished");
    assert!(at_first_sight.state.is_finished());
}

#[test]
fn a_pod_that_may_run_already_is_stopped_properly() {
    let pod = fixed();
    for seen in [None, Some(in_runtime("u", "web", true))] {
        let mut options = sync(Create, &pod);
        options.runtime_status = seen;
        let (mut p, _) = first(options);
        assert_eq!(p.update(kill(&pod)), "blockname kill:30");
        assert_eq!(p.begin(), "stop:30");
    }
    let (mut p, said) = first(kill(&api()).with_runtime_status(in_runtime("u", "web", false)));
    assert_eq!(said, "kill:30", "an API pod needs its final status");
    assert_eq!(p.begin(), "stop:30");
}

#[test]
fn an_unwanted_pod_is_stopped_or_forgotten() {
    let pod = fixed();
    let (mut never, _) =
        first(sync(Create, &pod).with_runtime_status(in_runtime("u", "web", false)));
    assert_eq!(never.on(Input::NotDesired), "releasename forget");
    let (mut maybe, _) = first(sync(Create, &pod));
    assert_eq!(maybe.on(Input::NotDesired), "blockname kill:30");
    let mut p = syncing(&pod);
    assert_eq!(p.on(Input::NotDesired), "blockname kill:30");
    assert_eq!(p.on(Input::NotDesired), "", "a stop that failed has its own delay");
    p.begin();
    p.ended(SyncOutcome::StopSucceeded);
    assert_eq!(p.on(Input::NotDesired), "");
    p.begin();
    p.ended(SyncOutcome::StopSucceeded);
    assert_eq!(p.on(Input::NotDesired), "forget");
}

#[test]
fn a_second_sync_never_begins_while_one_runs() {
    let pod = api();
    let mut p = syncing(&pod);
    assert_eq!(p.begin(), "sync:Sync");
    assert_eq!(p.begin(), "");
    p.update(kill(&pod));
    assert_eq!(p.begin(), "", "not even a kill");
}

#[test]
fn a_status_only_change_replaces_the_pod_without_a_sync() {
    let held = |pod: &mut Pod1| match pod.state.begin_call(None, pod.now) {
        Some(PodSyncCall::Sync(pod, _) | PodSyncCall::Terminating(pod, ..)) => pod,
        other => panic!("{other:?}"),
    };
    let (mut pod, _) = first(sync(Create, &api()));
    pod.begin();
    let newer = api();
    assert_eq!(pod.on(Input::Refreshed(newer.clone())), "");
    pod.ended(LIVE);
    assert!(Arc::ptr_eq(&held(&mut pod), &newer));
    pod.ended(LIVE);
    let kill = UpdatePodOptions::kill(newer.clone(), Deleted);
    pod.update(kill);
    assert_eq!(pod.on(Input::Refreshed(api())), "");
    assert!(Arc::ptr_eq(&held(&mut pod), &newer), "it ends as it was");
}

#[test]
fn a_pod_that_needs_what_is_not_supported_is_synced_ever_more_seldom_until_it_is_supported() {
    let mut p = syncing(&api());
    let with = |delay: SyncDelay| SyncOutcome::SyncEnded { terminal: false, next: delay.into() };
    let unsupported = with(SyncDelay::Unsupported(1));
    for (outcome, expected) in [
        (unsupported, "rest:Unsupported(1)"),
        (unsupported, "rest:Unsupported(2)"),
        (unsupported, "rest:Unsupported(3)"),
        (with(SyncDelay::Error), "rest:Error"),
        (unsupported, "rest:Unsupported(1)"),
    ] {
        p.begin();
        assert_eq!(p.ended(outcome), expected);
    }
}
