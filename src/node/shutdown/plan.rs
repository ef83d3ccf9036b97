//! Phases of a graceful node shutdown. Pure.

use crate::model::{Pod, PodExt, SYSTEM_CRITICAL_PRIORITY};
use std::sync::Arc;
use std::time::Duration;

/// Extra inhibit delay, if logind permits it, in which the final statuses of pods are sent.
pub const FINAL_STATUS_TIME: Duration = Duration::from_secs(3);
/// Priority of pods without one, static pods included.
const DEFAULT_PRIORITY: i32 = 0;

/// The time that pods of a priority range have to terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPhase {
    /// Lowest priority of the range.
    pub priority: i32,
    /// Grace period, seconds.
    pub grace: i64,
}

/// The phases of a shutdown, lowest priority first; empty if graceful shutdown is disabled. `total` and `critical`
/// (`shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`) apply if nothing is configured by priority.
pub fn phases(
    by_priority: Vec<ShutdownPhase>,
    total: Duration,
    critical: Duration,
) -> Vec<ShutdownPhase> {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let (total, critical) = (seconds(total), seconds(critical));
    let mut phases = by_priority;
    if phases.is_empty() && total > 0 && critical <= total {
        let others = ShutdownPhase { priority: DEFAULT_PRIORITY, grace: total - critical };
        let system = ShutdownPhase { priority: SYSTEM_CRITICAL_PRIORITY, grace: critical };
        phases = vec![others, system];
    }
    phases.sort_by_key(|phase| phase.priority);
    phases
}

/// The sum of the grace periods of all phases.
pub fn total(phases: &[ShutdownPhase]) -> Duration {
    let seconds = phases.iter().map(|phase| phase.grace.unsigned_abs());
    Duration::from_secs(seconds.fold(0, u64::saturating_add))
}

/// The time left for final statuses, if logind waits for `delay` and pods take up to `pods`.
pub fn final_status_time(delay: Duration, pods: Duration) -> Duration {
    delay.saturating_sub(pods).min(FINAL_STATUS_TIME)
}

/// The pods of each phase; phases without pods are left out. A pod belongs to the phase with the highest priority that
/// is not above its own, or else to the lowest phase.
pub fn groups(phases: &[ShutdownPhase], pods: &[Arc<Pod>]) -> Vec<(ShutdownPhase, Vec<Arc<Pod>>)> {
    let phase_of = |pod: &Pod| {
        let priority = priority(pod);
        let reached = phases.iter().rposition(|phase| phase.priority <= priority);
        reached.unwrap_or(0)
    };
    let group = |(index, phase): (usize, &ShutdownPhase)| {
        let pods = pods.iter().filter(|pod| phase_of(pod) == index);
        (*phase, pods.cloned().collect::<Vec<_>>())
    };
    let groups = phases.iter().enumerate().map(group);
    groups.filter(|(_, pods)| !pods.is_empty()).collect()
}

fn priority(pod: &Pod) -> i32 {
    let given = pod.spec.as_ref().and_then(|spec| spec.priority);
    given.unwrap_or(DEFAULT_PRIORITY)
}

/// The grace period of a pod in its phase, seconds.
pub fn grace(pod: &Pod, phase: ShutdownPhase) -> i64 {
    pod.termination_grace_seconds().clamp(0, phase.grace.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn phases_are_those_of_the_configuration() {
        let critical = SYSTEM_CRITICAL_PRIORITY;
        for (by_priority, total, system, expected) in [
            (vec![], 0, 0, vec![]),
            (vec![], 30, 0, vec![(0, 30), (critical, 0)]),
            (vec![], 30, 10, vec![(0, 20), (critical, 10)]),
            (vec![], 5, 10, vec![]),
            (vec![(9, 3), (-5, 7)], 0, 0, vec![(-5, 7), (9, 3)]),
        ] {
            let given = by_priority.into_iter();
            let given = given.map(|(priority, grace)| ShutdownPhase { priority, grace });
            let seconds = Duration::from_secs;
            let phases = phases(given.collect(), seconds(total), seconds(system));
            let shown = phases.iter().map(|phase| (phase.priority, phase.grace));
            assert_eq!(shown.collect::<Vec<_>>(), expected);
            let sum = expected.iter().map(|(_, grace)| *grace as u64).sum();
            assert_eq!(super::total(&phases), seconds(sum));
        }
    }

    fn pod(name: &str, priority: Option<i32>, grace: i64, from_file: bool) -> Arc<Pod> {
        let source = if from_file { "file" } else { "api" };
        let pod = json!({
            "metadata": {"name": name, "annotations": {"kubernetes.io/config.source": source}},
            "spec": {"containers": [], "priority": priority, "terminationGracePeriodSeconds": grace},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_belongs_to_the_highest_phase_that_it_reaches() {
        let phase = |priority| ShutdownPhase { priority, grace: 5 };
        let pods = [
            pod("below", Some(-20), 1, false),
            pod("none", None, 1, false),
            pod("edge", Some(100), 1, false),
            pod("between", Some(150), 1, false),
            pod("above", Some(2_000_000_000), 1, false),
            pod("manifest", None, 1, true),
        ];
        let shown = |phases: &[ShutdownPhase]| {
            let groups = groups(phases, &pods).into_iter();
            let texts = groups.map(|(phase, pods)| {
                let names: Vec<_> = pods.iter().map(|pod| pod.name()).collect();
                format!("{}: {}", phase.priority, names.join(" "))
            });
            texts.collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&[phase(0), phase(100), phase(1000), phase(2_000_000_000)]),
            ["0: below none manifest", "100: edge between", "2000000000: above"]
        );
        assert!(shown(&[]).is_empty());
    }

    #[test]
    fn no_pod_has_more_time_than_its_phase() {
        let phase = ShutdownPhase { priority: 0, grace: 10 };
        for (own, granted) in [(1, 1), (10, 10), (30, 10), (-1, 1), (0, 0)] {
            assert_eq!(grace(&pod("a", None, own, false), phase), granted, "{own}");
        }
    }

    #[test]
    fn statuses_have_what_pods_leave_of_the_delay() {
        for (delay, pods, left) in [(5, 5, 0), (6, 5, 1), (8, 5, 3), (60, 5, 3), (4, 5, 0)] {
            let [delay, pods, left] = [delay, pods, left].map(Duration::from_secs);
            assert_eq!(final_status_time(delay, pods), left, "{delay:?}");
        }
    }
}
