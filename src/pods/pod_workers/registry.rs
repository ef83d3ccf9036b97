//! The map from UID to worker, and the executor of what the state machine asks for.

use super::{
    KnownPod, Look, Shared, delay,
    gate::StartGate,
    phase::{Phase, Subject},
    state::{Effect, Input, Outcome, PodState, Turn},
    task,
    update::{Undelivered, UpdateOptions, Work},
};
use crate::model::{GraceDeadline, PodExt, PodFullName, PodSource, PodStatus, PodUid};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How long a worker rests after a panic in its bookkeeping.
const RECOVERY_DELAY: Duration = Duration::from_secs(10);

/// All workers and the gate, under one lock that is never held across a wait.
#[derive(Default)]
pub(super) struct Map {
    entries: HashMap<PodUid, Entry>,
    gate: StartGate,
    /// Names held for pods that run without a worker.
    held: HashMap<PodUid, PodFullName>,
    generations: u64,
    /// Everything that is wanted has been compared with what is known at least once.
    pub(super) synced: bool,
}

struct Entry {
    state: PodState,
    full_name: PodFullName,
    generation: u64,
    /// The task, once there was something to deliver.
    link: Option<Box<Link>>,
}

/// The map's end of a worker task.
struct Link {
    sender: mpsc::Sender<Work>,
    undelivered: Undelivered,
    /// A message is on its way or a turn is running.
    busy: bool,
    /// Ends the running turn of setting up.
    cancel: Option<CancellationToken>,
    /// Shortens the running turn of stopping.
    grace: Option<watch::Sender<GraceDeadline>>,
    /// Since when the running turn runs, or when the next one is due.
    clock: Option<Clock>,
}

/// What a worker's own clock says.
#[derive(Clone, Copy)]
enum Clock {
    Turning(Instant),
    Due(Instant),
}

/// A turn with its strings attached.
pub(super) enum Job {
    /// Set up, until cancelled.
    Sync(Turn, CancellationToken),
    /// Stop within a deadline that may move.
    Stop(Turn, watch::Receiver<GraceDeadline>),
    /// Give back.
    CleanUp(Turn),
}

/// What a worker does after a turn.
pub(super) enum After {
    Continue,
    Rest(Instant),
    /// Listen; there is a message already.
    Listen,
    Exit,
}

/// Answers of the state machine that only the caller can act on.
#[derive(Default)]
pub(super) struct Answers {
    run: Option<Turn>,
    proceed: bool,
    rest: Option<delay::Next>,
}

impl Map {
    pub(super) fn state(&self, uid: &PodUid) -> Option<&PodState> {
        self.entries.get(uid).map(|entry| &entry.state)
    }

    pub(super) fn uids(&self) -> Vec<PodUid> {
        self.entries.keys().cloned().collect()
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.entries.remove(uid);
    }

    /// Workers, and names that somebody holds or waits for.
    pub(super) fn kept(&self) -> [(&'static str, usize); 2] {
        let names = self.gate.len() + self.held.len();
        [("workers", self.entries.len()), ("held_names", names)]
    }

    pub(super) fn known(&self) -> Vec<KnownPod> {
        let known = |(uid, entry): (&PodUid, &Entry)| KnownPod {
            uid: uid.clone(),
            full_name: entry.full_name.clone(),
            phase: entry.state.phase().clone(),
            has_spec: matches!(entry.state.subject(), Subject::Pod(_)),
            is_static: match entry.state.subject() {
                Subject::Pod(pod) => pod.is_static(),
                Subject::Runtime(_) => false,
            },
        };
        self.entries.iter().map(known).collect()
    }

    /// What the worker of a pod is at.
    pub(super) fn look(&self, uid: &PodUid) -> Option<Look> {
        let entry = self.entries.get(uid)?;
        let clock = entry.link.as_ref().and_then(|link| link.clock);
        let phase = entry.state.phase().clone();
        let behind = match phase {
            Phase::Waiting { .. } => self.gate.inside(&entry.full_name),
            _ => Vec::new(),
        };
        Some(Look {
            phase,
            turn_since: clock.and_then(|clock| match clock {
                Clock::Turning(since) => Some(since),
                Clock::Due(_) => None,
            }),
            due: clock.and_then(|clock| match clock {
                Clock::Turning(_) => None,
                Clock::Due(due) => Some(due),
            }),
            behind,
        })
    }

    /// Holds the names of static pods that run without a worker and releases those that do not run
    /// any more. Returns the pods that may start now.
    pub(super) fn observe(&mut self, pods: &[Arc<PodStatus>]) -> Vec<PodUid> {
        let mut running = HashSet::new();
        for pod in pods.iter().filter(|pod| pod.is_active()) {
            running.insert(pod.uid.clone());
            let is_static = pod.source() != PodSource::Api;
            if is_static && !self.entries.contains_key(&pod.uid) {
                let name = PodFullName::of(&pod.name, &pod.namespace);
                self.gate.hold(&name, &pod.uid);
                self.held.insert(pod.uid.clone(), name);
            }
        }
        let mut may_start = Vec::new();
        let Self {
            held,
            gate,
            entries,
            ..
        } = self;
        held.retain(|uid, name| {
            if entries.contains_key(uid) {
                return false;
            }
            let keep = running.contains(uid);
            if !keep {
                may_start.extend(gate.leave(name, uid));
            }
            keep
        });
        may_start
    }

    fn link(&mut self, uid: &PodUid, generation: u64) -> Option<&mut Link> {
        let entry = self.entries.get_mut(uid)?;
        (entry.generation == generation).then_some(entry.link.as_deref_mut()?)
    }

    /// The pod is finished: its record stays, its task goes.
    fn unlink(&mut self, uid: &PodUid) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.link = None;
        }
    }

    /// Nothing is held and nobody is known.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.gate.is_empty()
    }
}

