//! The state machine: tables for each rule.

use crate::base::clock::{self, Instant};
use crate::model::ContainerId;
use crate::model::ProbeKind::{self, Liveness, Readiness, Startup};
use crate::model::ProbeResult::{self, Failure, Success, Unknown};
use crate::pods::prober::state::{
    Attempt, InstanceState, ProbeAction, ProbeDecision, ProbeFacts, ProbeRules, ProbeState,
    ProbedInstance,
};
use crate::runtime::handlers::ProbeOutcome;
use std::time::Duration;

pub(super) const KINDS: [ProbeKind; 3] = [Liveness, Readiness, Startup];
const S: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(10);

pub(super) fn rules(kind: ProbeKind) -> ProbeRules {
    ProbeRules {
        kind,
        period: PERIOD,
        initial_delay: Duration::ZERO,
        success_threshold: 2,
        failure_threshold: 3,
        runs_command: false,
    }
}

pub(super) fn in_state(id: &str, life: InstanceState) -> ProbeFacts {
    ProbeFacts {
        container: Some(ProbedInstance { id: id.into(), state: life, predates_kubelet: false }),
        ..ProbeFacts::default()
    }
}

pub(super) fn running(id: &str) -> ProbeFacts {
    in_state(id, InstanceState::Running(Duration::ZERO))
}

pub(super) fn started(id: &str) -> ProbeFacts {
    ProbeFacts { started: true, ..running(id) }
}

/// What lets a probe of this kind run.
pub(super) fn open(kind: ProbeKind, id: &str) -> ProbeFacts {
    match kind {
        Startup => running(id),
        _ => started(id),
    }
}

pub(super) fn ok() -> ProbeOutcome {
    ProbeOutcome::Success { output: String::new() }
}

pub(super) fn bad() -> ProbeOutcome {
    ProbeOutcome::Failure { output: String::new() }
}

pub(super) fn error() -> ProbeOutcome {
    ProbeOutcome::Unknown { error: String::new() }
}

pub(super) fn set(id: &str, probe_result: ProbeResult) -> Option<(ContainerId, ProbeResult)> {
    Some((id.into(), probe_result))
}

fn run(id: &str) -> ProbeAction {
    ProbeAction::Run(id.into(), Attempt::Periodic)
}

/// Reports an outcome that counts.
fn probed(
    state: &mut ProbeState,
    facts: &ProbeFacts,
    id: &ContainerId,
    outcome: &ProbeOutcome,
) -> Option<(ContainerId, ProbeResult)> {
    state.probed(facts, id, Attempt::Periodic, outcome, clock::instant())
}

/// A probe that has just been sent for the first time.
fn probing(kind: ProbeKind) -> (ProbeState, ProbeFacts, Instant) {
    let mut now = clock::instant();
    let facts = open(kind, "c1");
    let mut state = ProbeState::new(rules(kind), 0.5);
    if let ProbeAction::Until(at) = state.decide(&facts, now).next {
        now = at;
        assert_eq!(state.decide(&facts, now).next, run("c1"));
    }
    (state, facts, now)
}

#[test]
fn a_new_instance_gets_the_initial_result_of_its_kind() {
    for (kind, probe_result) in [(Readiness, Failure), (Liveness, Success), (Startup, Unknown)] {
        let decision = ProbeState::new(rules(kind), 0.0).decide(&running("c1"), clock::instant());
        assert_eq!(decision.set, set("c1", probe_result), "{kind}");
        assert_eq!(decision.forget, None);
    }
}

#[test]
fn an_instance_older_than_the_kubelet_has_no_result_until_it_was_probed() {
    for kind in KINDS {
        let mut facts = open(kind, "c1");
        facts.container.as_mut().unwrap().predates_kubelet = true;
        let decision = ProbeState::new(rules(kind), 0.5).decide(&facts, clock::instant());
        assert_eq!(decision.set, None, "{kind}");
        assert!(matches!(decision.next, ProbeAction::Until(_)), "{kind}");
    }
}

#[test]
fn a_replaced_instance_is_forgotten_and_its_row_with_it() {
    let (mut state, facts, now) = probing(Readiness);
    assert_eq!(probed(&mut state, &facts, &"c1".into(), &ok()), None);
    let decision = state.decide(&started("c2"), now);
    assert_eq!(
        decision,
        ProbeDecision { forget: Some("c1".into()), set: set("c2", Failure), next: run("c2") }
    );
    let second = started("c2");
    assert_eq!(probed(&mut state, &second, &"c2".into(), &ok()), None);
    assert_eq!(probed(&mut state, &second, &"c2".into(), &ok()), set("c2", Success));
}

#[test]
fn without_a_container_there_is_nothing_to_do_until_something_changes() {
    for kind in KINDS {
        let decision =
            ProbeState::new(rules(kind), 0.0).decide(&ProbeFacts::default(), clock::instant());
        assert_eq!(decision.next, ProbeAction::Idle);
        assert_eq!((decision.set, decision.forget), (None, None));
    }
}

