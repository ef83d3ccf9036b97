//! Which thresholds are met, the conditions of the node, and what to reclaim. Pure.

use super::thresholds::{EvictionResource, EvictionSignal, EvictionThreshold};
use crate::base::clock::Instant;
use crate::state::node_pressure::NodePressure;
use std::collections::HashMap;
use std::time::Duration;

/// Shortest and longest interval of measurements.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval of measurements while a threshold is met.
const MAX_PRESSURE_INTERVAL: Duration = Duration::from_secs(1);

/// The grace period of a pod that is evicted for a hard threshold, seconds.
pub(super) const HARD_GRACE: i64 = 1;

/// A measurement of one signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The available amount, in the unit of its [`EvictionSignal`].
    pub available: i64,
    /// The total amount, in the same unit.
    pub capacity: i64,
}

/// Measurements by signal. A signal that could not be measured is missing; its thresholds stay as they were.
pub type Observations = HashMap<EvictionSignal, Observation>;

/// A threshold that is met, and since when.
#[derive(Clone, Copy, Debug)]
struct MetThreshold {
    threshold: EvictionThreshold,
    since: Instant,
    is_over_grace: bool,
}

/// The state between measurements.
#[derive(Debug, Default)]
pub struct EvictionState {
    met: Vec<MetThreshold>,
    /// When a threshold of this condition was last met.
    memory: Option<Instant>,
    disk: Option<Instant>,
    pids: Option<Instant>,
}

/// The evaluation of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The conditions of the node.
    pub pressure: NodePressure,
    /// The thresholds whose grace period has passed, in the order in which resources are reclaimed.
    pub act_on: Vec<EvictionThreshold>,
    /// The delay until the next measurement.
    pub next_in: Duration,
}

/// The grace period in seconds of a pod that is evicted for this threshold. `maximum` is that of soft thresholds, if there
/// is one; `own` is that of the pod's spec.
pub(super) fn grace(threshold: &EvictionThreshold, maximum: Option<i64>, own: i64) -> i64 {
    match (threshold.grace, maximum) {
        (None, _) => HARD_GRACE,
        (Some(_), Some(maximum)) => maximum.min(own),
        (Some(_), None) => own,
    }
}

/// Whether a threshold is met. One that was met `before` stays met until its value plus `evictionMinimumReclaim` is
/// available.
pub(super) fn is_met(threshold: &EvictionThreshold, observed: &Observations, before: bool) -> bool {
    let observation = observed.get(&threshold.signal);
    observation.is_some_and(|observation| is_below(threshold, *observation, before))
}

/// Whether a threshold that is met stays so after `expected` more becomes available.
pub(super) fn is_met_after_reclaim(
    threshold: &EvictionThreshold,
    observed: &Observations,
    expected: i64,
) -> bool {
    observed.get(&threshold.signal).is_some_and(|observation| {
        let then = Observation {
            available: observation.available.saturating_add(expected),
            ..*observation
        };
        is_below(threshold, then, true)
    })
}

fn is_below(threshold: &EvictionThreshold, observation: Observation, before: bool) -> bool {
    let mut needed = threshold.value.of(observation.capacity);
    if before {
        needed = needed.saturating_add(threshold.min_reclaim.of(observation.capacity));
    }
    observation.available < needed
}

impl EvictionState {
    /// Evaluates a measurement. A condition stays true for `transition` after its thresholds were last met.
    pub fn observe(
        &mut self,
        thresholds: &[EvictionThreshold],
        observed: &Observations,
        transition: Duration,
        now: Instant,
    ) -> Evaluation {
        let before = std::mem::take(&mut self.met);
        let met = thresholds.iter().filter_map(|threshold| {
            let met = before.iter().find(|met| met.threshold == *threshold);
            // Within its grace period a threshold is met no longer once its own value is available again.
            let acted_on = met.is_some_and(|met| met.is_over_grace);
            let is_met = match observed.get(&threshold.signal) {
                Some(observation) => is_below(threshold, *observation, acted_on),
                None => met.is_some(),
            };
            let since = met.map_or(now, |met| met.since);
            is_met.then(|| MetThreshold {
                threshold: *threshold,
                since,
                is_over_grace: now.duration_since(since) >= threshold.grace.unwrap_or_default(),
            })
        });
        self.met = met.collect();
        // Also thresholds whose signals are missing: a disk that stopped responding while it was full is full.
        let has = |wanted: &[EvictionResource]| {
            let mut met = self.met.iter();
            met.any(|met| wanted.contains(&met.threshold.signal.resource()))
        };
        for (last, resources) in [
            (&mut self.memory, &[EvictionResource::Memory][..]),
            (&mut self.disk, &[EvictionResource::Disk, EvictionResource::Inodes]),
            (&mut self.pids, &[EvictionResource::Pids]),
        ] {
            if has(resources) {
                *last = Some(now);
            }
            // With a transition period of zero the condition still holds for this measurement.
            *last = last.filter(|last| now.duration_since(*last) < transition || *last == now);
        }
        let is_observed = |met: &&MetThreshold| observed.contains_key(&met.threshold.signal);
        let mut act_on: Vec<_> =
            self.met.iter().filter(is_observed).filter(|met| met.is_over_grace).collect();
        act_on.sort_by_key(|met| urgency(met.threshold.signal));
        Evaluation {
            pressure: NodePressure {
                memory: self.memory.is_some(),
                disk: self.disk.is_some(),
                pid: self.pids.is_some(),
            },
            act_on: act_on.into_iter().map(|met| met.threshold).collect(),
            next_in: self.interval(thresholds, observed),
        }
    }

