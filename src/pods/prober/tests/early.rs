//! The rules of early attempts: tables, and properties of whole histories of a container.

use super::rules::{bad, error, in_state, ok, open, rules, started};
use crate::base::clock::{self, Instant};
use crate::model::ProbeKind::{self, Liveness, Readiness, Startup};
use crate::model::ProbeResult::{self, Failure, Success};
use crate::pods::prober::state::Attempt::{self, Early, Periodic};
use crate::pods::prober::state::{InstanceState, ProbeAction, ProbeFacts, ProbeRules, ProbeState};
use crate::runtime::handlers::ProbeOutcome;
use proptest::prelude::*;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const Z: Duration = Duration::ZERO;

fn once(kind: ProbeKind, period: Duration) -> ProbeRules {
    ProbeRules { period, success_threshold: 1, ..rules(kind) }
}

/// One run of a probe; times are since the start of the container.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    began: Duration,
    ended: Duration,
    attempt: Attempt,
}

/// A container, and the probe that it gets.
struct History {
    state: ProbeState,
    facts: ProbeFacts,
    start: Instant,
    now: Instant,
    runs: Vec<Run>,
    /// Results that were published, with their times.
    results: Vec<(Duration, ProbeResult)>,
}

impl History {
    fn new(rules: ProbeRules) -> Self {
        let now = clock::instant();
        Self {
            state: ProbeState::new(rules, 0.5),
            facts: open(rules.kind, "c1"),
            start: now,
            now,
            runs: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Time passes until `end`, with syncs at these times, while a run that begins at some time has this outcome after this
    /// duration.
    fn pass(
        &mut self,
        end: Duration,
        syncs: &[Duration],
        answers: impl Fn(Duration) -> (ProbeOutcome, Duration),
    ) {
        let end = self.start + end;
        let mut syncs = syncs.iter().map(|at| self.start + *at).peekable();
        while self.now < end {
            self.facts.synced = syncs.next_if(|at| *at <= self.now).is_some();
            let decision = self.state.decide(&self.facts, self.now);
            let wake = match decision.next {
                ProbeAction::Run(id, attempt) => {
                    let began = self.now - self.start;
                    let (outcome, took) = answers(began);
                    self.now += took;
                    let ended = self.now - self.start;
                    self.runs.push(Run { began, ended, attempt });
                    let facts = self.facts.clone();
                    let result = self.state.probed(&facts, &id, attempt, &outcome, self.now);
                    self.results.extend(result.map(|(_, result)| (ended, result)));
                    continue;
                }
                ProbeAction::Until(at) => at,
                ProbeAction::Idle | ProbeAction::Exit => end,
            };
            let wake = syncs.peek().map_or(wake, |sync| wake.min(*sync));
            self.now = wake.min(end).max(self.now);
        }
    }

    fn when(&self, result: ProbeResult) -> Option<Duration> {
        let mut results = self.results.iter();
        results.find(|(_, seen)| *seen == result).map(|(at, _)| *at)
    }

    fn began(&self, attempt: Attempt) -> Vec<Duration> {
        let runs = self.runs.iter().filter(|run| run.attempt == attempt);
        runs.map(|run| run.began).collect()
    }
}

/// The answers of a server that listens from then on; an attempt before fails after `took`.
fn listens_at(at: Duration, took: Duration) -> impl Fn(Duration) -> (ProbeOutcome, Duration) {
    move |began| if began < at { (bad(), took) } else { (ok(), Z) }
}

fn never() -> impl Fn(Duration) -> (ProbeOutcome, Duration) {
    |_| (bad(), Z)
}

#[test]
fn the_gap_is_a_tenth_of_the_time_since_the_start_within_bounds_and_for_a_minute() {
    let table = [
        (Z, 10 * S, Some(50 * MS)),
        (400 * MS, 10 * S, Some(50 * MS)),
        (S, 10 * S, Some(100 * MS)),
        (3 * S, 10 * S, Some(300 * MS)),
        (10 * S, 20 * S, Some(S)),
        (30 * S, 20 * S, Some(S)),
        (59 * S, 20 * S, Some(S)),
        (59 * S + MS, 20 * S, None),
        (3600 * S, 20 * S, None),
        (Duration::MAX, 20 * S, None),
        // Never above the period, which is what makes the next attempt due then.
        (30 * S, S, None),
    ];
    for kind in [Readiness, Startup] {
        for (age, period, gap) in table {
            let mut state = ProbeState::new(once(kind, period), 0.5);
            let now = clock::instant();
            let facts = ProbeFacts {
                started: kind == Readiness,
                ..in_state("c1", InstanceState::Running(age))
            };
            let first = ProbeAction::Run("c1".into(), Periodic);
            assert_eq!(state.decide(&facts, now).next, first, "{kind} {age:?}");
            state.probed(&facts, &"c1".into(), Periodic, &bad(), now);
            let next = now + gap.unwrap_or(period);
            let decided = state.decide(&facts, now).next;
            assert_eq!(decided, ProbeAction::Until(next), "{kind} {age:?}");
            let attempt = if gap.is_some() { Early } else { Periodic };
            let decided = state.decide(&facts, next).next;
            assert_eq!(decided, ProbeAction::Run("c1".into(), attempt), "{kind}");
        }
    }
}

#[test]
fn a_liveness_probe_has_no_early_attempts() {
    let mut history = History::new(once(Liveness, 10 * S));
    history.pass(30 * S, &[S, 2 * S, 7 * S], never());
    assert!(history.began(Early).is_empty());
    assert_eq!(history.began(Periodic), [5 * S, 15 * S, 25 * S]);
}

#[test]
fn a_readiness_probe_is_early_again_after_the_startup_probe_succeeded() {
    for initial_delay in [Z, 35 * S] {
        let rules = ProbeRules { initial_delay, ..once(Readiness, 10 * S) };
        let mut history = History::new(rules);
        history.facts.started = false;
        history.pass(30 * S, &[], never());
        assert_eq!(history.runs, []);
        history.facts.started = true;
        history.pass(36 * S, &[], never());
        let first = initial_delay.max(30 * S);
        // After the delay, the time since the startup probe succeeded is 5 s.
        let gap = ((first - 30 * S) / 10).max(50 * MS);
        assert_eq!(history.runs[0].began, first);
        assert_eq!(history.began(Early)[0], first + gap);
    }
}

#[test]
fn nothing_is_probed_before_the_initial_delay_not_even_after_a_sync() {
    let rules = ProbeRules { initial_delay: 5 * S, ..once(Readiness, 10 * S) };
    let mut history = History::new(rules);
    history.pass(6 * S, &[S, 2 * S, 4 * S], never());
    assert_eq!(history.began(Periodic), [5 * S]);
    assert_eq!(history.began(Early)[0], 5 * S + 500 * MS);
}

#[test]
fn a_sync_makes_a_probe_due_that_has_not_succeeded_yet() {
    let period = 100 * S;
    for kind in [Readiness, Startup] {
        let mut history = History::new(once(kind, period));
        history.facts = ProbeFacts {
            started: kind == Readiness,
            ..in_state("c1", InstanceState::Running(3600 * S))
        };
        let syncs = [20 * S, 20 * S + MS, 30 * S];
        history.pass(40 * S, &syncs, never());
        // Two at once are one, or two with the smallest gap between them.
        let early = history.began(Early);
        assert_eq!(early, [20 * S, 20 * S + 50 * MS, 30 * S], "{kind}");
        history.pass(50 * S, &[45 * S], listens_at(45 * S, Z));
        assert_eq!(history.when(Success), Some(45 * S), "{kind}");
        history.pass(99 * S, &[60 * S, 70 * S], never());
        assert_eq!(history.began(Early).len(), 4, "{kind}");
    }
}

#[test]
fn a_container_that_has_been_ready_is_probed_by_its_period_alone() {
    let mut history = History::new(once(Readiness, 10 * S));
    history.pass(2 * S, &[], listens_at(S, Z));
    let ready = history.when(Success).unwrap();
    let early = history.began(Early);
    history.pass(50 * S, &[15 * S, 45 * S], never());
    assert_eq!(history.began(Early), early);
    // The period begins with the attempt that succeeded.
    let ticks = [1, 2, 3, 4].map(|n| ready + n * 10 * S);
    assert_eq!(history.began(Periodic)[1..], ticks);
    assert_eq!(history.when(Failure), Some(ready + 30 * S));
}

#[test]
fn successes_are_periods_apart_also_if_the_first_was_early() {
    let rules = ProbeRules { success_threshold: 3, ..rules(Readiness) };
    let mut history = History::new(rules);
    history.pass(40 * S, &[5 * S, 12 * S], listens_at(1500 * MS, Z));
    let first = *history.began(Early).last().unwrap();
    assert!((1500 * MS..1800 * MS).contains(&first), "{first:?}");
    assert_eq!(history.when(Success), Some(first + 20 * S));
    // One that fails in between begins the count again, and early attempts with it.
    let mut history = History::new(rules);
    history.pass(40 * S, &[], |began| {
        let fails = began < 1500 * MS || (5 * S..15 * S).contains(&began);
        (if fails { bad() } else { ok() }, Z)
    });
    let early = history.began(Early);
    let again = *early.last().unwrap();
    assert!((15 * S..16 * S).contains(&again), "{early:?}");
    assert_eq!(history.when(Success), Some(again + 20 * S));
}

#[test]
fn a_failure_that_was_recorded_is_checked_soon_after_a_restart_of_the_kubelet() {
    for (recorded_result, due) in [(Failure, S / 2), (Success, 5 * S)] {
        let mut state = ProbeState::new(once(Readiness, 10 * S), 0.5);
        let facts = ProbeFacts { recorded_result: Some(recorded_result), ..started("c1") };
        let now = clock::instant();
        let decision = state.decide(&facts, now);
        assert_eq!(decision.next, ProbeAction::Until(now + due));
        let decision = state.decide(&facts, now + due);
        assert_eq!(decision.next, ProbeAction::Run("c1".into(), Periodic));
        state.probed(&facts, &"c1".into(), Periodic, &bad(), now + due);
        let next = match recorded_result {
            Success => 10 * S,
            _ => 50 * MS,
        };
        let decision = state.decide(&facts, now + due);
        assert_eq!(decision.next, ProbeAction::Until(now + due + next));
    }
}

#[test]
fn nothing_is_early_on_the_way_out_or_while_a_run_has_not_returned() {
    for shape in
        [(|facts: &mut ProbeFacts| facts.deleting = true) as fn(&mut ProbeFacts), |facts| {
            facts.overdue = true
        }]
    {
        let mut history = History::new(once(Readiness, 10 * S));
        shape(&mut history.facts);
        history.pass(15 * S, &[3 * S], never());
        assert!(history.began(Early).is_empty());
        assert_eq!(history.began(Periodic), [Z, 10 * S]);
    }
}

#[test]
fn a_run_that_nobody_reports_is_not_repeated_at_once() {
    let mut state = ProbeState::new(once(Readiness, 10 * S), 0.5);
    let (facts, now) = (started("c1"), clock::instant());
    let run = ProbeAction::Run("c1".into(), Periodic);
    assert_eq!(state.decide(&facts, now).next, run);
    let next = ProbeAction::Until(now + 50 * MS);
    assert_eq!(state.decide(&facts, now).next, next);
}

fn kinds() -> impl Strategy<Value = ProbeKind> {
    prop::sample::select(vec![Readiness, Startup])
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

/// Syncs in the order of their times.
fn syncs() -> impl Strategy<Value = Vec<Duration>> {
    prop::collection::vec(millis(0..120_000), 0..8).prop_map(|mut syncs| {
        syncs.sort();
        syncs
    })
}

proptest! {
    #[test]
    fn a_server_that_listens_within_three_seconds_is_found_within_three_tenths(
        kind in kinds(),
        period in 1..60u32,
        listens in millis(0..3001),
    ) {
        let rules = ProbeRules { failure_threshold: u32::MAX, ..once(kind, period * S) };
        let mut history = History::new(rules);
        history.pass(5 * S, &[], listens_at(listens, Z));
        let ready = history.when(Success).unwrap();
        prop_assert!(ready <= listens + 300 * MS, "{ready:?} {:?}", history.runs);
    }

    #[test]
    fn a_server_is_found_within_a_gap_and_one_attempt_for_a_minute_and_then_within_a_period(
        kind in kinds(),
        period in 1..60u32,
        listens in millis(0..120_000),
        took in millis(0..5000),
        syncs in syncs(),
    ) {
        let period = period * S;
        let rules = ProbeRules { failure_threshold: u32::MAX, ..once(kind, period) };
        let mut history = History::new(rules);
        history.pass(200 * S, &syncs, listens_at(listens, took));
        let ready = history.when(Success).unwrap();
        let gap = ((listens + took) / 10).clamp(50 * MS, S).min(period);
        let limit = if listens + took + gap < 59 * S { gap + took } else { period + took };
        prop_assert!(ready <= listens + limit, "{ready:?} {:?}", history.runs);
    }

    #[test]
    fn early_failures_count_for_nothing(
        kind in kinds(),
        period in 1..30u32,
        took in millis(0..2000),
        unknown in any::<bool>(),
        syncs in syncs(),
    ) {
        let period = period * S;
        let mut history = History::new(once(kind, period));
        history.pass(120 * S, &syncs, |_| (if unknown { error() } else { bad() }, took));
        let ticks = history.began(Periodic);
        // Never before its time, and at most as late as a run takes that began just before it.
        for (n, at) in ticks.iter().enumerate() {
            let tick = period * u32::try_from(n).unwrap();
            prop_assert!(*at >= tick);
            prop_assert!(*at <= tick + took || took >= period, "{at:?} {tick:?} {:?}", history.runs);
        }
        match kind {
            // It begins as Failure.
            Readiness => prop_assert_eq!(&history.results, &[]),
            _ if unknown => prop_assert_eq!(&history.results, &[]),
            _ => prop_assert_eq!(&history.results, &[(ticks[2] + took, Failure)]),
        }
    }

    #[test]
    fn commands_are_ten_times_as_long_apart_as_the_last_one_took(
        kind in kinds(),
        period in 1..60u32,
        took in millis(0..3000),
        syncs in syncs(),
    ) {
        let rules = ProbeRules { runs_command: true, ..once(kind, period * S) };
        let mut history = History::new(rules);
        history.pass(120 * S, &syncs, |_| (bad(), took));
        for pair in history.runs.windows(2) {
            let pause = pair[1].began - pair[0].ended;
            let early = pair.iter().any(|run| run.attempt == Early);
            prop_assert!(!early || pause >= 10 * took, "{pair:?}");
        }
    }

    #[test]
    fn attempts_never_overlap_and_are_at_least_the_smallest_gap_apart(
        kind in kinds(),
        period in 1..60u32,
        took in millis(0..3000),
        syncs in syncs(),
    ) {
        let mut history = History::new(once(kind, period * S));
        history.pass(120 * S, &syncs, |_| (bad(), took));
        for pair in history.runs.windows(2) {
            prop_assert!(pair[1].began >= pair[0].ended);
            let early = pair[1].attempt == Early;
            prop_assert!(!early || pair[1].began >= pair[0].ended + 50 * MS);
        }
    }
}
