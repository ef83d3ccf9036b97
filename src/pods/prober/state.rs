//! The state machine of one probe of one container. Pure: the time and all facts are passed in.

use super::early::EarlyAttempts;
use crate::base::clock::Instant;
use crate::model::{ContainerId, ProbeKind, ProbeResult};
use crate::runtime::handlers::ProbeOutcome;
use std::time::Duration;

/// At start, the first probes of containers that an earlier kubelet started, and that are not known to be ready, are spread
/// over this time. It is short, because they may be ready.
const ADOPTION_SPREAD: Duration = Duration::from_secs(1);

/// The parameters of a probe, frozen when its task starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeRules {
    pub(super) kind: ProbeKind,
    /// Time from one probe to the next; never zero.
    pub(super) period: Duration,
    /// Time from the container's start to the first probe.
    pub(super) initial_delay: Duration,
    /// Successes in a row until the result is Success.
    pub(super) success_threshold: u32,
    /// Failures in a row until the result is Failure.
    pub(super) failure_threshold: u32,
    /// The handler is a command in the container.
    pub(super) runs_command: bool,
}

/// The state of a container instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceState {
    /// Created but not started, or in an unknown state.
    CreatedOrUnknown,
    /// Running; the time since its start by the runtime's clock.
    Running(Duration),
    /// Exited; whether another instance may follow.
    Exited { restarts: bool },
}

/// The newest instance of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbedInstance {
    pub(super) id: ContainerId,
    pub(super) state: InstanceState,
    /// It was started before this kubelet.
    pub(super) predates_kubelet: bool,
}

/// The inputs of a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeFacts {
    /// The pod is Failed or Succeeded.
    pub(super) pod_terminal: bool,
    /// The pod is being deleted.
    pub(super) deleting: bool,
    /// The newest instance of the container, if the runtime has one.
    pub(super) container: Option<ProbedInstance>,
    /// The instance counts as started: its startup probe succeeded, or it has none.
    pub(super) started: bool,
    /// The recorded result of this instance; only needed for the first decision about it.
    pub(super) recorded_result: Option<ProbeResult>,
    /// The pod's status says that the instance has started; only needed for the first decision about it.
    pub(super) was_started: bool,
    /// A sync of the pod has ended since the last decision.
    pub(super) synced: bool,
    /// An attempt that was given up has not returned yet.
    pub(super) overdue: bool,
}

impl ProbeFacts {
    /// Whether this very instance runs.
    pub(super) fn runs(&self, id: &ContainerId) -> bool {
        let seen = self.container.as_ref();
        seen.is_some_and(|seen| seen.id == *id && matches!(seen.state, InstanceState::Running(_)))
    }
}

