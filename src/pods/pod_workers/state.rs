//! The state machine of one pod worker. Pure.
//!
//! ```text
//!  WaitingToStart --> Starting --> Syncing --> Terminating --> Terminated --> Finished
//!     |                  |                        ^  ^                          ^
//!     '------------------'-- may run already, ----'  '-- orphans start here     |
//!     |                  |   or is an API pod                                  |
//!     '------------------'-- static pod, killed before it ever ran ------------'
//! ```
//!
//! A worker's phase only moves to the right. The worker of an orphan is forgotten as soon as the orphan has stopped: it
//! is never Terminated or Finished, unless the pod's spec arrives meanwhile, and `PodSync::remove_pod` removes the
//! rest. A pod whose API status already has a terminal phase begins as `Terminated`, unless containers of it may be
//! running: then it begins as `Terminating`. A create of a finished pod only sets `restart_requested`: the sync loop
//! then replaces the worker.

use super::phase::{Grace, Termination, WorkerPhase, WorkerTarget};
use super::update::UpdatePodOptions;
use crate::base::clock::Instant;
use crate::model::{GraceDeadline, Pod, PodExt, PodFullName, PodStatus, PodUid};
use crate::pods::pod_sync::syncer::{NextSync, SyncDelay, SyncPodType, TerminationReason};
use std::sync::Arc;

/// An input of the state machine.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A call of `update_pod`.
    Update(UpdatePodOptions),
    /// Replaces the worker's pod without a sync.
    Refreshed(Arc<Pod>),
    /// The start gate lets the pod start.
    MayStart,
    /// No source has the pod any more, or it is finished and was added again. Only valid once every source has
    /// delivered.
    NotDesired,
    /// The runtime status of a pod that no source has any more changed, so a failed stop may succeed now.
    RuntimeStatusChanged,
    /// The runtime is back after an outage, so failed calls may succeed now.
    RuntimeRecovered,
}

/// How a call of the syncer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncOutcome {
    /// [`PodSyncCall::Sync`] ended, with or without an error.
    SyncEnded {
        /// The pod has a terminal phase: its containers ended for good, or the kubelet rejected or failed it.
        terminal: bool,
        /// When to sync it next.
        next: NextSync,
    },
    /// A stop or a clean-up succeeded.
    StopSucceeded,
    /// A stop or a clean-up failed and has to be retried.
    StopFailed,
}

/// One call of the syncer.
#[derive(Clone, Debug)]
pub(super) enum PodSyncCall {
    /// `sync_pod`.
    Sync(Arc<Pod>, SyncPodType),
    /// `sync_terminating_pod`.
    Terminating(Arc<Pod>, GraceDeadline, TerminationReason),
    /// `sync_terminating_runtime_pod`.
    TerminatingRuntime(Arc<PodStatus>, GraceDeadline),
    /// `sync_terminated_pod`.
    Terminated(Arc<Pod>),
}

impl PodSyncCall {
    /// The method's name as upstream's.
    pub(super) fn operation(&self) -> &'static str {
        match self {
            Self::Sync(..) => "syncPod",
            Self::Terminating(..) => "syncTerminatingPod",
            Self::TerminatingRuntime(..) => "syncTerminatingRuntimePod",
            Self::Terminated(_) => "syncTerminatedPod",
        }
    }

    /// The pod's namespace, name and UID.
    pub(super) fn pod(&self) -> (&str, &str, PodUid) {
        match self {
            Self::Sync(pod, _) | Self::Terminating(pod, ..) | Self::Terminated(pod) => {
                (pod.namespace(), pod.name(), pod.uid())
            }
            Self::TerminatingRuntime(status, _) => {
                (&status.namespace, &status.name, status.uid.clone())
            }
        }
    }

    /// The deadline of a stop.
    pub(super) fn deadline(&self) -> Option<GraceDeadline> {
        match self {
            Self::Terminating(_, deadline, _) | Self::TerminatingRuntime(_, deadline) => {
                Some(*deadline)
            }
            Self::Sync(..) | Self::Terminated(_) => None,
        }
    }
}

/// An output of the state machine, which the registry carries out.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Send the update to the worker's task.
    Deliver(SyncPodType),
    /// End the running sync at its next safe point.
    CancelSync,
    /// Shorten the grace period of the running stop.
    ShortenGrace(GraceDeadline),
    /// Queue the static pod at the start gate.
    QueueStart,
    /// Keep other static pods of its full name from starting.
    BlockName,
    /// Let the next static pod of its full name start.
    ReleaseName,
    /// Mark the pod for the sync loop to collect.
    MarkFinished,
    /// Forget the pod, and mark it for the sync loop to collect.
    Forget,
}

