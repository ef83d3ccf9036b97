//! The state machine of one volume of the node. Pure.
//!
//! A pod *wants* the volume from the start of its setup until its containers have ended. The volume is staged and
//! published for the pods that want it; it is unpublished for the others, and unstaged when no pod is left:
//!
//! ```text
//!            Stage            Publish (each pod)
//!  attached -------> staged -------------------> published
//!    forgotten <---- staged <------------------- published
//!            Unstage          Unpublish (each pod)
//! ```
//!
//! One step runs at a time. From its begin until a call has succeeded, what it changes is *unknown*: a call that timed
//! out may still run in the driver. A call that fails for good proves that nothing happened only if nothing was there
//! before; else only a later success of the same or the opposite step settles the state. An unknown stage or publish is
//! repeated while a pod wants it, and undone afterwards. As long as anything is not known to be undone, the volume is in
//! use, so that no controller detaches it from the node.
//!
//! A driver that is not registered, a volume that is not attached or another pod that has the volume are waits, which
//! end with a change of the [`VolumeFacts`]. Only failures have a back-off, one per step.
//!
//! Attaching is no step: a controller does it, and the kubelet only waits for it.
//!
//! Upstream: the operation generator, the reconciler, and the states of the world in `pkg/kubelet/volumemanager`.

mod expansion;
mod explanation;
mod facts;
mod queries;
#[cfg(test)]
mod remount_tests;
#[cfg(test)]
mod histories_tests;
mod step;
#[cfg(test)]
mod tests;

pub use expansion::ExpansionDue;
pub use facts::{DriverFacts, VolumeFacts, attach_required};
pub use step::{CallOutcome, Known, Step, StepFailure, VolumeWait, WaitReason};

use super::identity::Lifecycle;
use crate::base::backoff::Backoff;
use crate::base::clock::Instant;
use crate::model::PodUid;
use std::collections::BTreeMap;
use std::time::Duration;
use step::settled;

/// The back-off after the first failure of a step.
const BACKOFF_BASE: Duration = Duration::from_millis(500);
/// The longest back-off, upstream's 2 min 2 s.
const BACKOFF_CAP: Duration = Duration::from_secs(122);
/// Maximum length of an error of a driver that is kept, in bytes.
const MAX_ERROR: usize = 1024;

/// Whether a pod wants the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// An earlier kubelet published the volume for the pod, of which nothing is known yet. Its containers may run.
    #[default]
    NotKnown,
    /// The pod mounts it.
    Wanted,
    /// The pod's containers have ended.
    NotWanted,
}

/// The state of the volume for one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodMount {
    /// Whether it is published.
    pub published: Known,
    /// Whether it should be.
    pub wish: Wish,
    /// A repetition of the publish is due, for drivers with `requiresRepublish`.
    pub republish: bool,
    /// Its mount is dead, so it is unpublished and published again.
    pub is_dead: bool,
    /// Whether the size has to be checked.
    pub expansion: ExpansionDue,
}

impl PodMount {
    /// Whether it has to be unpublished.
    fn is_due_to_go(&self) -> bool {
        (self.wish == Wish::NotWanted || self.is_dead) && self.published != Known::No
    }
}

/// What to do with the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Begin this step.
    Do(Step),
    /// Nothing can be done before the facts or the wishes change, or the time of the wait comes.
    Wait(VolumeWait),
    /// It is as the pods want it.
    Idle,
    /// Nothing is left of it on this node, and no pod wants it.
    Forget,
}

/// A step in progress.
#[derive(Clone, Debug)]
struct RunningStep {
    step: Step,
    /// What its target was before.
    before: Known,
    since: Instant,
}

/// A step that waits, as the last evaluation found it.
#[derive(Clone, Debug)]
struct WaitingStep {
    step: Step,
    reason: WaitReason,
    since: Instant,
}

/// One volume of the node.
#[derive(Clone, Debug)]
pub struct NodeVolume {
    lifecycle: Lifecycle,
    is_for_single_pod: bool,
    staged: Known,
    /// The staged mount is dead or has another SELinux label, so it is unstaged and staged again.
    is_stage_stale: bool,
    pods: BTreeMap<PodUid, PodMount>,
    in_progress: Option<RunningStep>,
    failures: BTreeMap<Step, StepFailure>,
    backoff: Backoff<Step, Instant>,
    waiting: Vec<WaitingStep>,
}

