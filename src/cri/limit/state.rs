//! How many heavy calls may be under way, and who is next. Pure.
//!
//! The limit follows what the runtime shows: while calls take about as long as they took at best it
//! grows; when the extra time says that calls queue up inside the runtime it shrinks. (The estimate
//! is the one TCP Vegas uses: of `limit` calls that take `ratio` times their best time,
//! `limit × (1 - 1/ratio)` are waiting.)

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cri::rpc::Rpc;

pub(super) const MIN: u32 = 2;
pub(super) const MAX: u32 = 64;
const START: u32 = 4;
/// Below this the difference between two calls is noise of the scheduler.
const FLOOR: Duration = Duration::from_millis(5);
/// Up to this mean ratio nothing queues at all.
const FREE: f64 = 1.15;
/// Calls queueing in the runtime: fewer than this and the limit grows …
const FEW: f64 = 1.5;
/// … more than this and it shrinks. A few too many cost little, too few leave the machine idle while
/// something else makes every call slow; so the band is generous.
const MANY: f64 = 3.5;
/// One sample counts for no more than this ratio, so that one odd call decides nothing.
const RATIO_CAP: f64 = 16.0;
/// From this many queueing calls on the limit shrinks by a quarter instead of by one.
const OVERLOAD: f64 = 8.0;
/// A call holds its place for at least this long, …
const STAY: Duration = Duration::from_secs(2);
/// … and for this many times what its like usually take.
const STAY_FACTOR: u32 = 8;
/// A new pod's sandbox lets calls of pods that are further along go first if they came at most this
/// much later: pods get finished one after the other instead of all at the very end.
const SANDBOX_YIELDS: Duration = Duration::from_secs(60);
/// The best time known is forgotten slowly, doubling in this time.
const BEST_DOUBLES: Duration = Duration::from_secs(600);

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket {
    due: Instant,
    number: u64,
}

/// The state of one lane.
#[derive(Debug)]
pub(super) struct LimitState {
    limit: u32,
    in_flight: u32,
    next: u64,
    waiting: BTreeMap<Ticket, Rpc>,
    tracks: BTreeMap<Rpc, Track>,
    window: Window,
}

/// Samples since the limit was last looked at.
#[derive(Debug, Default)]
struct Window {
    count: u32,
    ratios: f64,
    saturated: bool,
}

impl LimitState {
    pub(super) fn new() -> LimitState {
        LimitState {
            limit: START,
            in_flight: 0,
            next: 0,
            waiting: BTreeMap::new(),
            tracks: BTreeMap::new(),
            window: Window::default(),
        }
    }

    /// Calls that may be under way at once.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// A call joins the queue.
    pub(super) fn arrive(&mut self, rpc: Rpc, now: Instant) -> Ticket {
        let yields = match rpc {
            Rpc::RunPodSandbox => SANDBOX_YIELDS,
            _ => Duration::ZERO,
        };
        let ticket = Ticket {
            due: now + yields,
            number: self.next,
        };
        self.next += 1;
        self.waiting.insert(ticket, rpc);
        ticket
    }

    /// The next call that may go now; it is under way from here on.
    pub(super) fn grant(&mut self) -> Option<Ticket> {
        if self.in_flight >= self.limit {
            self.window.saturated |= !self.waiting.is_empty();
            return None;
        }
        let (ticket, _) = self.waiting.pop_first()?;
        self.in_flight += 1;
        Some(ticket)
    }

    /// A waiting call was given up. False when it was not waiting (any more).
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }

    /// How long a call of this kind keeps its place at most.
    pub(super) fn stay(&self, rpc: Rpc) -> Duration {
        let median = self.tracks.get(&rpc).map_or(Duration::ZERO, Track::median);
        STAY.max(median.saturating_mul(STAY_FACTOR))
    }

    /// A call ended well and gives its place back.
    pub(super) fn done(&mut self, rpc: Rpc, took: Duration, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let track = self.tracks.entry(rpc).or_default();
        track.add(took);
        let best = track.best(took, now).max(FLOOR);
        self.sample(took.max(FLOOR).as_secs_f64() / best.as_secs_f64());
    }

    /// A call failed or was dropped: its place is free, its duration says nothing.
    pub(super) fn abandon(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A call overstays: its place is free although it is still under way. Its like are known to
    /// take at least this long now, so later ones keep their places longer: a runtime that is slow
    /// as a whole is not flooded.
    pub(super) fn overstay(&mut self, rpc: Rpc, so_far: Duration) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.tracks.entry(rpc).or_default().add(so_far);
        self.sample(RATIO_CAP);
    }

    /// A call that had given its place back ended well after all.
    pub(super) fn late(&mut self, rpc: Rpc, took: Duration) {
        self.tracks.entry(rpc).or_default().add(took);
    }

    fn sample(&mut self, ratio: f64) {
        self.window.count += 1;
        self.window.ratios += ratio.clamp(1.0, RATIO_CAP);
        if self.window.count >= self.limit {
            self.adjust();
        }
    }

    fn adjust(&mut self) {
        let window = std::mem::take(&mut self.window);
        // Without anyone waiting the limit was not what held calls back, nor what made them slow.
        if !window.saturated {
            return;
        }
        let mean = window.ratios / f64::from(window.count.max(1));
        let queued = f64::from(self.limit) * (1.0 - 1.0 / mean);
        let next = if mean <= FREE {
            self.limit.saturating_mul(2)
        } else if queued >= OVERLOAD {
            self.limit - self.limit.div_ceil(4)
        } else if queued < FEW {
            self.limit + 1
        } else if queued > MANY {
            self.limit - 1
        } else {
            self.limit
        };
        self.limit = next.clamp(MIN, MAX);
    }
}

const RECENT: usize = 32;

/// What is known of one kind of call.
#[derive(Debug, Default)]
struct Track {
    recent: std::collections::VecDeque<Duration>,
    best: Option<(Duration, Instant)>,
}

impl Track {
    fn add(&mut self, took: Duration) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(took);
    }

    fn median(&self) -> Duration {
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// The best time known, with `took` taken into account.
    fn best(&mut self, took: Duration, now: Instant) -> Duration {
        let aged = self.best.map(|(best, at)| {
            let age = now.saturating_duration_since(at).as_secs_f64();
            best.mul_f64((age / BEST_DOUBLES.as_secs_f64()).min(20.0).exp2())
        });
        let best = aged.map_or(took, |aged| aged.min(took));
        self.best = Some((best, now));
        best
    }
}
