//! The life of one pod on this node, as a state machine without effects.
//!
//! ```text
//!  Waiting --> Starting --> Syncing --> Terminating --> Terminated --> Finished
//!     |           |                        ^  ^                          ^
//!     '-----------'--- may run already ----'  '-- known to the runtime   |
//!     '-----------'--- killed before it ever ran ------------------------'
//! ```
//!
//! Phases only move to the right. A finished pod ignores everything but being forgotten.

use super::{
    delay::Next,
    phase::{End, Grace, Phase, Subject},
    update::{Request, UpdateOptions, Work, stronger},
};
use crate::{
    model::{GraceDeadline, Pod, PodExt, PodFullName, PodStatus},
    pods::pod_sync::syncer::{RetryDelay, TerminationReason, UpdateKind},
};
use std::sync::Arc;
use tokio::time::Instant;

/// What happens to a worker.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// Somebody asks for something.
    Update(UpdateOptions),
    /// The gate lets the pod start.
    MayStart,
    /// The worker is free for a turn, because of this message or because it is time.
    Begin(Option<Work>),
    /// The turn is over.
    Ended(Outcome),
    /// No source wants the pod any more. Only to be said when every source has delivered.
    Unwanted,
    /// The runtime status of a pod that no source wants any more changed: a stop that failed may succeed
    /// now.
    StatusChanged,
    /// The runtime was away and has returned: what failed may succeed now.
    RuntimeReturned,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A turn of setting up; `terminal` when the pod has reached its end by itself.
    Synced {
        /// Reached a terminal phase.
        terminal: bool,
        /// When to look again.
        next: Next,
    },
    /// A turn of stopping or cleaning up did all of it.
    Done,
    /// A turn of stopping or cleaning up has to be tried again.
    Failed,
}

/// One call of the syncer.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    /// Set the pod up.
    Sync(Arc<Pod>, UpdateKind),
    /// Stop the pod.
    Terminate(Arc<Pod>, GraceDeadline, TerminationReason),
    /// Stop a pod without a spec.
    TerminateRuntime(Arc<PodStatus>, GraceDeadline),
    /// Give back what the pod held.
    CleanUp(Arc<Pod>),
}

/// What the worker's surroundings have to do.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Send it through the channel, or keep it until the worker is free.
    Deliver(Work),
    /// End the running turn of setting up at its next safe point.
    CancelSync,
    /// Tell the running turn of stopping that it has less time.
    ShortenGrace(GraceDeadline),
    /// Stand in line to start.
    Arrive,
    /// Keep others of its name from starting.
    Hold,
    /// Let the next of its name start.
    Leave,
    /// Answer to `Begin`: do this.
    Run(Turn),
    /// Answer to `Ended`: begin the next turn at once.
    Continue,
    /// Answer to `Ended`: rest until then, or until told.
    Rest(Next),
    /// Tell the sync loop that there is something to collect.
    MarkFinished,
    /// Forget the pod, and tell the sync loop.
    Drop,
}

/// The kind of turn that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    Sync,
    Terminate,
    TerminateRuntime,
    CleanUp,
}

/// One pod's state.
#[derive(Clone, Debug)]
pub(super) struct PodState {
    subject: Subject,
    phase: Phase,
    turn: Option<Running>,
    /// The last sync has failed.
    failed: bool,
    /// How often stopping or cleaning up has failed in a row.
    failed_stops: u32,
}

impl PodState {
    /// The first sight of a pod; `None` when there is nothing to do about it.
    pub(super) fn first(options: UpdateOptions, now: Instant) -> Option<(Self, Vec<Effect>)> {
        let may_run = options.running.as_ref().is_none_or(|r| r.is_active());
        let Some(pod) = options.pod.clone() else {
            return Self::first_orphan(options);
        };
        let subject = Subject::Pod(pod.clone());
        if pod.is_terminal() && !may_run {
            // It had ended before this kubelet started; only the clean-up may be missing.
            let end = End::new(TerminationReason::Finished, &pod);
            let state = Self::new(subject, Phase::Terminated { end });
            return Some((state, vec![Effect::Deliver(Work::Sync(UpdateKind::Create))]));
        }
        let kind = match options.request {
            Request::Sync(kind) => kind,
            Request::Kill { .. } => UpdateKind::Sync,
        };
        let phase = match pod.is_static() {
            true => Phase::Waiting { kind, may_run },
            false => Phase::Starting { may_run },
        };
        let mut state = Self::new(subject, phase);
        let mut effects = state.on(Input::Update(options), now);
        if matches!(state.phase, Phase::Waiting { .. }) {
            effects.push(Effect::Arrive);
        }
        Some((state, effects))
    }