/// The state of one pod worker (upstream's `podSyncStatus`).
#[derive(Clone, Debug)]
pub(super) struct PodSyncStatus {
    target: WorkerTarget,
    phase: WorkerPhase,
    running: Option<PodSyncCall>,
    /// The delay after the last sync.
    delay: SyncDelay,
    /// Failures in a row of stopping or cleaning up; determines the retry delay.
    failed_stops: u32,
}

impl PodSyncStatus {
    /// The state of a new pod; `None` when there is nothing to do about it.
    pub(super) fn from_update(
        options: UpdatePodOptions,
        now: Instant,
    ) -> Option<(Self, Vec<Effect>)> {
        let runtime_status = options.runtime_status.as_ref();
        let may_be_running = runtime_status.is_none_or(|status| status.may_be_running());
        let Some(pod) = options.pod.clone() else {
            return Self::from_orphan_update(options);
        };
        let target = WorkerTarget::Pod(pod.clone());
        if pod.is_terminal() && !may_be_running {
            // It had ended before this kubelet started; only the clean-up may be missing.
            let termination = Termination::new(TerminationReason::PodTerminal);
            let state = Self::new(target, WorkerPhase::Terminated { termination });
            return Some((state, vec![Effect::Deliver(SyncPodType::Create)]));
        }
        let kind = options.kind;
        let phase = if pod.is_static() {
            WorkerPhase::WaitingToStart { kind, may_be_running }
        } else {
            WorkerPhase::Starting { may_be_running }
        };
        let mut state = Self::new(target, phase);
        let mut effects = state.on(Input::Update(options), now);
        if matches!(state.phase, WorkerPhase::WaitingToStart { .. }) {
            effects.push(Effect::QueueStart);
        }
        Some((state, effects))
    }

    fn from_orphan_update(options: UpdatePodOptions) -> Option<(Self, Vec<Effect>)> {
        let kill = options.kill?;
        let phase = WorkerPhase::Terminating {
            termination: Termination::new(kill.reason),
            grace: Grace::new(kill.grace_seconds.unwrap_or(1)),
        };
        let state = Self::new(WorkerTarget::Runtime(options.runtime_status?), phase);
        let effects = vec![Effect::BlockName, Effect::Deliver(SyncPodType::Kill)];
        Some((state, effects))
    }

    fn new(target: WorkerTarget, phase: WorkerPhase) -> Self {
        Self { target, phase, running: None, delay: SyncDelay::default(), failed_stops: 0 }
    }

    /// Handles an input.
    pub(super) fn on(&mut self, input: Input, now: Instant) -> Vec<Effect> {
        match input {
            Input::Update(options) => self.on_update(options, now),
            Input::Refreshed(pod) => {
                if self.phase == WorkerPhase::Syncing {
                    self.target = WorkerTarget::Pod(pod);
                }
                Vec::new()
            }
            Input::MayStart => self.on_may_start(),
            Input::NotDesired => self.on_not_desired(),
            Input::RuntimeStatusChanged => self.retry_termination(),
            Input::RuntimeRecovered
                if self.delay == SyncDelay::Error && self.phase == WorkerPhase::Syncing =>
            {
                vec![Effect::Deliver(SyncPodType::Sync)]
            }
            Input::RuntimeRecovered => self.retry_termination(),
        }
    }

    fn on_update(&mut self, options: UpdatePodOptions, now: Instant) -> Vec<Effect> {
        let create = options.kind == SyncPodType::Create;
        match &mut self.phase {
            WorkerPhase::Finished { termination } => {
                if !create {
                    return Vec::new();
                }
                termination.restart_requested = true;
                return vec![Effect::MarkFinished];
            }
            WorkerPhase::Terminating { termination, .. }
            | WorkerPhase::Terminated { termination }
                if create =>
            {
                termination.restart_requested = true;
                return Vec::new();
            }
            _ => {}
        }
        let runtime_only = options.pod.is_none();
        // If a pod of this UID was added again, the update has the spec of that pod. This one ends with its own spec,
        // because its hooks and its grace period are in there.
        if let Some(pod) = &options.pod
            && !self.restart_requested()
        {
            self.target = WorkerTarget::Pod(pod.clone());
        }
        let reason = self.reason_to_end(&options);
        match (&mut self.phase, reason) {
            (WorkerPhase::Terminating { .. }, _) => {
                // Also that of a deletion after the pod was added again, which its own spec does not show.
                self.shorten_grace(options.shortest_grace(), now)
            }
            (WorkerPhase::Terminated { .. }, _) if runtime_only => Vec::new(),
            (WorkerPhase::Terminated { .. }, _) => {
                vec![Effect::Deliver(SyncPodType::Kill)]
            }
            (_, Some(reason)) => self.terminate(reason, options.grace_seconds()),
            (WorkerPhase::WaitingToStart { kind, .. }, None) => {
                *kind = options.kind.max(*kind);
                Vec::new()
            }
            (_, None) => vec![Effect::Deliver(options.kind)],
        }
    }

