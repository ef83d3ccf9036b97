use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::{Instant, sleep};

use super::Limiter;
use super::state::{LimitState, MAX, MIN, Ticket};
use crate::cri::rpc::Rpc;

const MS: Duration = Duration::from_millis(1);

/// Runs `calls` calls, all waiting from the start, against a runtime in which a call takes
/// `time(calls under way)`; the limit at the end.
fn simulate(state: &mut LimitState, calls: u32, time: impl Fn(u32) -> Duration) -> u32 {
    let mut now = Instant::now();
    for _ in 0..calls {
        state.arrive(Rpc::CreateContainer, now);
    }
    let mut under_way: VecDeque<(Instant, Duration)> = VecDeque::new();
    loop {
        while state.grant().is_some() {
            let takes = time(under_way.len() as u32 + 1);
            under_way.push_back((now + takes, takes));
        }
        under_way.make_contiguous().sort();
        let Some((end, took)) = under_way.pop_front() else {
            return state.limit();
        };
        now = end;
        state.done(Rpc::CreateContainer, took, now);
    }
}

#[test]
fn a_runtime_that_never_slows_down_gets_the_most() {
    let mut state = LimitState::new();
    assert_eq!(simulate(&mut state, 500, |_| 200 * MS), MAX);
}

#[test]
fn a_fast_simulated_runtime_is_not_held_back_by_noise() {
    let mut state = LimitState::new();
    let limit = simulate(&mut state, 500, |n| {
        Duration::from_micros(200 * u64::from(n % 7 + 1))
    });
    assert_eq!(limit, MAX);
}

#[test]
fn a_runtime_that_does_two_at_a_time_is_left_with_a_handful() {
    let mut state = LimitState::new();
    // Up to two in parallel cost nothing; beyond, they share.
    let limit = simulate(&mut state, 2000, |n| 40 * MS * n.max(2) / 2);
    assert!((MIN..=6).contains(&limit), "{limit}");
}

#[test]
fn the_limit_recovers_when_the_runtime_does() {
    let mut state = LimitState::new();
    let slow = simulate(&mut state, 300, |n| 40 * MS * n);
    assert!(slow <= 4, "{slow}");
    let fast = simulate(&mut state, 600, |_| 40 * MS);
    assert_eq!(fast, MAX);
}

#[test]
fn calls_of_pods_that_are_further_along_go_before_new_sandboxes_but_not_for_ever() {
    let mut state = LimitState::new();
    let now = Instant::now();
    let filler: Vec<_> = (0..4)
        .map(|_| state.arrive(Rpc::RunPodSandbox, now))
        .collect();
    assert_eq!(std::iter::from_fn(|| state.grant()).count(), filler.len());
    let old_sandbox = state.arrive(Rpc::RunPodSandbox, now);
    let start = state.arrive(Rpc::StartContainer, now + 10 * MS);
    let late_create = state.arrive(Rpc::CreateContainer, now + Duration::from_secs(61));
    let mut order = Vec::new();
    for _ in 0..3 {
        state.abandon();
        order.extend(state.grant());
    }
    assert_eq!(order, [start, old_sandbox, late_create]);
}

#[test]
fn a_slow_runtime_keeps_places_taken_for_longer() {
    let mut state = LimitState::new();
    let now = Instant::now();
    assert_eq!(state.stay(Rpc::CreateContainer), Duration::from_secs(2));
    state.arrive(Rpc::CreateContainer, now);
    state.grant();
    state.overstay(Rpc::CreateContainer, Duration::from_secs(2));
    assert_eq!(state.stay(Rpc::CreateContainer), Duration::from_secs(16));
    // One slow call among fast ones changes nothing.
    let mut state = LimitState::new();
    for took in [40, 41, 42, 43, 90_000] {
        state.done(Rpc::CreateContainer, took * MS, now);
    }
    assert_eq!(state.stay(Rpc::CreateContainer), Duration::from_secs(2));
}