    fn first_orphan(options: UpdateOptions) -> Option<(Self, Vec<Effect>)> {
        let Request::Kill {
            reason,
            grace_seconds,
        } = options.request
        else {
            return None;
        };
        let grace = Grace::new(grace_seconds.unwrap_or(1));
        let work = Work::Kill(grace.seconds());
        let phase = Phase::Terminating {
            end: End {
                reason,
                deleted: true,
                restart: false,
            },
            grace,
        };
        let state = Self::new(Subject::Runtime(options.running?), phase);
        Some((state, vec![Effect::Hold, Effect::Deliver(work)]))
    }

    fn new(subject: Subject, phase: Phase) -> Self {
        Self {
            subject,
            phase,
            turn: None,
            failed: false,
            failed_stops: 0,
        }
    }

    /// The one transition function.
    pub(super) fn on(&mut self, input: Input, now: Instant) -> Vec<Effect> {
        match input {
            Input::Update(options) => self.on_update(options, now),
            Input::MayStart => self.on_may_start(),
            Input::Begin(work) => self.on_begin(work, now).into_iter().collect(),
            Input::Ended(outcome) => self.on_ended(outcome),
            Input::Unwanted => self.on_unwanted(),
            Input::StatusChanged => self.try_again(),
            Input::RuntimeReturned if self.failed && self.phase == Phase::Syncing => {
                vec![Effect::Deliver(Work::Sync(UpdateKind::Sync))]
            }
            Input::RuntimeReturned => self.try_again(),
        }
    }

    fn on_update(&mut self, options: UpdateOptions, now: Instant) -> Vec<Effect> {
        let create = options.is_create();
        match &mut self.phase {
            Phase::Finished { end } => {
                if !create {
                    return Vec::new();
                }
                end.restart = true;
                return vec![Effect::MarkFinished];
            }
            Phase::Terminating { end, .. } | Phase::Terminated { end } if create => {
                end.restart = true;
                return Vec::new();
            }
            _ => {}
        }
        let runtime_only = options.pod.is_none();
        if runtime_only && !matches!(options.request, Request::Kill { .. }) {
            return Vec::new();
        }
        // A pod that was added again meanwhile comes after this one, which ends as it was made: with
        // its own hooks.
        let followed = self.end().is_some_and(|end| end.restart);
        if let Some(pod) = options.pod
            && !followed
        {
            self.subject = Subject::Pod(pod);
        }
        match (&self.phase, options.request) {
            (Phase::Terminating { .. }, request) => self.shorten_grace(grace_of(&request), now),
            (Phase::Terminated { .. }, _) if runtime_only => Vec::new(),
            (Phase::Terminated { .. }, _) => {
                self.note_deletion();
                vec![Effect::Deliver(Work::Kill(1))]
            }
            (_, request) => match self.reason_to_end(&request) {
                Some(reason) => self.terminate(reason, grace_of(&request)),
                None => self.look(&request),
            },
        }
    }

    /// A wish to look at a pod that is not ending.
    fn look(&mut self, request: &Request) -> Vec<Effect> {
        let Request::Sync(new) = request else {
            return Vec::new();
        };
        if let Phase::Waiting { kind, .. } = &mut self.phase {
            *kind = stronger(*kind, *new);
            return Vec::new();
        }
        vec![Effect::Deliver(Work::Sync(*new))]
    }

    fn reason_to_end(&self, request: &Request) -> Option<TerminationReason> {
        if let Subject::Pod(pod) = &self.subject {
            if pod.is_being_deleted() {
                return Some(TerminationReason::Deleted);
            }
            if pod.is_terminal() {
                return Some(TerminationReason::Finished);
            }
        }
        match request {
            Request::Kill { reason, .. } => Some(reason.clone()),
            Request::Sync(_) => None,
        }
    }