impl NodeVolume {
    /// A volume of which nothing is on the node. Inline volumes are neither attached nor staged.
    pub fn new(lifecycle: Lifecycle) -> Self {
        Self {
            lifecycle,
            is_for_single_pod: false,
            staged: Known::No,
            is_stage_stale: false,
            pods: BTreeMap::new(),
            in_progress: None,
            failures: BTreeMap::new(),
            // Only success, registration of the driver or another wish ends a back-off.
            backoff: Backoff::new(BACKOFF_BASE, BACKOFF_CAP, Duration::MAX),
            waiting: Vec::new(),
        }
    }

    /// A volume that an earlier kubelet may have staged, and published for these pods.
    pub fn recovered(
        lifecycle: Lifecycle,
        staged: bool,
        pods: impl IntoIterator<Item = PodUid>,
    ) -> Self {
        let mount = PodMount { published: Known::Unknown, ..PodMount::default() };
        let is_staged = staged && lifecycle == Lifecycle::Persistent;
        Self {
            staged: if is_staged { Known::Unknown } else { Known::No },
            pods: pods.into_iter().map(|uid| (uid, mount)).collect(),
            ..Self::new(lifecycle)
        }
    }

    /// A pod wants the volume. `is_for_single_pod` says that only one pod may have it (`ReadWriteOncePod`).
    pub fn want(&mut self, uid: &PodUid, is_for_single_pod: bool) {
        self.is_for_single_pod = is_for_single_pod;
        self.pods.entry(uid.clone()).or_default();
        self.set_wish(uid, Wish::Wanted);
    }

    /// The pod's containers have ended. Nothing happens for a pod that has nothing of the volume.
    pub fn unwant(&mut self, uid: &PodUid) {
        self.set_wish(uid, Wish::NotWanted);
        self.prune();
    }