    /// The delay until the next measurement: the time in which the margin to the nearest threshold could be used up at
    /// the highest rate of consumption. A node far from its thresholds is measured rarely, and a threshold that is met
    /// is noticed soon.
    fn interval(&self, thresholds: &[EvictionThreshold], observed: &Observations) -> Duration {
        let longest = if self.met.is_empty() { MAX_INTERVAL } else { MAX_PRESSURE_INTERVAL };
        let is_met =
            |threshold: &EvictionThreshold| self.met.iter().any(|met| met.threshold == *threshold);
        let open = thresholds.iter().filter(|threshold| !is_met(threshold));
        let margins = open.filter_map(|threshold| {
            let observation = observed.get(&threshold.signal)?;
            let needed = threshold.value.of(observation.capacity);
            let margin = observation.available.saturating_sub(needed);
            let millis =
                margin.saturating_mul(1000) / threshold.signal.max_consumption_per_second();
            Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
        });
        margins.min().unwrap_or(longest).clamp(MIN_INTERVAL, longest)
    }
}

/// Memory first, because running out of it makes a node unusable fastest; processes last.
fn urgency(signal: EvictionSignal) -> u8 {
    match signal.resource() {
        EvictionResource::Memory => 0,
        EvictionResource::Disk | EvictionResource::Inodes => 1,
        EvictionResource::Pids => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use crate::node::node_status::resources::ThresholdValue;

    const TRANSITION: Duration = Duration::from_secs(300);

    fn memory(value: i64, grace: Option<u64>, min_reclaim: i64) -> EvictionThreshold {
        EvictionThreshold {
            signal: EvictionSignal::MemoryAvailable,
            value: ThresholdValue::Absolute(value),
            grace: grace.map(Duration::from_secs),
            min_reclaim: ThresholdValue::Absolute(min_reclaim),
        }
    }

    fn seen(available: i64) -> Observations {
        let capacity = 100 << 30;
        Observations::from([(EvictionSignal::MemoryAvailable, Observation { available, capacity })])
    }

    #[test]
    fn the_maximum_caps_the_grace_of_a_pod_in_a_soft_eviction() {
        for (soft, maximum, own, expected) in [
            (true, Some(10), 30, 10),
            (true, Some(10), 5, 5),
            (true, Some(0), 30, 0),
            (true, None, 30, 30),
            (false, None, 30, 1),
            (false, Some(10), 30, 1),
        ] {
            let threshold = memory(100, soft.then_some(60), 0);
            assert_eq!(grace(&threshold, maximum, own), expected, "{maximum:?}");
        }
    }

    #[test]
    fn a_hard_threshold_acts_at_once_and_until_its_least_reclaim_is_there() {
        let (mut state, now) = (EvictionState::default(), clock::instant());
        let thresholds = [memory(100, None, 50)];
        for (available, acts) in [(100, false), (99, true), (149, true), (150, false), (120, false)]
        {
            let found = state.observe(&thresholds, &seen(available), TRANSITION, now);
            assert_eq!(!found.act_on.is_empty(), acts, "{available}");
        }
    }

    #[test]
    fn what_is_expected_back_may_be_enough_with_the_least_reclaim() {
        let threshold = memory(100, None, 50);
        for (available, expected, met) in [(90, 59, true), (90, 60, false), (0, i64::MAX, false)] {
            assert_eq!(
                is_met_after_reclaim(&threshold, &seen(available), expected),
                met,
                "{available} and {expected}"
            );
        }
        assert!(!is_met_after_reclaim(&threshold, &Observations::new(), 0));
    }

    #[test]
    fn a_soft_threshold_acts_after_its_grace_and_begins_again_when_it_was_over() {
        let (mut state, start) = (EvictionState::default(), clock::instant());
        let thresholds = [memory(100, Some(30), 0)];
        for (second, available, acts) in [
            (0, 99, false),
            (29, 99, false),
            (30, 99, true),
            (31, 100, false),
            (32, 99, false),
            (61, 99, false),
            (62, 99, true),
        ] {
            let now = start + Duration::from_secs(second);
            let found = state.observe(&thresholds, &seen(available), TRANSITION, now);
            assert_eq!(!found.act_on.is_empty(), acts, "after {second} s");
            assert!(found.pressure.memory, "also within the grace");
        }
    }

    #[test]
    fn the_least_reclaim_of_a_soft_threshold_counts_once_its_grace_is_over() {
        let (mut state, start) = (EvictionState::default(), clock::instant());
        let thresholds = [memory(100, Some(30), 50)];
        for (second, available, acts) in [
            (0, 99, false),
            (10, 120, false),
            (30, 120, false),
            (40, 99, false),
            (70, 99, true),
            (71, 120, true),
            (72, 150, false),
        ] {
            let now = start + Duration::from_secs(second);
            let found = state.observe(&thresholds, &seen(available), TRANSITION, now);
            assert_eq!(!found.act_on.is_empty(), acts, "after {second} s");
        }
    }

    #[test]
    fn a_condition_stays_for_the_transition_period() {
        let (mut state, start) = (EvictionState::default(), clock::instant());
        let thresholds = [memory(100, None, 0)];
        for (second, available, pressure) in
            [(0, 100, false), (1, 99, true), (2, 100, true), (300, 100, true), (301, 100, false)]
        {
            let now = start + Duration::from_secs(second);
            let found = state.observe(&thresholds, &seen(available), TRANSITION, now);
            assert_eq!(found.pressure.memory, pressure, "after {second} s");
            assert!(!found.pressure.disk && !found.pressure.pid);
        }
    }

    #[test]
    fn memory_comes_first_and_processes_last() {
        let threshold = |signal| EvictionThreshold {
            signal,
            value: ThresholdValue::Absolute(10),
            grace: None,
            min_reclaim: ThresholdValue::Absolute(0),
        };
        let signals = [
            EvictionSignal::PidAvailable,
            EvictionSignal::NodeFsInodesFree,
            EvictionSignal::MemoryAvailable,
        ];
        let observed = signals.map(|signal| (signal, Observation { available: 0, capacity: 100 }));
        let mut state = EvictionState::default();
        let found =
            state.observe(&signals.map(threshold), &observed.into(), TRANSITION, clock::instant());
        let order: Vec<_> = found.act_on.iter().map(|threshold| threshold.signal).collect();
        assert_eq!(
            order,
            [
                EvictionSignal::MemoryAvailable,
                EvictionSignal::NodeFsInodesFree,
                EvictionSignal::PidAvailable
            ]
        );
    }

    #[test]
    fn the_nearer_a_threshold_is_the_sooner_is_the_next_measurement() {
        let gib = 1_i64 << 30;
        for (available, millis) in
            [(80 * gib, 10_000), (5 * gib, 1_000), (gib + 1, 50), (gib, 50), (gib - 1, 1_000)]
        {
            let mut state = EvictionState::default();
            let found = state.observe(
                &[memory(gib, None, 0)],
                &seen(available),
                TRANSITION,
                clock::instant(),
            );
            assert_eq!(found.next_in, Duration::from_millis(millis), "{available}");
        }
        let mut state = EvictionState::default();
        let found = state.observe(
            &[memory(gib, None, 0)],
            &Observations::new(),
            TRANSITION,
            clock::instant(),
        );
        assert_eq!(
            (found.next_in, found.act_on),
            (MAX_INTERVAL, vec![]),
            "what cannot be measured is enough"
        );
    }

    #[test]
    fn a_hard_threshold_is_noticed_in_time_while_a_soft_one_is_in_its_grace() {
        let mib = 1_i64 << 20;
        // Soft thresholds just before or after a measurement of each phase.
        for soft in [5 * 1024, 5 * 1024 + 300, 5 * 1024 + 600, 5 * 1024 + 900] {
            let thresholds = [memory(soft * mib, Some(60), 0), memory(1024 * mib, None, 0)];
            let (mut state, start) = (EvictionState::default(), clock::instant());
            let mut passed = Duration::ZERO;
            let found_at = loop {
                // A pod takes 1 GiB/s.
                let taken = i64::try_from(passed.as_millis()).unwrap() * 1024 * mib / 1000;
                let available = 8 * 1024 * mib - taken;
                let found =
                    state.observe(&thresholds, &seen(available), TRANSITION, start + passed);
                if !found.act_on.is_empty() {
                    break available;
                }
                passed += found.next_in;
            };
            let late = 1024 * mib - found_at;
            assert!(late <= 55 * mib, "{} MiB too late", late / mib);
        }
    }

    #[test]
    fn what_was_not_measured_neither_begins_nor_ends() {
        let (mut state, start) = (EvictionState::default(), clock::instant());
        let thresholds = [memory(100, Some(30), 0)];
        let short = seen(99);
        for (second, observed, acts, pressure) in [
            (0, &short, false, true),
            (20, &Observations::new(), false, true),
            (30, &Observations::new(), false, true),
            (31, &short, true, true),
            // Twice the transition period without a measurement.
            (631, &Observations::new(), false, true),
            (632, &seen(100), false, true),
            (931, &Observations::new(), false, false),
            (932, &short, false, true),
        ] {
            let now = start + Duration::from_secs(second);
            let found = state.observe(&thresholds, observed, TRANSITION, now);
            assert_eq!(!found.act_on.is_empty(), acts, "after {second} s");
            assert_eq!(found.pressure.memory, pressure, "after {second} s");
        }
    }
}