    /// The pod has to end: from now on every update is a kill. A static pod that never ran is closed
    /// at once.
    fn terminate(&mut self, reason: TerminationReason, within: Option<i64>) -> Vec<Effect> {
        let Subject::Pod(pod) = &self.subject else {
            return Vec::new();
        };
        let mut end = End::new(reason, pod);
        end.deleted |= end.reason == TerminationReason::Orphaned;
        let never_ran = matches!(
            self.phase,
            Phase::Waiting { may_run: false, .. } | Phase::Starting { may_run: false }
        );
        if never_ran && pod.is_static() {
            self.phase = Phase::Finished { end };
            return vec![Effect::Leave, Effect::MarkFinished];
        }
        let mut effects = Vec::new();
        if pod.is_static() {
            effects.push(Effect::Hold);
        }
        if self.turn == Some(Running::Sync) {
            effects.push(Effect::CancelSync);
        }
        let seconds = self.asked_grace(within);
        let grace = Grace::new(seconds.unwrap_or_else(|| pod.termination_grace_seconds()));
        effects.push(Effect::Deliver(Work::Kill(grace.seconds())));
        self.phase = Phase::Terminating { end, grace };
        effects
    }

    /// The least grace that somebody asked for; `None` leaves it to the pod's own.
    fn asked_grace(&self, within: Option<i64>) -> Option<i64> {
        match &self.subject {
            Subject::Pod(pod) => {
                let by_api = pod.metadata.deletion_grace_period_seconds;
                [within, by_api].into_iter().flatten().min()
            }
            Subject::Runtime(_) => within,
        }
    }

    /// An update of a pod that is being stopped: less grace, perhaps, and a nudge.
    fn shorten_grace(&mut self, within: Option<i64>, now: Instant) -> Vec<Effect> {
        self.note_deletion();
        let asked = self.asked_grace(within);
        let Phase::Terminating { grace, .. } = &mut self.phase else {
            return Vec::new();
        };
        let moved = asked.and_then(|seconds| grace.shorten(seconds, now));
        let nudge = Effect::Deliver(Work::Kill(grace.seconds()));
        let shortened = moved.map(Effect::ShortenGrace);
        shortened.into_iter().chain([nudge]).collect()
    }

    fn note_deletion(&mut self) {
        let Subject::Pod(pod) = &self.subject else {
            return;
        };
        if let Phase::Terminating { end, .. } | Phase::Terminated { end } = &mut self.phase {
            end.deleted |= pod.is_being_deleted();
        }
    }

    fn on_may_start(&mut self) -> Vec<Effect> {
        let Phase::Waiting { kind, may_run } = self.phase else {
            return Vec::new();
        };
        self.phase = Phase::Starting { may_run };
        vec![Effect::Deliver(Work::Sync(kind))]
    }

    fn on_begin(&mut self, work: Option<Work>, now: Instant) -> Option<Effect> {
        if self.turn.is_some() {
            return None;
        }
        if let Phase::Starting { .. } = self.phase {
            self.phase = Phase::Syncing;
        }
        let (turn, running) = match (&mut self.phase, &self.subject) {
            (Phase::Syncing, Subject::Pod(pod)) => {
                let kind = match work {
                    Some(Work::Sync(kind)) => kind,
                    Some(Work::Kill(_)) | None => UpdateKind::Sync,
                };
                (Turn::Sync(pod.clone(), kind), Running::Sync)
            }
            (Phase::Terminating { grace, end }, Subject::Pod(pod)) => (
                Turn::Terminate(pod.clone(), grace.begin(now), end.reason.clone()),
                Running::Terminate,
            ),
            (Phase::Terminating { grace, .. }, Subject::Runtime(status)) => (
                Turn::TerminateRuntime(status.clone(), grace.begin(now)),
                Running::TerminateRuntime,
            ),
            (Phase::Terminated { .. }, Subject::Pod(pod)) => {
                (Turn::CleanUp(pod.clone()), Running::CleanUp)
            }
            _ => return None,
        };
        self.turn = Some(running);
        Some(Effect::Run(turn))
    }

