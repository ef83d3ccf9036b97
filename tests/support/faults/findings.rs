//! What is counted, and the sum of many episodes.

use std::collections::BTreeMap;
use std::time::Duration;

/// Each of these is to be 0, unless [`Goal::is_informational`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Goal {
    HealthyRestart,
    LostKill,
    Leak,
    Duplicate,
    RunAgain,
    PreStopTwice,
    PreStopLost,
    PostStartLost,
    NeverReady,
    ShownWrong,
    KubeletEnded,
    /// A hook that the kubelet did not see finish is run again, which is documented.
    PostStartAgain,
}

impl Goal {
    pub const ALL: &[Goal] = &[
        Goal::HealthyRestart,
        Goal::LostKill,
        Goal::Leak,
        Goal::Duplicate,
        Goal::RunAgain,
        Goal::PreStopTwice,
        Goal::PreStopLost,
        Goal::PostStartLost,
        Goal::NeverReady,
        Goal::ShownWrong,
        Goal::KubeletEnded,
        Goal::PostStartAgain,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Goal::HealthyRestart => "healthy containers ended",
            Goal::LostKill => "removed pods that still run",
            Goal::Leak => "leaked sandboxes, containers, directories",
            Goal::Duplicate => "duplicates running at once",
            Goal::RunAgain => "finished containers run again",
            Goal::PreStopTwice => "preStop hooks run twice",
            Goal::PreStopLost => "preStop hooks never run",
            Goal::PostStartLost => "postStart hooks never finished",
            Goal::NeverReady => "pods that never become ready again",
            Goal::ShownWrong => "untouched pods shown as not ready or missing",
            Goal::KubeletEnded => "kubelets that ended by themselves",
            Goal::PostStartAgain => "postStart hooks run again after an interruption",
        }
    }

    pub fn is_informational(self) -> bool {
        self == Goal::PostStartAgain
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub goal: Goal,
    pub text: String,
}

impl Finding {
    pub fn new(goal: Goal, text: impl Into<String>) -> Finding {
        Finding {
            goal,
            text: text.into(),
        }
    }
}

/// What came of some faults of one kind.
#[derive(Debug, Default)]
pub struct Sum {
    pub faults: usize,
    pub episodes: usize,
    /// Manifests put, edited and removed.
    pub changes: usize,
    /// Containers started.
    pub starts: usize,
    pub counts: BTreeMap<Goal, usize>,
    /// From the start of the next kubelet, or the end of another fault, to the right statuses.
    pub recoveries: Vec<Duration>,
    /// From the end of an episode's churn to the state that the manifests describe.
    pub settled: Vec<Duration>,
}

impl Sum {
    pub fn add(&mut self, other: Sum) {
        self.faults += other.faults;
        self.episodes += other.episodes;
        self.changes += other.changes;
        self.starts += other.starts;
        for (goal, number) in other.counts {
            *self.counts.entry(goal).or_default() += number;
        }
        self.recoveries.extend(other.recoveries);
        self.settled.extend(other.settled);
    }

    pub fn count(&self, goal: Goal) -> usize {
        self.counts.get(&goal).copied().unwrap_or(0)
    }

    pub fn missed(&self) -> Vec<Goal> {
        let missed = |goal: &&Goal| !goal.is_informational() && self.count(**goal) > 0;
        Goal::ALL.iter().filter(missed).copied().collect()
    }
}
