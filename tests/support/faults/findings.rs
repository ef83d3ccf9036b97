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
    HookTwice,
    PreStopLost,
    PostStartLost,
    NeverReady,
    ShownWrong,
    KubeletEnded,
    /// A pod that runs lacks a volume, or its data.
    VolumeLost,
    /// A driver was called as the CSI specification forbids.
    CsiViolation,
    /// A volume was on the node that the Node's `volumesInUse` did not have.
    NotInUse,
    /// A container whose start was under way when the kubelet died has exited with 128. A pod that never restarts
    /// its containers has failed then, as upstream.
    StartCutShort,
    /// A hook is run again that was under way when the kubelet died, or whose end the kubelet had not acted on yet.
    HookAgain,
}

impl Goal {
    pub const ALL: &[Goal] = &[
        Goal::HealthyRestart,
        Goal::LostKill,
        Goal::Leak,
        Goal::Duplicate,
        Goal::RunAgain,
        Goal::HookTwice,
        Goal::PreStopLost,
        Goal::PostStartLost,
        Goal::NeverReady,
        Goal::ShownWrong,
        Goal::KubeletEnded,
        Goal::VolumeLost,
        Goal::CsiViolation,
        Goal::NotInUse,
        Goal::StartCutShort,
        Goal::HookAgain,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Goal::HealthyRestart => "healthy containers ended",
            Goal::LostKill => "removed pods that still run",
            Goal::Leak => "leaked sandboxes, containers, directories",
            Goal::Duplicate => "duplicates running at once",
            Goal::RunAgain => "finished containers run again",
            Goal::HookTwice => "hooks run again that had visibly ended",
            Goal::PreStopLost => "preStop hooks never run",
            Goal::PostStartLost => "postStart hooks never finished",
            Goal::NeverReady => "pods that never become ready again",
            Goal::ShownWrong => "untouched pods shown as not ready or missing",
            Goal::KubeletEnded => "kubelets that ended by themselves",
            Goal::VolumeLost => "pods that run without their volume",
            Goal::CsiViolation => "calls of CSI drivers that are forbidden",
            Goal::NotInUse => "volumes on the node and not in volumesInUse",
            Goal::StartCutShort => "starts that the kill cut short (exit 128)",
            Goal::HookAgain => "hooks run again that the kill cut short",
        }
    }

    pub fn is_informational(self) -> bool {
        matches!(self, Goal::StartCutShort | Goal::HookAgain)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub goal: Goal,
    pub text: String,
}

impl Finding {
    pub fn new(goal: Goal, text: impl Into<String>) -> Finding {
        Finding { goal, text: text.into() }
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
    pub findings: BTreeMap<Goal, Vec<String>>,
    /// From the start of the next kubelet, or the end of another fault, to the right statuses.
    pub recoveries: Vec<Duration>,
    /// From the end of an episode's churn to the state that the manifests describe.
    pub settled: Vec<Duration>,
    /// From the removal of all manifests to the state in which nothing is left of any pod.
    pub emptied: Vec<Duration>,
}

impl Sum {
    pub fn add(&mut self, other: Sum) {
        self.faults += other.faults;
        self.episodes += other.episodes;
        self.changes += other.changes;
        self.starts += other.starts;
        for (goal, texts) in other.findings {
            self.findings.entry(goal).or_default().extend(texts);
        }
        self.recoveries.extend(other.recoveries);
        self.settled.extend(other.settled);
        self.emptied.extend(other.emptied);
    }

    pub fn count(&self, goal: Goal) -> usize {
        self.findings.get(&goal).map_or(0, Vec::len)
    }

    /// The first few that were found, for people.
    pub fn examples(&self, goal: Goal) -> String {
        let texts = self.findings.get(&goal).map_or(&[][..], Vec::as_slice);
        texts[..texts.len().min(5)].join("; ")
    }

    pub fn missed(&self) -> Vec<Goal> {
        let missed = |goal: &&Goal| !goal.is_informational() && self.count(**goal) > 0;
        Goal::ALL.iter().filter(missed).copied().collect()
    }
}