#[test]
fn a_terminal_pod_ends_every_probe() {
    for kind in KINDS {
        let facts = ProbeFacts { pod_terminal: true, ..open(kind, "c1") };
        let decision = ProbeState::new(rules(kind), 0.0).decide(&facts, clock::instant());
        assert_eq!(decision.next, ProbeAction::Exit);
    }
}

#[test]
fn an_exited_instance_has_failed_and_ends_the_probe_if_none_follows() {
    for kind in KINDS {
        for (restarts, next) in [(true, ProbeAction::Idle), (false, ProbeAction::Exit)] {
            let (mut state, _, now) = probing(kind);
            let decision = state.decide(&in_state("c1", InstanceState::Exited { restarts }), now);
            // Liveness begins at Success and the others below it; all end at Failure.
            let changed = (kind != Readiness).then(|| ("c1".into(), Failure));
            assert_eq!((decision.set, decision.next), (changed, next), "{kind} {restarts}");
        }
    }
}

#[test]
fn an_instance_that_was_never_started_is_not_ready_but_not_dead_either() {
    for (kind, probe_result) in [(Readiness, Failure), (Liveness, Success), (Startup, Unknown)] {
        let decision = ProbeState::new(rules(kind), 0.0)
            .decide(&in_state("c1", InstanceState::CreatedOrUnknown), clock::instant());
        assert_eq!(
            (decision.set, decision.next),
            (set("c1", probe_result), ProbeAction::Idle),
            "{kind}"
        );
    }
}

#[test]
fn a_pod_on_its_way_out_keeps_only_its_readiness_probes() {
    for kind in [Liveness, Startup] {
        let (mut state, facts, now) = probing(kind);
        let facts = ProbeFacts { deleting: true, ..facts };
        let decision = state.decide(&facts, now + PERIOD);
        assert_eq!(decision.next, ProbeAction::Exit, "{kind}");
        assert_eq!(state.probe_result(), Some(Success), "{kind}");
    }
    let (mut state, facts, now) = probing(Readiness);
    let facts = ProbeFacts { deleting: true, ..facts };
    assert_eq!(state.decide(&facts, now + PERIOD).next, run("c1"));
}

#[test]
fn no_probe_runs_before_the_initial_delay_is_over() {
    let delayed = ProbeRules { initial_delay: 5 * S, ..rules(Readiness) };
    let mut state = ProbeState::new(delayed, 0.0);
    let now = clock::instant();
    let facts = |age| ProbeFacts { started: true, ..in_state("c1", InstanceState::Running(age)) };
    assert_eq!(state.decide(&facts(2 * S), now).next, ProbeAction::Until(now + 3 * S));
    assert_eq!(state.decide(&facts(4 * S), now + 2 * S).next, ProbeAction::Until(now + 3 * S));
    assert_eq!(state.decide(&facts(5 * S), now + 3 * S).next, run("c1"));
}

#[test]
fn a_wall_clock_that_jumps_does_not_move_the_initial_delay() {
    let delayed = ProbeRules { initial_delay: 5 * S, ..rules(Readiness) };
    let mut state = ProbeState::new(delayed, 0.0);
    let now = clock::instant();
    assert_eq!(state.decide(&started("c1"), now).next, ProbeAction::Until(now + 5 * S));
    // The clock went back: the container seems to be younger than ever.
    assert_eq!(state.decide(&started("c1"), now + 5 * S).next, run("c1"));
}

#[test]
fn only_the_startup_probe_runs_before_the_start_and_not_after_it() {
    let now = clock::instant();
    for kind in KINDS {
        let mut state = ProbeState::new(rules(kind), 0.0);
        let (closed, next) = match kind {
            Startup => (started("c1"), running("c1")),
            _ => (running("c1"), started("c1")),
        };
        assert_eq!(state.decide(&closed, now).next, ProbeAction::Idle, "{kind}");
        assert_eq!(state.decide(&next, now).next, run("c1"), "{kind}");
    }
}

#[test]
fn readiness_and_startup_are_probed_at_once_and_liveness_within_its_first_period() {
    let now = clock::instant();
    for (kind, next) in [
        (Readiness, run("c1")),
        (Startup, run("c1")),
        (Liveness, ProbeAction::Until(now + PERIOD / 2)),
    ] {
        let decision = ProbeState::new(rules(kind), 0.5).decide(&open(kind, "c1"), now);
        assert_eq!(decision.next, next, "{kind}");
    }
}

#[test]
fn probes_tick_on_a_grid_and_skip_what_a_slow_one_missed() {
    let (mut state, facts, begun) = probing(Liveness);
    let table = [
        // Decided early, nothing runs.
        (S, ProbeAction::Until(begun + PERIOD)),
        (PERIOD, run("c1")),
        // One that took a little longer than a period is followed at once, back on the grid.
        (2 * PERIOD + S, run("c1")),
        (2 * PERIOD + 2 * S, ProbeAction::Until(begun + 3 * PERIOD)),
        // One that took for ever is followed by one, not by many.
        (9 * PERIOD + S, run("c1")),
        (9 * PERIOD + 2 * S, ProbeAction::Until(begun + 10 * PERIOD)),
    ];
    for (at, next) in table {
        assert_eq!(state.decide(&facts, begun + at).next, next, "{at:?}");
    }
}