    /// What runs is over, and it is not known how.
    pub(super) fn interrupt(&mut self) {
        self.turn = None;
    }

    fn on_ended(&mut self, outcome: Outcome) -> Vec<Effect> {
        let Some(running) = self.turn.take() else {
            return Vec::new();
        };
        if outcome == Outcome::Done {
            self.failed_stops = 0;
        }
        match (running, outcome) {
            (Running::Sync, outcome) => self.on_synced(outcome),
            (_, Outcome::Failed | Outcome::Synced { .. }) => {
                self.failed_stops = self.failed_stops.saturating_add(1);
                vec![Effect::Rest(Next {
                    again: None,
                    delay: RetryDelay::Stop(self.failed_stops),
                })]
            }
            (Running::Terminate, Outcome::Done) => {
                if let Phase::Terminating { end, .. } = &self.phase {
                    self.phase = Phase::Terminated { end: end.clone() };
                }
                vec![Effect::Continue]
            }
            (Running::TerminateRuntime, Outcome::Done) => match self.subject {
                Subject::Runtime(_) => vec![Effect::Leave, Effect::Drop],
                // Its spec came while it was being stopped: stop it again, this time by the spec.
                Subject::Pod(_) => vec![Effect::Continue],
            },
            (Running::CleanUp, Outcome::Done) => {
                if let Phase::Terminated { end } = &self.phase {
                    self.phase = Phase::Finished { end: end.clone() };
                }
                vec![Effect::Leave, Effect::MarkFinished]
            }
        }
    }

    fn on_synced(&mut self, outcome: Outcome) -> Vec<Effect> {
        if self.phase != Phase::Syncing {
            return vec![Effect::Continue];
        }
        self.failed = match outcome {
            Outcome::Synced { next, .. } => next.delay == RetryDelay::Error,
            Outcome::Done | Outcome::Failed => true,
        };
        match outcome {
            Outcome::Synced { terminal: true, .. } => {
                self.terminate(TerminationReason::Finished, None);
                vec![Effect::Continue]
            }
            Outcome::Synced { next, .. } => vec![Effect::Rest(next)],
            Outcome::Done | Outcome::Failed => vec![Effect::Rest(Next::ERROR)],
        }
    }

    fn on_unwanted(&mut self) -> Vec<Effect> {
        match &self.phase {
            Phase::Finished { .. } => vec![Effect::Drop],
            Phase::Waiting { may_run: false, .. } | Phase::Starting { may_run: false } => {
                vec![Effect::Leave, Effect::Drop]
            }
            Phase::Waiting { .. } | Phase::Starting { .. } | Phase::Syncing => {
                self.terminate(TerminationReason::Deleted, None)
            }
            Phase::Terminating { .. } | Phase::Terminated { .. } => Vec::new(),
        }
    }

    /// Stopping or cleaning up is tried again at once, if it is not done.
    fn try_again(&self) -> Vec<Effect> {
        let grace = match &self.phase {
            Phase::Terminating { grace, .. } => grace.seconds(),
            Phase::Terminated { .. } => 1,
            _ => return Vec::new(),
        };
        vec![Effect::Deliver(Work::Kill(grace))]
    }
}

/// Questions.
impl PodState {
    /// Where it is.
    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whom it is about.
    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Its full name.
    pub(super) fn full_name(&self) -> PodFullName {
        match &self.subject {
            Subject::Pod(pod) => pod.full_name(),
            Subject::Runtime(status) => PodFullName::of(&status.name, &status.namespace),
        }
    }

    /// How it ends, once it does.
    pub(super) fn end(&self) -> Option<&End> {
        match &self.phase {
            Phase::Terminating { end, .. }
            | Phase::Terminated { end }
            | Phase::Finished { end } => Some(end),
            Phase::Waiting { .. } | Phase::Starting { .. } | Phase::Syncing => None,
        }
    }

    /// Nothing is left to do.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. })
    }
}

fn grace_of(request: &Request) -> Option<i64> {
    match request {
        Request::Kill { grace_seconds, .. } => *grace_seconds,
        Request::Sync(_) => None,
    }
}