    fn set_wish(&mut self, uid: &PodUid, wish: Wish) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if pod.wish == wish {
            return;
        }
        pod.wish = wish;
        (pod.republish, pod.expansion) = (false, ExpansionDue::No);
        // The failures so far concern the earlier wish.
        self.backoff.retain(|step, _| step.pod() != Some(uid));
    }

    /// The publish for this pod has to be repeated, if it is published.
    pub fn request_republish(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.republish = pod.published == Known::Yes && pod.wish == Wish::Wanted;
        }
    }

    /// The staged mount has to be unstaged and staged again once no pod has the volume.
    pub fn replace_stage(&mut self) {
        self.is_stage_stale = self.staged != Known::No;
    }

    /// The mount of a pod without running containers is dead. It is mounted again.
    pub fn remount(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.is_dead = pod.published != Known::No;
        }
    }

    /// The driver has been registered: what failed before is tried again at once.
    pub fn driver_registered(&mut self) {
        self.backoff.retain(|_, _| false);
    }

    /// Decides what to do. Keeps nothing; see [`Self::evaluate`].
    pub fn next(&self, facts: &VolumeFacts, now: Instant) -> Next {
        if let Some(running) = &self.in_progress {
            return Next::Wait(VolumeWait {
                reason: WaitReason::Step(running.step.clone()),
                retry_at: None,
            });
        }
        let candidates = self.candidates(facts, now);
        if let Some((step, _)) = candidates.iter().find(|(_, blocked)| blocked.is_none()) {
            return Next::Do(step.clone());
        }
        let reasons = candidates.into_iter().filter_map(|(_, blocked)| blocked);
        let reasons: Vec<_> = reasons.collect();
        let retry_at = reasons.iter().filter_map(WaitReason::retry_at).min();
        if let Some(reason) = reasons.into_iter().next() {
            return Next::Wait(VolumeWait { reason, retry_at });
        }
        if self.pods.values().any(|pod| pod.wish == Wish::NotKnown) {
            return Next::Wait(VolumeWait { reason: WaitReason::Pods, retry_at: None });
        }
        if self.is_in_use() { Next::Idle } else { Next::Forget }
    }

    /// Decides what to do, and remembers since when each step waits.
    pub fn evaluate(&mut self, facts: &VolumeFacts, now: Instant) -> Next {
        let next = self.next(facts, now);
        if self.in_progress.is_some() {
            return next;
        }
        let earlier = std::mem::take(&mut self.waiting);
        let blocked = self.candidates(facts, now).into_iter();
        let blocked = blocked.filter_map(|(step, reason)| {
            let reason = reason?;
            let same = |old: &&WaitingStep| old.step == step && old.reason == reason;
            let since = earlier.iter().find(same).map_or(now, |old| old.since);
            Some(WaitingStep { step, reason, since })
        });
        self.waiting = blocked.collect();
        next
    }

    /// The steps that are due, the most urgent first, and what each waits for. Undoing is first, so that a volume is free
    /// for the next pod.
    fn candidates(&self, facts: &VolumeFacts, now: Instant) -> Vec<(Step, Option<WaitReason>)> {
        let mut steps = Vec::new();
        for (uid, pod) in &self.pods {
            if pod.is_due_to_go() {
                steps.push(Step::Unpublish(uid.clone()));
            }
        }
        let wanted = || {
            let pods = self.pods.iter();
            pods.filter(|(_, pod)| pod.wish == Wish::Wanted)
        };
        let missing = || wanted().filter(|(_, pod)| pod.published != Known::Yes && !pod.is_dead);
        if missing().next().is_some() && self.has_to_stage(facts) && !self.is_stage_stale {
            steps.push(Step::Stage);
        } else {
            steps.extend(missing().map(|(uid, _)| Step::Publish(uid.clone())));
        }
        let due = wanted()
            .filter(|(_, pod)| pod.republish && pod.published == Known::Yes && !pod.is_dead);
        steps.extend(due.map(|(uid, _)| Step::Republish(uid.clone())));
        steps.extend(self.due_expansions());
        if self.may_unstage() {
            steps.push(Step::Unstage);
        }
        let steps = steps.into_iter().map(|step| {
            let blocked = self.blocked(&step, facts, now);
            (step, blocked)
        });
        steps.collect()
    }

    /// Whether the volume has to be staged before it is published. While the driver is not registered, its capability is
    /// not known.
    fn has_to_stage(&self, facts: &VolumeFacts) -> bool {
        let stages = facts.driver.is_none_or(|driver| driver.stages);
        self.lifecycle == Lifecycle::Persistent && self.staged != Known::Yes && stages
    }

    /// Whether the volume is or may be staged although no pod has it: no pod wants it, or the staged mount has to be replaced.
    fn may_unstage(&self) -> bool {
        let is_free = |pod: &PodMount| {
            pod.published == Known::No && (pod.wish != Wish::Wanted || self.is_stage_stale)
        };
        self.staged != Known::No && self.pods.values().all(is_free)
    }

    /// A pod that has or may have the volume, whose staged mount has to be replaced.
    fn holder_of_stale_stage(&self) -> Option<&PodUid> {
        let mut pods = self.pods.iter();
        let holder = pods.find(|(_, pod)| pod.published != Known::No);
        holder.filter(|_| self.is_stage_stale).map(|(holder, _)| holder)
    }

    fn blocked(&self, step: &Step, facts: &VolumeFacts, now: Instant) -> Option<WaitReason> {
        let needs_attach = self.lifecycle == Lifecycle::Persistent && facts.attach_required;
        match step {
            Step::Stage | Step::Publish(_) if needs_attach => {
                if !facts.is_confirmed_in_use {
                    return Some(WaitReason::VolumesInUse);
                }
                if !facts.is_attached {
                    return Some(WaitReason::Attach);
                }
            }
            Step::Unstage if !facts.pods_are_known => return Some(WaitReason::Pods),
            _ => {}
        }
        if let Step::Publish(uid) = step {
            if let Some(other) = self.holder_besides(uid) {
                return Some(WaitReason::OtherPod(other.clone()));
            }
            if self.is_stage_stale {
                let holder = self.holder_of_stale_stage();
                return Some(WaitReason::StaleStage(holder.cloned()));
            }
        }
        if facts.driver.is_none() {
            return Some(WaitReason::Driver);
        }
        let failure = self.failures.get(step)?;
        let left = self.backoff.remaining(step, failure.at, now)?;
        Some(WaitReason::Retry(now + left))
    }

    /// Another pod that has or may have the volume, if only one may.
    fn holder_besides(&self, uid: &PodUid) -> Option<&PodUid> {
        let mut others = self.pods.iter().filter(|(other, _)| *other != uid);
        let holder = others.find(|(_, pod)| pod.published != Known::No);
        holder.filter(|_| self.is_for_single_pod).map(|(other, _)| other)
    }

    /// Begins a step that [`Self::next`] returned: what it changes is unknown from now on, so records have to be written
    /// before. False, and nothing changes, if another step is in progress or the state does not allow it.
    #[must_use]
    pub fn begin(&mut self, step: Step, now: Instant) -> bool {
        if self.in_progress.is_some() || !self.allows(&step) {
            return false;
        }
        let Some(before) = self.target(&step).copied() else {
            return false;
        };
        match &step {
            Step::Republish(uid) => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.republish = false;
                }
            }
            Step::Expand(_) => {}
            _ => self.set_target(&step, Known::Unknown),
        }
        self.waiting.clear();
        self.in_progress = Some(RunningStep { step, before, since: now });
        true
    }

    /// Whether the state allows a step, whatever the facts.
    fn allows(&self, step: &Step) -> bool {
        let pod = step.pod().and_then(|uid| self.pods.get(uid));
        let is = |wish: Wish, published: &dyn Fn(Known) -> bool| {
            pod.is_some_and(|pod| pod.wish == wish && published(pod.published))
        };
        match step {
            Step::Stage => {
                let is_missing = self.staged != Known::Yes && !self.is_stage_stale;
                self.lifecycle == Lifecycle::Persistent && is_missing
            }
            Step::Publish(uid) => {
                let is_free = self.holder_besides(uid).is_none() && !self.is_stage_stale;
                is(Wish::Wanted, &|it| it != Known::Yes) && is_free
            }
            Step::Republish(_) => is(Wish::Wanted, &|it| it == Known::Yes),
            Step::Expand(_) => pod.is_some_and(PodMount::can_expand),
            Step::Unpublish(_) => pod.is_some_and(PodMount::is_due_to_go),
            Step::Unstage => self.may_unstage(),
        }
    }

    /// What a step changes.
    fn target(&self, step: &Step) -> Option<&Known> {
        match step.pod() {
            None => Some(&self.staged),
            Some(uid) => self.pods.get(uid).map(|pod| &pod.published),
        }
    }

    fn set_target(&mut self, step: &Step, known: Known) {
        match step.pod() {
            None => self.staged = known,
            Some(uid) => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.published = known;
                }
            }
        }
    }

    /// The step in progress has ended. False, and nothing changes, if it is not the one in progress. Errors must not
    /// contain secrets, because they are shown.
    pub fn ended(&mut self, step: &Step, outcome: CallOutcome, now: Instant) -> bool {
        let Some(running) = self.in_progress.take_if(|running| running.step == *step) else {
            return false;
        };
        self.set_target(step, settled(step, running.before, &outcome));
        self.expansion_ended(step, &outcome);
        if self.staged == Known::No {
            self.is_stage_stale = false;
        }
        if let Some(pod) = step.pod().and_then(|uid| self.pods.get_mut(uid)) {
            pod.is_dead &= pod.published != Known::No;
        }
        match outcome {
            CallOutcome::Done => {
                for step in [Some(step.clone()), step.opposite()].into_iter().flatten() {
                    self.failures.remove(&step);
                    self.backoff.forget(&step);
                }
            }
            CallOutcome::Failed(error)
            | CallOutcome::Unknown(error)
            | CallOutcome::NotCalled(error) => self.failed(step, error, now),
        }
        self.prune();
        true
    }

    fn failed(&mut self, step: &Step, mut error: String, now: Instant) {
        if let Step::Republish(uid) = step
            && let Some(pod) = self.pods.get_mut(uid)
        {
            pod.republish = pod.wish == Wish::Wanted;
        }
        // A driver may return megabytes.
        error.truncate(error.floor_char_boundary(MAX_ERROR));
        let count = self.failures.get(step).map_or(0, |failure| failure.count);
        let failure = StepFailure { error, at: now, count: count.saturating_add(1) };
        self.failures.insert(step.clone(), failure);
        self.backoff.advance(step.clone(), now, now);
    }

    /// Forgets pods that neither have nor want the volume, with their failures.
    fn prune(&mut self) {
        self.pods.retain(|_, pod| pod.wish != Wish::NotWanted || pod.published != Known::No);
        let pods = &self.pods;
        let is_current = |step: &Step| step.pod().is_none_or(|uid| pods.contains_key(uid));
        self.failures.retain(|step, _| is_current(step));
        self.backoff.retain(|step, _| is_current(step));
    }
}