    fn reason_to_end(&self, options: &UpdatePodOptions) -> Option<TerminationReason> {
        if let WorkerTarget::Pod(pod) = &self.target {
            if pod.is_being_deleted() {
                return Some(TerminationReason::Deleted);
            }
            if pod.is_terminal() {
                return Some(TerminationReason::PodTerminal);
            }
        }
        Some(options.kill.as_ref()?.reason.clone())
    }

    /// Begins the termination: from now on every update is a kill. A static pod that never ran is finished immediately.
    fn terminate(&mut self, reason: TerminationReason, grace_override: Option<i64>) -> Vec<Effect> {
        let WorkerTarget::Pod(pod) = &self.target else {
            return Vec::new();
        };
        let termination = Termination::new(reason);
        if self.phase.never_ran() && pod.is_static() {
            self.phase = WorkerPhase::Finished { termination };
            return vec![Effect::ReleaseName, Effect::MarkFinished];
        }
        let mut effects = Vec::new();
        if pod.is_static() {
            effects.push(Effect::BlockName);
        }
        if matches!(self.running, Some(PodSyncCall::Sync(..))) {
            effects.push(Effect::CancelSync);
        }
        let seconds = self.explicit_grace(grace_override);
        let grace = Grace::new(seconds.unwrap_or_else(|| pod.termination_grace_seconds()));
        effects.push(Effect::Deliver(SyncPodType::Kill));
        self.phase = WorkerPhase::Terminating { termination, grace };
        effects
    }

    /// The shortest grace period of the update and of the API server; `None` means that of the spec.
    fn explicit_grace(&self, grace_override: Option<i64>) -> Option<i64> {
        match &self.target {
            WorkerTarget::Pod(pod) => {
                let by_api = pod.metadata.deletion_grace_period_seconds;
                [grace_override, by_api].into_iter().flatten().min()
            }
            WorkerTarget::Runtime(_) => grace_override,
        }
    }

    /// An update of a terminating pod: shortens its grace period, and retries a failed stop.
    fn shorten_grace(&mut self, grace_override: Option<i64>, now: Instant) -> Vec<Effect> {
        let seconds = self.explicit_grace(grace_override);
        let WorkerPhase::Terminating { grace, .. } = &mut self.phase else {
            return Vec::new();
        };
        let moved = seconds.and_then(|seconds| grace.shorten(seconds, now));
        let shortened = moved.map(Effect::ShortenGrace);
        let retry = Effect::Deliver(SyncPodType::Kill);
        shortened.into_iter().chain([retry]).collect()
    }

    fn on_may_start(&mut self) -> Vec<Effect> {
        let WorkerPhase::WaitingToStart { kind, may_be_running } = self.phase else {
            return Vec::new();
        };
        self.phase = WorkerPhase::Starting { may_be_running };
        vec![Effect::Deliver(kind)]
    }

    /// The next call of a worker that is free, for this update or because its timer fired; `None` if there is nothing
    /// left to do.
    pub(super) fn begin_call(
        &mut self,
        update: Option<SyncPodType>,
        now: Instant,
    ) -> Option<PodSyncCall> {
        if self.running.is_some() {
            return None;
        }
        if let WorkerPhase::Starting { .. } = self.phase {
            self.phase = WorkerPhase::Syncing;
        }
        self.running = match (&mut self.phase, &self.target) {
            (WorkerPhase::Syncing, WorkerTarget::Pod(pod)) => {
                let kind = update.unwrap_or(SyncPodType::Sync);
                Some(PodSyncCall::Sync(pod.clone(), kind))
            }
            (WorkerPhase::Terminating { grace, termination }, WorkerTarget::Pod(pod)) => {
                let (deadline, reason) = (grace.begin(now), termination.reason.clone());
                Some(PodSyncCall::Terminating(pod.clone(), deadline, reason))
            }
            (WorkerPhase::Terminating { grace, .. }, WorkerTarget::Runtime(status)) => {
                let deadline = grace.begin(now);
                Some(PodSyncCall::TerminatingRuntime(status.clone(), deadline))
            }
            (WorkerPhase::Terminated { .. }, WorkerTarget::Pod(pod)) => {
                Some(PodSyncCall::Terminated(pod.clone()))
            }
            _ => None,
        };
        self.running.clone()
    }

    /// Discards the running call, whose outcome is unknown.
    pub(super) fn interrupt(&mut self) {
        self.running = None;
    }

