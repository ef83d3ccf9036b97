//! What one probe of one container does next. Pure: the clock and everything seen come in as data.

use crate::{
    model::{ContainerId, ProbeKind, ProbeResult},
    runtime::handlers::ProbeOutcome,
};
use std::time::Duration;
use tokio::time::Instant;

/// Over how long the probes of containers that an earlier kubelet started, and of which nothing is
/// remembered, are spread at start. Short, because readiness is not known until then.
const TAKE_OVER_SPREAD: Duration = Duration::from_secs(1);

/// The parameters of a probe, frozen when its task starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeRules {
    pub(super) kind: ProbeKind,
    /// Time from one probe to the next; never zero.
    pub(super) period: Duration,
    /// Time from the container's start to the first probe.
    pub(super) initial_delay: Duration,
    /// Successes in a row that settle on success.
    pub(super) success_threshold: u32,
    /// Failures in a row that settle on failure.
    pub(super) failure_threshold: u32,
}

/// How a container instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceState {
    /// Created but not started, or the runtime does not know.
    Unclear,
    /// Running for so long by the runtime's clock.
    Running(Duration),
    /// Exited; whether another instance may follow.
    Exited { restarts: bool },
}

/// The newest instance of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbedInstance {
    pub(super) id: ContainerId,
    pub(super) state: InstanceState,
    /// It was started before this kubelet was.
    pub(super) predates_kubelet: bool,
}

/// All inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeFacts {
    /// The pod is Failed or Succeeded.
    pub(super) pod_terminal: bool,
    /// The pod is on its way out.
    pub(super) deleting: bool,
    /// What the runtime has of the container.
    pub(super) container: Option<ProbedInstance>,
    /// The instance counts as started: its startup probe succeeded, or it has none.
    pub(super) started: bool,
    /// The recorded result of this instance, needed when it is seen first.
    pub(super) remembered: Option<ProbeResult>,
}