/// Why a probe is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Its period made it due; the outcome counts towards the thresholds.
    Periodic,
    /// It has not succeeded yet. A success counts, and the next period begins with it: `successThreshold` successes are as far
    /// apart as upstream's. Anything else neither counts nor is shown.
    Early,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeAction {
    /// Probe this instance now and report with [`ProbeState::probed`].
    Run(ContainerId, Attempt),
    /// Decide again at this time, or when a fact changes.
    Until(Instant),
    /// Decide again when a fact changes.
    Idle,
    /// End the probe's task.
    Exit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeDecision {
    /// An instance whose result has to be removed, before `set` is written.
    pub(super) forget: Option<ContainerId>,
    /// A result to write.
    pub(super) set: Option<(ContainerId, ProbeResult)>,
    pub(super) next: ProbeAction,
}

/// The state of one probe.
#[derive(Clone, Debug)]
pub(super) struct ProbeState {
    rules: ProbeRules,
    /// The offset of this probe within its period, 0 to 1, so that not all probes run at the same time.
    spread: f64,
    current: Option<CurrentInstance>,
}

/// The probed instance.
#[derive(Clone, Debug)]
struct CurrentInstance {
    id: ContainerId,
    /// The published result.
    probe_result: Option<ProbeResult>,
    /// Which kubelet process started it, and whether its result was recorded.
    origin: InstanceOrigin,
    stage: ProbeStage,
    /// The result of the last probe that counted, and how many in a row had it (upstream's `lastResult` and `resultRun`).
    result_run: Option<(ProbeResult, u32)>,
    early: EarlyAttempts,
    /// The result has been Success for this instance, as far as this process and the record know: it is probed by its period
    /// alone from then on.
    has_succeeded: bool,
    /// The probe waits for the startup probe, or is a startup probe whose container has started.
    held_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstanceOrigin {
    /// Started by this kubelet process.
    Fresh,
    /// Started by an earlier process, with a recorded result, or shown as started where the startup probe has none.
    Resumed,
    /// Started by an earlier process, without a recorded result.
    Adopted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStage {
    /// The instance does not run yet.
    Waiting,
    /// It runs; the first probe is due at this time at the earliest.
    Delayed(Instant),
    /// It is probed; its period makes the next probe due at this time.
    Probing(Instant),
    /// It is no longer probed: the result is final, because the instance will be replaced or has started.
    OnHold,
}

impl ProbeState {
    pub(super) fn new(rules: ProbeRules, spread: f64) -> Self {
        Self { rules, spread, current: None }
    }

    /// Time from one probe to the next; never zero.
    pub(super) fn period(&self) -> Duration {
        self.rules.period
    }

    /// Whether this is the instance of the last decision. For another one, the facts must have `recorded_result`.
    pub(super) fn is_current(&self, id: &ContainerId) -> bool {
        self.current.as_ref().is_some_and(|c| c.id == *id)
    }

    /// The instance last seen.
    pub(super) fn container(&self) -> Option<&ContainerId> {
        self.current.as_ref().map(|current| &current.id)
    }

    /// The result of the instance last seen.
    pub(super) fn probe_result(&self) -> Option<ProbeResult> {
        self.current.as_ref().and_then(|current| current.probe_result)
    }

    /// Decides what to do now. The caller has to run a returned [`ProbeAction::Run`].
    pub(super) fn decide(&mut self, facts: &ProbeFacts, now: Instant) -> ProbeDecision {
        let mut decision = ProbeDecision { forget: None, set: None, next: ProbeAction::Exit };
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
        let current = self
            .current
            .insert(known.unwrap_or_else(|| CurrentInstance::first_seen(seen, facts, &rules)));
        decision.next = current.step(&rules, self.spread, seen, facts, now);
        let before = if is_new { None } else { before };
        if current.probe_result != before {
            decision.set = current.probe_result.map(|probe_result| (seen.id.clone(), probe_result));
        }
        decision
    }

    /// Records the outcome of a run that has ended `now` and returns a result to write. `facts` are those after the run: the
    /// outcome is ignored if the instance no longer runs.
    pub(super) fn probed(
        &mut self,
        facts: &ProbeFacts,
        id: &ContainerId,
        attempt: Attempt,
        outcome: &ProbeOutcome,
        now: Instant,
    ) -> Option<(ContainerId, ProbeResult)> {
        let rules = self.rules;
        let current = self.current.as_mut().filter(|current| {
            current.id == *id && matches!(current.stage, ProbeStage::Probing(_)) && facts.runs(id)
        })?;
        let began = current.early.ended(now);
        let result = match outcome {
            ProbeOutcome::Success { .. } | ProbeOutcome::Warning { .. } => ProbeResult::Success,
            ProbeOutcome::Failure { .. } => ProbeResult::Failure,
            ProbeOutcome::Unknown { .. } => return None,
        };
        match (attempt, result) {
            (Attempt::Periodic, _) => {}
            (Attempt::Early, ProbeResult::Success) => {
                current.stage = ProbeStage::Probing(next_due(began, rules.period, now));
            }
            (Attempt::Early, _) => return None,
        }
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
        if ends_probing(rules.kind, result) {
            current.stage = ProbeStage::OnHold;
            current.result_run = None;
        }
        let changed = current.probe_result != Some(result);
        current.probe_result = Some(result);
        current.has_succeeded |= result == ProbeResult::Success;
        changed.then(|| (id.clone(), result))
    }
}

impl CurrentInstance {
    fn first_seen(seen: &ProbedInstance, facts: &ProbeFacts, rules: &ProbeRules) -> Self {
        // Another kubelet, or a lost record, has left no result: a container that has started must not be stopped
        // because its startup probe fails now.
        let has_started =
            rules.kind == ProbeKind::Startup && seen.predates_kubelet && facts.was_started;
        let recorded_result = facts.recorded_result;
        let recorded_result = recorded_result.or(has_started.then_some(ProbeResult::Success));
        let origin = match (recorded_result, seen.predates_kubelet) {
            (Some(_), _) => InstanceOrigin::Resumed,
            (None, true) => InstanceOrigin::Adopted,
            (None, false) => InstanceOrigin::Fresh,
        };
        let probe_result = match (origin, rules.kind) {
            // Without a published result, the status keeps the readiness of the old status.
            (InstanceOrigin::Adopted, _) => None,
            (InstanceOrigin::Resumed, _) => recorded_result,
            (InstanceOrigin::Fresh, ProbeKind::Readiness) => Some(ProbeResult::Failure),
            (InstanceOrigin::Fresh, ProbeKind::Liveness) => Some(ProbeResult::Success),
            (InstanceOrigin::Fresh, ProbeKind::Startup) => Some(ProbeResult::Unknown),
        };
        let is_on_hold =
            recorded_result.is_some_and(|probe_result| ends_probing(rules.kind, probe_result));
        Self {
            id: seen.id.clone(),
            probe_result,
            origin,
            stage: if is_on_hold { ProbeStage::OnHold } else { ProbeStage::Waiting },
            result_run: None,
            early: EarlyAttempts::default(),
            has_succeeded: recorded_result == Some(ProbeResult::Success),
            held_back: false,
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
            (InstanceState::Exited { restarts: false }, ProbeStage::OnHold) => {
                return ProbeAction::Exit;
            }
            (_, ProbeStage::OnHold) => return ProbeAction::Idle,
            (InstanceState::Running(age), _) => age,
            (InstanceState::CreatedOrUnknown, _) => {
                // An instance that never started has not failed its liveness probe, but it is not ready.
                if rules.kind == ProbeKind::Readiness {
                    self.probe_result = Some(ProbeResult::Failure);
                }
                return ProbeAction::Idle;
            }
            (InstanceState::Exited { restarts }, _) => {
                self.probe_result = Some(ProbeResult::Failure);
                return if restarts { ProbeAction::Idle } else { ProbeAction::Exit };
            }
        };
        if facts.deleting && rules.kind != ProbeKind::Readiness {
            self.probe_result = Some(ProbeResult::Success);
            return ProbeAction::Exit;
        }
        if self.stage == ProbeStage::Waiting {
            // The age is only used here: the runtime's clock may be set later.
            self.stage = ProbeStage::Delayed(now + rules.initial_delay.saturating_sub(age));
            self.early.starts(now.checked_sub(age));
        }
        // Before the container has started, only the startup probe runs; after that, only the others.
        let was_held_back = self.held_back;
        self.held_back = facts.started == (rules.kind == ProbeKind::Startup);
        if was_held_back && !self.held_back {
            self.early.starts(Some(now));
        }
        let tick = match self.stage {
            ProbeStage::Delayed(not_before) if now < not_before => {
                return ProbeAction::Until(not_before);
            }
            _ if self.held_back => return ProbeAction::Idle,
            ProbeStage::Probing(tick) => tick,
            _ => now + self.first_wait(rules, spread),
        };
        if tick <= now {
            self.stage = ProbeStage::Probing(next_due(tick, rules.period, now));
            return self.run(Attempt::Periodic, now);
        }
        self.stage = ProbeStage::Probing(tick);
        if facts.synced {
            self.early.synced();
        }
        let early = if self.may_be_early(rules, facts) {
            self.early.due(rules.period, rules.runs_command, tick, now)
        } else {
            None
        };
        match early {
            Some(due) if due <= now => self.run(Attempt::Early, now),
            due => ProbeAction::Until(due.unwrap_or(tick)),
        }
    }

    fn run(&mut self, attempt: Attempt, now: Instant) -> ProbeAction {
        self.early.begins(now);
        ProbeAction::Run(self.id.clone(), attempt)
    }

    /// Whether the probe may be repeated early. After a success it is not, although `successThreshold` may want more: early
    /// ones would make the container ready sooner than that many periods say.
    fn may_be_early(&self, rules: &ProbeRules, facts: &ProbeFacts) -> bool {
        let succeeds = matches!(self.result_run, Some((ProbeResult::Success, _)));
        rules.kind != ProbeKind::Liveness
            && !self.has_succeeded
            && !succeeds
            && !facts.deleting
            && !facts.overdue
    }

    /// The delay of the first probe. The readiness and startup probes of a new container run immediately, because it is not
    /// ready before. Liveness probes start at a random point of their first period, as upstream's, because failures
    /// during a slow start count towards the failure threshold.
    fn first_wait(&self, rules: &ProbeRules, spread: f64) -> Duration {
        match (self.origin, rules.kind) {
            (_, ProbeKind::Liveness) => rules.period.mul_f64(spread),
            (InstanceOrigin::Fresh, _) => Duration::ZERO,
            // It may have become ready while no kubelet ran.
            (InstanceOrigin::Adopted | InstanceOrigin::Resumed, _) if !self.has_succeeded => {
                rules.period.min(ADOPTION_SPREAD).mul_f64(spread)
            }
            (InstanceOrigin::Adopted | InstanceOrigin::Resumed, _) => rules.period.mul_f64(spread),
        }
    }
}

/// The first time `due + n × period` after `now`. A probe that takes longer than a period skips ticks.
fn next_due(due: Instant, period: Duration, now: Instant) -> Instant {
    let late = now.saturating_duration_since(due).as_nanos();
    let ticks = late / period.as_nanos().max(1) + 1;
    due + period.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
}

/// Whether a result ends the probing of an instance (upstream's `onHold`), because it will be replaced or has started.
fn ends_probing(kind: ProbeKind, probe_result: ProbeResult) -> bool {
    match (kind, probe_result) {
        (_, ProbeResult::Unknown) | (ProbeKind::Readiness, _) => false,
        (ProbeKind::Liveness, probe_result) => probe_result == ProbeResult::Failure,
        (ProbeKind::Startup, _) => true,
    }
}
