//! What must hold of the state machine whatever happens, checked against a count of its own.

use super::rules::{KINDS, bad, error, ok, rules};
use crate::base::clock::{self, Instant};
use crate::model::ContainerId;
use crate::model::ProbeKind::{Liveness, Readiness, Startup};
use crate::model::ProbeResult::{Failure, Success};
use crate::pods::prober::state::{
    Attempt, InstanceState, ProbeAction, ProbeFacts, ProbeState, ProbedInstance,
};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Input {
    Decide { id: u8, life: u8, started: bool, deleting: bool, synced: bool },
    Result(u8),
    Pass(u32),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let decide = (0..3u8, 0..8u8, any::<bool>(), prop::bool::weighted(0.1), any::<bool>());
    let decide = decide.prop_map(|(id, life, started, deleting, synced)| Input::Decide {
        id,
        life,
        started,
        deleting,
        synced,
    });
    let input = prop_oneof![
        4 => decide,
        4 => (0..5u8).prop_map(Input::Result),
        2 => (0..40_000u32).prop_map(Input::Pass),
    ];
    prop::collection::vec(input, 1..60)
}

fn facts_of(id: u8, life: u8, started: bool, deleting: bool) -> ProbeFacts {
    let life = match life {
        0 => InstanceState::CreatedOrUnknown,
        1 => InstanceState::Exited { restarts: true },
        2 => InstanceState::Exited { restarts: false },
        _ => InstanceState::Running(Duration::ZERO),
    };
    ProbeFacts {
        started,
        deleting,
        container: (id > 0).then(|| ProbedInstance {
            id: format!("c{id}").into(),
            state: life,
            predates_kubelet: false,
        }),
        ..ProbeFacts::default()
    }
}

proptest! {
    #[test]
    fn whatever_happens_probes_keep_to_their_rules(
        kind in prop::sample::select(KINDS.to_vec()),
        spread in 0.0..1.0f64,
        inputs in inputs(),
    ) {
        let started_at = clock::instant();
        let (mut now, mut state) = (started_at, ProbeState::new(rules(kind), spread));
        let mut facts = ProbeFacts::default();
        let mut row = (None, 0u32);
        let mut last_run: Option<(ContainerId, Instant)> = None;
        let mut under_way: Option<(ContainerId, Attempt)> = None;
        let mut has_succeeded = false;
        for input in inputs {
            match input {
                Input::Pass(millis) => now += Duration::from_millis(millis.into()),
                Input::Decide { id, life, started, deleting, synced } => {
                    facts = ProbeFacts { synced, ..facts_of(id, life, started, deleting) };
                    if under_way.is_some() {
                        // The task decides again only after the run.
                        continue;
                    }
                    let seen = facts.container.clone();
                    if seen.as_ref().is_some_and(|seen| !state.is_current(&seen.id)) {
                        row = (None, 0);
                        last_run = None;
                        has_succeeded = false;
                    }
                    let decision = state.decide(&facts, now);
                    // A result is only ever written about the instance that is there.
                    if let Some((id, _)) = &decision.set {
                        prop_assert_eq!(Some(id), seen.as_ref().map(|seen| &seen.id));
                    }
                    // An instance is forgotten only for another one.
                    prop_assert!(decision.forget.is_none() || decision.forget != seen.as_ref().map(|s| s.id.clone()));
                    match decision.next {
                        ProbeAction::Run(id, attempt) => {
                            prop_assert!(facts.runs(&id));
                            if attempt == Attempt::Early {
                                prop_assert!(kind != Liveness && !deleting);
                                prop_assert!(!has_succeeded && row.0 != Some(Success));
                            }
                            prop_assert_eq!(facts.started, kind != Startup);
                            prop_assert!(!deleting || kind == Readiness);
                            // Never twice for one tick.
                            let ticks = |at: Instant| (at - started_at).as_nanos();
                            if let Some((_, before)) = last_run.filter(|(last, _)| *last == id) {
                                prop_assert!(ticks(now) > ticks(before));
                            }
                            last_run = Some((id.clone(), now));
                            under_way = Some((id, attempt));
                        }
                        ProbeAction::Until(at) => prop_assert!(at > now),
                        ProbeAction::Idle => {}
                        ProbeAction::Exit => break,
                    }
                }
                Input::Result(which) => {
                    let Some((id, attempt)) = under_way.take() else { continue };
                    let before = state.probe_result();
                    let (outcome, result) = match which {
                        0 => (error(), None),
                        1 | 2 => (ok(), Some(Success)),
                        _ => (bad(), Some(Failure)),
                    };
                    // An early attempt counts only if it succeeds.
                    let counts = facts.runs(&id)
                        && state.is_current(&id)
                        && (attempt == Attempt::Periodic || result == Some(Success));
                    if let Some(result) = result.filter(|_| counts) {
                        row = match row {
                            (Some(last), times) if last == result => (Some(result), times + 1),
                            _ => (Some(result), 1),
                        };
                    }
                    let needed = if row.0 == Some(Success) { 2 } else { 3 };
                    let settled = result.filter(|_| counts && row.1 >= needed);
                    let expected = settled.filter(|probe_result| before != Some(*probe_result));
                    has_succeeded |= settled == Some(Success);
                    let written = state.probed(&facts, &id, attempt, &outcome, now);
                    prop_assert_eq!(written, expected.map(|probe_result| (id, probe_result)));
                }
            }
        }
    }
}