impl ProbeFacts {
    /// Whether this very instance runs.
    pub(super) fn runs(&self, id: &ContainerId) -> bool {
        let seen = self.container.as_ref();
        seen.is_some_and(|seen| seen.id == *id && matches!(seen.state, InstanceState::Running(_)))
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeAction {
    /// Probe this instance now and report with [`ProbeState::probed`].
    Run(ContainerId),
    /// Decide again at that time, or when something changed.
    Until(Instant),
    /// Decide again when something changed.
    Idle,
    /// Nothing will ever have to be done again.
    Exit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeDecision {
    /// An instance whose result is to be forgotten; comes before `set`.
    pub(super) forget: Option<ContainerId>,
    /// A result to write.
    pub(super) set: Option<(ContainerId, ProbeResult)>,
    pub(super) next: ProbeAction,
}

/// The memory of one probe.
#[derive(Clone, Debug)]
pub(super) struct ProbeState {
    rules: ProbeRules,
    /// Where in its period this probe sits, 0 to 1, so that many do not fire together.
    spread: f64,
    current: Option<CurrentInstance>,
}

/// What is known of the current instance.
#[derive(Clone, Debug)]
struct CurrentInstance {
    id: ContainerId,
    /// As published.
    probe_result: Option<ProbeResult>,
    /// How it came under our eyes.
    origin: ResultOrigin,
    stage: ProbeStage,
    /// The last result and how often it came in a row.
    result_run: Option<(ProbeResult, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultOrigin {
    /// Started under this kubelet.
    Fresh,
    /// Older than this process, with a recorded result.
    Resumed,
    /// Older than this kubelet; nothing is remembered.
    TakenOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStage {
    /// Not seen running yet.
    Waiting,
    /// Running; no probe before that time.
    Delayed(Instant),
    /// Probed; the next one is due at that time.
    Probing(Instant),
    /// Settled for good: the instance will be replaced, or has started.
    OnHold,
}

impl ProbeState {
    pub(super) fn new(rules: ProbeRules, spread: f64) -> Self {
        Self {
            rules,
            spread,
            current: None,
        }
    }

    /// Time from one probe to the next; never zero.
    pub(super) fn period(&self) -> Duration {
        self.rules.period
    }

    /// Whether this instance has been seen before. One that has not needs `remembered` in its facts.
    pub(super) fn knows(&self, id: &ContainerId) -> bool {
        self.current.as_ref().is_some_and(|c| c.id == *id)
    }

    /// The instance last seen.
    pub(super) fn container(&self) -> Option<&ContainerId> {
        self.current.as_ref().map(|current| &current.id)
    }

    /// The result of the instance last seen.
    pub(super) fn probe_result(&self) -> Option<ProbeResult> {
        self.current
            .as_ref()
            .and_then(|current| current.probe_result)
    }

    /// Decides what to do now. A returned [`ProbeAction::Run`] counts as begun.
    pub(super) fn decide(&mut self, facts: &ProbeFacts, now: Instant) -> ProbeDecision {
        let mut decision = ProbeDecision {
            forget: None,
            set: None,
            next: ProbeAction::Exit,
        };
        let before = self.probe_result();
        let seen = match (&facts.container, facts.pod_terminal) {
            (_, true) => return decision,
            (None, false) => {
                decision.next = ProbeAction::Idle;
                return decision;
            }
            (Some(seen), false) => seen,
        };
        let known = self.current.take_if(|current| current.id == seen.id);
        let is_new = known.is_none();
        decision.forget = self.current.take().map(|replaced| replaced.id);
        let rules = self.rules;
        let current =
            self.current
                .insert(known.unwrap_or_else(|| {
                    CurrentInstance::first_seen(seen, facts.remembered, &rules)
                }));
        decision.next = current.step(&rules, self.spread, seen, facts, now);
        let before = if is_new { None } else { before };
        if current.probe_result != before {
            decision.set = current
                .probe_result
                .map(|probe_result| (seen.id.clone(), probe_result));
        }
        decision
    }

    /// Takes the outcome of a run. `facts` are those of after the run: what became of an instance that
    /// is no longer there, or no longer runs, is not held against it. Returns a result to write.
    pub(super) fn probed(
        &mut self,
        facts: &ProbeFacts,
        id: &ContainerId,
        outcome: &ProbeOutcome,
    ) -> Option<(ContainerId, ProbeResult)> {
        let rules = self.rules;
        let current = self.current.as_mut().filter(|current| {
            current.id == *id && matches!(current.stage, ProbeStage::Probing(_)) && facts.runs(id)
        })?;
        let result = match outcome {
            ProbeOutcome::Success { .. } | ProbeOutcome::Warning { .. } => ProbeResult::Success,
            ProbeOutcome::Failure { .. } => ProbeResult::Failure,
            ProbeOutcome::Unknown { .. } => return None,
        };
        let in_a_row = match current.result_run {
            Some((last, times)) if last == result => times.saturating_add(1),
            _ => 1,
        };
        current.result_run = Some((result, in_a_row));
        let threshold = match result {
            ProbeResult::Success => rules.success_threshold,
            _ => rules.failure_threshold,
        };
        if in_a_row < threshold {
            return None;
        }
        if settles_for_good(rules.kind, result) {
            current.stage = ProbeStage::OnHold;
            current.result_run = None;
        }
        let changed = current.probe_result != Some(result);
        current.probe_result = Some(result);
        changed.then(|| (id.clone(), result))
    }
}

impl CurrentInstance {
    fn first_seen(seen: &ProbedInstance, remembered: Option<ProbeResult>, rules: &ProbeRules) -> Self {
        let origin = match (remembered, seen.predates_kubelet) {
            (Some(_), _) => ResultOrigin::Resumed,
            (None, true) => ResultOrigin::TakenOver,
            (None, false) => ResultOrigin::Fresh,
        };
        let probe_result = match (origin, rules.kind) {
            // Nothing is published before the first result: readers decide on what else
            // is known.
            (ResultOrigin::TakenOver, _) => None,
            (ResultOrigin::Resumed, _) => remembered,
            (ResultOrigin::Fresh, ProbeKind::Readiness) => Some(ProbeResult::Failure),
            (ResultOrigin::Fresh, ProbeKind::Liveness) => Some(ProbeResult::Success),
            (ResultOrigin::Fresh, ProbeKind::Startup) => Some(ProbeResult::Unknown),
        };
        let held =
            remembered.is_some_and(|probe_result| settles_for_good(rules.kind, probe_result));
        Self {
            id: seen.id.clone(),
            probe_result,
            origin,
            stage: if held {
                ProbeStage::OnHold
            } else {
                ProbeStage::Waiting
            },
            result_run: None,
        }
    }

    fn step(
        &mut self,
        rules: &ProbeRules,
        spread: f64,
        seen: &ProbedInstance,
        facts: &ProbeFacts,
        now: Instant,
    ) -> ProbeAction {
        let age = match (seen.state, self.stage) {
            (InstanceState::Exited { restarts: false }, ProbeStage::OnHold) => return ProbeAction::Exit,
            (_, ProbeStage::OnHold) => return ProbeAction::Idle,
            (InstanceState::Running(age), _) => age,
            (InstanceState::Unclear, _) => {
                // What was never started cannot be dead; but it cannot be ready either.
                if rules.kind == ProbeKind::Readiness {
                    self.probe_result = Some(ProbeResult::Failure);
                }
                return ProbeAction::Idle;
            }
            (InstanceState::Exited { restarts }, _) => {
                self.probe_result = Some(ProbeResult::Failure);
                return if restarts {
                    ProbeAction::Idle
                } else {
                    ProbeAction::Exit
                };
            }
        };
        if facts.deleting && rules.kind != ProbeKind::Readiness {
            self.probe_result = Some(ProbeResult::Success);
            return ProbeAction::Exit;
        }
        if self.stage == ProbeStage::Waiting {
            // The runtime's clock is read once; it may jump later.
            self.stage = ProbeStage::Delayed(now + rules.initial_delay.saturating_sub(age));
        }
        let due = match self.stage {
            ProbeStage::Delayed(not_before) if now < not_before => {
                return ProbeAction::Until(not_before);
            }
            // Only the startup probe runs before the start, and not after it.
            _ if facts.started == (rules.kind == ProbeKind::Startup) => return ProbeAction::Idle,
            ProbeStage::Probing(due) => due,
            _ => now + self.first_wait(rules, spread),
        };
        if now < due {
            self.stage = ProbeStage::Probing(due);
            return ProbeAction::Until(due);
        }
        self.stage = ProbeStage::Probing(next_due(due, rules.period, now));
        ProbeAction::Run(self.id.clone())
    }

    /// How long the first probe waits once it may be run. A container that has just started is probed
    /// at once for what keeps it from being ready; liveness starts somewhere in its first period, as
    /// upstream's does, because an early failure only eats into the time that a slow start has.
    fn first_wait(&self, rules: &ProbeRules, spread: f64) -> Duration {
        match (self.origin, rules.kind) {
            (ResultOrigin::Fresh, ProbeKind::Readiness | ProbeKind::Startup) => Duration::ZERO,
            (ResultOrigin::TakenOver, ProbeKind::Readiness | ProbeKind::Startup) => {
                rules.period.min(TAKE_OVER_SPREAD).mul_f64(spread)
            }
            (_, ProbeKind::Liveness) | (ResultOrigin::Resumed, _) => rules.period.mul_f64(spread),
        }
    }
}

/// The first point of the grid `due + n × period` after `now`: a slow probe skips ticks, and one that
/// ended just after a tick does not lose it.
fn next_due(due: Instant, period: Duration, now: Instant) -> Instant {
    let late = now.saturating_duration_since(due).as_nanos();
    let ticks = late / period.as_nanos().max(1) + 1;
    due + period.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
}

/// Whether a result ends the probing of an instance: it will be replaced, or has started.
fn settles_for_good(kind: ProbeKind, probe_result: ProbeResult) -> bool {
    match (kind, probe_result) {
        (_, ProbeResult::Unknown) | (ProbeKind::Readiness, _) => false,
        (ProbeKind::Liveness, probe_result) => probe_result == ProbeResult::Failure,
        (ProbeKind::Startup, _) => true,
    }
}