#[derive(Debug, Clone)]
enum Step {
    Arrive(bool),
    Leave(prop::sample::Index),
    Done(u64),
    Abandon,
    Overstay,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(Step::Arrive),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        4 => (0u64..10_000).prop_map(Step::Done),
        1 => Just(Step::Abandon),
        1 => Just(Step::Overstay),
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn the_limit_holds_nobody_is_lost_and_equals_go_in_order(steps in steps()) {
        let mut state = LimitState::new();
        let mut now = Instant::now();
        let mut waiting: Vec<(Ticket, bool)> = Vec::new();
        let mut under_way = 0u32;
        for step in steps {
            now += MS;
            let rpc = |sandbox| if sandbox { Rpc::RunPodSandbox } else { Rpc::StartContainer };
            match step {
                Step::Arrive(sandbox) => {
                    waiting.push((state.arrive(rpc(sandbox), now), sandbox));
                }
                Step::Leave(index) if !waiting.is_empty() => {
                    let (ticket, _) = waiting.remove(index.index(waiting.len()));
                    prop_assert!(state.leave(ticket));
                    prop_assert!(!state.leave(ticket));
                }
                Step::Done(ms) if under_way > 0 => {
                    state.done(Rpc::StartContainer, Duration::from_millis(ms), now);
                    under_way -= 1;
                }
                Step::Abandon if under_way > 0 => {
                    state.abandon();
                    under_way -= 1;
                }
                Step::Overstay if under_way > 0 => {
                    state.overstay(Rpc::StartContainer, 2000 * MS);
                    under_way -= 1;
                }
                _ => {}
            }
            while let Some(ticket) = state.grant() {
                under_way += 1;
                prop_assert!(under_way <= state.limit());
                let at = waiting.iter().position(|(known, _)| *known == ticket);
                prop_assert!(at.is_some(), "granted twice or never waited");
                let (_, sandbox) = waiting.remove(at.unwrap());
                prop_assert!(waiting.iter().all(|(other, kind)| *kind != sandbox || *other > ticket));
            }
            prop_assert!((MIN..=MAX).contains(&state.limit()));
            prop_assert!(waiting.is_empty() || under_way >= state.limit());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn never_more_calls_than_the_limit_are_under_way() {
    let limiter = Limiter::default();
    let now = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (limiter, now, most) = (limiter.clone(), now.clone(), most.clone());
        calls.spawn(async move {
            let call = async {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(40 * MS * now.load(Ordering::SeqCst)).await;
                now.fetch_sub(1, Ordering::SeqCst);
            };
            limiter.run(Rpc::CreateContainer, call, |_| true).await;
        });
    }
    calls.join_all().await;
    assert!(most.load(Ordering::SeqCst) <= 8, "{most:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_give_their_places_back_wherever_they_are() {
    let limiter = Limiter::default();
    let hang = || {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter
                .run(Rpc::CreateContainer, std::future::pending::<()>(), |_| true)
                .await;
        })
    };
    let under_way: Vec<_> = (0..4).map(|_| hang()).collect();
    let waiting: Vec<_> = (0..3).map(|_| hang()).collect();
    tokio::task::yield_now().await;
    waiting
        .iter()
        .chain(&under_way)
        .for_each(|call| call.abort());
    let begin = Instant::now();
    limiter.run(Rpc::CreateContainer, async {}, |_| true).await;
    assert!(begin.elapsed() < MS);
}

#[tokio::test(start_paused = true)]
async fn a_hung_call_gives_its_place_back_after_two_seconds_and_still_gets_its_answer() {
    let limiter = Limiter::default();
    let mut hung = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let limiter = limiter.clone();
        hung.spawn(async move {
            let call = async {
                sleep(Duration::from_secs(100)).await;
                "late"
            };
            limiter.run(Rpc::RunPodSandbox, call, |_| true).await
        });
    }
    tokio::task::yield_now().await;
    let begin = Instant::now();
    limiter.run(Rpc::StartContainer, async {}, |_| true).await;
    assert_eq!(begin.elapsed(), Duration::from_secs(2));
    assert_eq!(hung.join_all().await, ["late"; 4]);
}