impl Shared {
    pub(super) fn update(self: &Arc<Self>, options: UpdateOptions, now: Instant) {
        let uid = match (&options.pod, &options.running) {
            (Some(pod), _) => pod.uid(),
            (None, Some(running)) => running.uid.clone(),
            (None, None) => return,
        };
        let mut map = self.map.lock();
        if map.entries.contains_key(&uid) {
            self.input(&mut map, &uid, Input::Update(options), now);
            return;
        }
        if self.finished.contains(&uid) {
            // Its remains come first: whoever collects it asks again for what is wanted then.
            return;
        }
        let Some((state, effects)) = PodState::first(options, now) else {
            return;
        };
        map.generations += 1;
        let entry = Entry {
            full_name: state.full_name(),
            generation: map.generations,
            state,
            link: None,
        };
        map.entries.insert(uid.clone(), entry);
        map.held.remove(&uid);
        self.apply(&mut map, &uid, effects, now);
    }

    /// Feeds the state machine of one pod.
    pub(super) fn input(
        self: &Arc<Self>,
        map: &mut Map,
        uid: &PodUid,
        input: Input,
        now: Instant,
    ) -> Answers {
        match map.entries.get_mut(uid) {
            Some(entry) => {
                let effects = entry.state.on(input, now);
                self.apply(map, uid, effects, now)
            }
            None => Answers::default(),
        }
    }

    /// Carries effects out. Letting a pod through the gate has effects of its own, on that pod.
    fn apply(
        self: &Arc<Self>,
        map: &mut Map,
        uid: &PodUid,
        effects: Vec<Effect>,
        now: Instant,
    ) -> Answers {
        let mut answers = Answers::default();
        let mut queue: VecDeque<(PodUid, Effect)> =
            effects.into_iter().map(|e| (uid.clone(), e)).collect();
        while let Some((uid, effect)) = queue.pop_front() {
            let Some(next) = self.apply_one(map, &uid, effect, &mut answers) else {
                continue;
            };
            if let Some(entry) = map.entries.get_mut(&next) {
                let more = entry.state.on(Input::MayStart, now);
                queue.extend(more.into_iter().map(|effect| (next.clone(), effect)));
            }
        }
        answers
    }

    /// Returns the pod that may start because of this.
    fn apply_one(
        self: &Arc<Self>,
        map: &mut Map,
        uid: &PodUid,
        effect: Effect,
        answers: &mut Answers,
    ) -> Option<PodUid> {
        let entry = map.entries.get_mut(uid)?;
        match effect {
            Effect::Deliver(work) => self.deliver(entry, uid, work),
            Effect::CancelSync => {
                if let Some(cancel) = entry.link.as_ref().and_then(|l| l.cancel.as_ref()) {
                    cancel.cancel();
                }
            }
            Effect::ShortenGrace(deadline) => {
                if let Some(grace) = entry.link.as_ref().and_then(|l| l.grace.as_ref()) {
                    grace.send_replace(deadline);
                }
            }
            Effect::Arrive => {
                let may_start = map.gate.arrive(&entry.full_name, uid);
                return may_start.then(|| uid.clone());
            }
            Effect::Hold => map.gate.hold(&entry.full_name, uid),
            Effect::Leave => return map.gate.leave(&entry.full_name, uid),
            Effect::Run(turn) => answers.run = Some(turn),
            Effect::Continue => answers.proceed = true,
            Effect::Rest(next) => answers.rest = Some(next),
            Effect::MarkFinished => self.finished.mark(uid.clone()),
            Effect::Drop => {
                map.entries.remove(uid);
                self.finished.mark(uid.clone());
            }
        }
        None
    }