    /// Handles the end of a call. Returns when the next one is due at the latest; `None` means immediately.
    pub(super) fn end_call(&mut self, outcome: SyncOutcome) -> (Option<NextSync>, Vec<Effect>) {
        let Some(call) = self.running.take() else {
            return (None, Vec::new());
        };
        if outcome == SyncOutcome::StopSucceeded {
            self.failed_stops = 0;
        }
        match (call, outcome) {
            (PodSyncCall::Sync(..), SyncOutcome::SyncEnded { terminal, next }) => {
                (self.on_sync_ended(terminal, next), Vec::new())
            }
            (PodSyncCall::Sync(..), _) => {
                (self.on_sync_ended(false, SyncDelay::Error.into()), Vec::new())
            }
            (_, SyncOutcome::StopFailed | SyncOutcome::SyncEnded { .. }) => {
                self.failed_stops = self.failed_stops.saturating_add(1);
                let delay = SyncDelay::Stop(self.failed_stops);
                (Some(delay.into()), Vec::new())
            }
            (PodSyncCall::Terminating(..), SyncOutcome::StopSucceeded) => {
                if let WorkerPhase::Terminating { termination, .. } = &self.phase {
                    self.phase = WorkerPhase::Terminated { termination: termination.clone() };
                }
                (None, Vec::new())
            }
            (PodSyncCall::TerminatingRuntime(..), SyncOutcome::StopSucceeded) => {
                match self.target {
                    WorkerTarget::Runtime(_) => (None, vec![Effect::ReleaseName, Effect::Forget]),
                    // The spec arrived while the pod was being stopped as an orphan: stop it again, with its hooks.
                    WorkerTarget::Pod(_) => (None, Vec::new()),
                }
            }
            (PodSyncCall::Terminated(_), SyncOutcome::StopSucceeded) => {
                if let WorkerPhase::Terminated { termination } = &self.phase {
                    self.phase = WorkerPhase::Finished { termination: termination.clone() };
                }
                (None, vec![Effect::ReleaseName, Effect::MarkFinished])
            }
        }
    }

    fn on_sync_ended(&mut self, terminal: bool, mut next: NextSync) -> Option<NextSync> {
        if self.phase != WorkerPhase::Syncing {
            return None;
        }
        next.delay = next.delay.after(self.delay);
        self.delay = next.delay;
        if terminal {
            // The effects are dropped: the name has been blocked since the pod started, no sync is running, and `None`
            // begins the stop immediately.
            self.terminate(TerminationReason::PodTerminal, None);
            return None;
        }
        Some(next)
    }

    fn on_not_desired(&mut self) -> Vec<Effect> {
        match &self.phase {
            WorkerPhase::Finished { .. } => vec![Effect::Forget],
            _ if self.phase.never_ran() => vec![Effect::ReleaseName, Effect::Forget],
            WorkerPhase::WaitingToStart { .. }
            | WorkerPhase::Starting { .. }
            | WorkerPhase::Syncing => self.terminate(TerminationReason::Deleted, None),
            WorkerPhase::Terminating { .. } | WorkerPhase::Terminated { .. } => Vec::new(),
        }
    }

    /// Retries stopping or cleaning up immediately.
    fn retry_termination(&self) -> Vec<Effect> {
        match &self.phase {
            WorkerPhase::Terminating { .. } | WorkerPhase::Terminated { .. } => {
                vec![Effect::Deliver(SyncPodType::Kill)]
            }
            _ => Vec::new(),
        }
    }
}

impl PodSyncStatus {
    pub(super) fn phase(&self) -> &WorkerPhase {
        &self.phase
    }

    pub(super) fn target(&self) -> &WorkerTarget {
        &self.target
    }

    pub(super) fn full_name(&self) -> PodFullName {
        match &self.target {
            WorkerTarget::Pod(pod) => pod.full_name(),
            WorkerTarget::Runtime(status) => PodFullName::of(&status.name, &status.namespace),
        }
    }

    /// Why it ends; `None` before its termination begins.
    pub(super) fn termination(&self) -> Option<&Termination> {
        match &self.phase {
            WorkerPhase::Terminating { termination, .. }
            | WorkerPhase::Terminated { termination }
            | WorkerPhase::Finished { termination } => Some(termination),
            WorkerPhase::WaitingToStart { .. }
            | WorkerPhase::Starting { .. }
            | WorkerPhase::Syncing => None,
        }
    }

    /// Whether the pod was added again after its termination began.
    pub(super) fn restart_requested(&self) -> bool {
        self.termination().is_some_and(|termination| termination.restart_requested)
    }

    /// Nothing is left to do.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, WorkerPhase::Finished { .. })
    }
}