#[test]
fn results_need_as_many_equal_outcomes_in_a_row_as_the_threshold() {
    let (mut state, facts, _) = probing(Readiness);
    let id = ContainerId::from("c1");
    let table = [
        (ok(), None),
        (bad(), None),
        (ok(), None),
        (ok(), set("c1", Success)),
        (ok(), None),
        (bad(), None),
        (bad(), None),
        (ok(), None),
        (bad(), None),
        (bad(), None),
        (bad(), set("c1", Failure)),
        (bad(), None),
    ];
    for (step, (outcome, probe_result)) in table.into_iter().enumerate() {
        assert_eq!(probed(&mut state, &facts, &id, &outcome), probe_result, "step {step}");
    }
}

#[test]
fn a_run_that_could_not_be_carried_out_neither_counts_nor_breaks_a_row() {
    let (mut state, facts, _) = probing(Readiness);
    let id = ContainerId::from("c1");
    assert_eq!(probed(&mut state, &facts, &id, &ok()), None);
    assert_eq!(probed(&mut state, &facts, &id, &error()), None);
    assert_eq!(probed(&mut state, &facts, &id, &ok()), set("c1", Success));
}

#[test]
fn a_warning_is_a_success() {
    let (mut state, facts, _) = probing(Readiness);
    let id = ContainerId::from("c1");
    let warning = ProbeOutcome::Warning { output: "moved".into() };
    probed(&mut state, &facts, &id, &warning);
    assert_eq!(probed(&mut state, &facts, &id, &warning), set("c1", Success));
}

#[test]
fn a_dead_or_started_instance_is_left_alone_until_another_comes() {
    for (kind, outcome, probe_result) in
        [(Liveness, bad(), Failure), (Startup, bad(), Failure), (Startup, ok(), Success)]
    {
        let (mut state, facts, now) = probing(kind);
        let id = ContainerId::from("c1");
        let settled = (0..3).find_map(|_| probed(&mut state, &facts, &id, &outcome));
        assert_eq!(settled, set("c1", probe_result), "{kind}");
        let decision = state.decide(&facts, now + 5 * PERIOD);
        assert_eq!((decision.set, decision.next), (None, ProbeAction::Idle), "{kind}");
        let decision = state.decide(&in_state("c1", InstanceState::Exited { restarts: true }), now);
        assert_eq!((decision.set, decision.next), (None, ProbeAction::Idle), "{kind}");
        assert_eq!(state.decide(&open(kind, "c2"), now).forget, Some(id), "{kind}");
        assert!(state.is_current(&"c2".into()));
    }
}

#[test]
fn what_an_instance_does_while_it_ends_is_not_held_against_it() {
    let (mut state, _, _) = probing(Liveness);
    let id = ContainerId::from("c1");
    for facts in [
        ProbeFacts::default(),
        running("c2"),
        in_state("c1", InstanceState::Exited { restarts: true }),
    ] {
        for _ in 0..5 {
            assert_eq!(probed(&mut state, &facts, &id, &bad()), None);
        }
    }
}

#[test]
fn a_recorded_result_stands_until_outcomes_change_it() {
    let now = clock::instant();
    let facts = ProbeFacts { recorded_result: Some(Success), ..started("c1") };
    for kind in [Readiness, Liveness] {
        let mut state = ProbeState::new(rules(kind), 0.5);
        let decision = state.decide(&facts, now);
        assert_eq!(decision.set, set("c1", Success), "{kind}");
        assert_eq!(decision.next, ProbeAction::Until(now + PERIOD / 2), "{kind}");
        let again = ProbeFacts { recorded_result: None, ..facts.clone() };
        assert_eq!(state.decide(&again, now + PERIOD / 2).next, run("c1"), "{kind}");
        let id = ContainerId::from("c1");
        let probe_results: Vec<_> =
            (0..3).map(|_| probed(&mut state, &again, &id, &bad())).collect();
        assert_eq!(probe_results, [None, None, set("c1", Failure)], "{kind}");
    }
}

#[test]
fn a_remembered_end_of_probing_is_remembered_too() {
    for (kind, probe_result) in [(Liveness, Failure), (Startup, Success), (Startup, Failure)] {
        let facts = ProbeFacts { recorded_result: Some(probe_result), ..open(kind, "c1") };
        let decision = ProbeState::new(rules(kind), 0.5).decide(&facts, clock::instant());
        assert_eq!(
            (decision.set, decision.next),
            (set("c1", probe_result), ProbeAction::Idle),
            "{kind}"
        );
    }
}