    /// The channel of one, and behind it the slot for the last undelivered update.
    fn deliver(self: &Arc<Self>, entry: &mut Entry, uid: &PodUid, work: Work) {
        let generation = entry.generation;
        let link = entry.link.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(1);
            let worker = task::run(self.clone(), uid.clone(), generation, receiver);
            self.tasks.spawn(worker);
            Box::new(Link {
                sender,
                undelivered: Undelivered::default(),
                busy: false,
                cancel: None,
                grace: None,
                clock: None,
            })
        });
        link.send(work);
    }

    /// A worker is free for a turn; `None` when it is no longer needed.
    pub(super) fn begin(
        self: &Arc<Self>,
        uid: &PodUid,
        generation: u64,
        work: Option<Work>,
        now: Instant,
    ) -> Option<Job> {
        let mut map = self.map.lock();
        let link = map.link(uid, generation)?;
        link.busy = true;
        // What came meanwhile is part of what this turn looks at.
        work.into_iter().for_each(|work| link.undelivered.put(work));
        let work = link.undelivered.take();
        let answers = self.input(&mut map, uid, Input::Begin(work), now);
        let Some(turn) = answers.run else {
            map.unlink(uid);
            return None;
        };
        let link = map.link(uid, generation)?;
        link.clock = Some(Clock::Turning(now));
        Some(match turn {
            Turn::Sync(..) => {
                let cancel = self.shutdown.child_token();
                link.cancel = Some(cancel.clone());
                Job::Sync(turn, cancel)
            }
            Turn::Terminate(_, grace, _) | Turn::TerminateRuntime(_, grace) => {
                let (sender, receiver) = watch::channel(grace);
                link.grace = Some(sender);
                Job::Stop(turn, receiver)
            }
            Turn::CleanUp(_) => Job::CleanUp(turn),
        })
    }

    /// A turn is over.
    pub(super) fn end(
        self: &Arc<Self>,
        uid: &PodUid,
        generation: u64,
        outcome: Outcome,
        now: Instant,
    ) -> After {
        let mut map = self.map.lock();
        let Some(link) = map.link(uid, generation) else {
            return After::Exit;
        };
        link.cancel = None;
        link.grace = None;
        let answers = self.input(&mut map, uid, Input::Ended(outcome), now);
        let Some(link) = map.link(uid, generation) else {
            return After::Exit;
        };
        if answers.proceed {
            return After::Continue;
        }
        let Some(next) = answers.rest else {
            map.unlink(uid);
            return After::Exit;
        };
        link.busy = false;
        link.clock = None;
        match link.undelivered.take() {
            Some(work) => {
                link.send(work);
                After::Listen
            }
            None => {
                let due = delay::due(next, &self.delays, now, fastrand::f64());
                link.clock = Some(Clock::Due(due));
                After::Rest(due)
            }
        }
    }
}

impl Shared {
    /// The bookkeeping of a worker has panicked. What it was at is over; it begins again after a delay.
    pub(super) fn recover(&self, uid: &PodUid, generation: u64, now: Instant) -> After {
        let mut map = self.map.lock();
        let entry = map.entries.get_mut(uid);
        let Some(entry) = entry.filter(|entry| entry.generation == generation) else {
            return After::Exit;
        };
        entry.state.interrupt();
        let Some(link) = entry.link.as_deref_mut() else {
            return After::Exit;
        };
        let due = now + RECOVERY_DELAY;
        link.busy = false;
        link.cancel = None;
        link.grace = None;
        link.clock = Some(Clock::Due(due));
        After::Rest(due)
    }
}

impl Link {
    fn send(&mut self, work: Work) {
        if self.busy {
            return self.undelivered.put(work);
        }
        self.busy = true;
        match self.sender.try_send(work) {
            Ok(()) => {}
            // Full: a message is waiting already. Closed: the process is stopping.
            Err(TrySendError::Full(work) | TrySendError::Closed(work)) => {
                self.undelivered.put(work);
            }
        }
    }
}
