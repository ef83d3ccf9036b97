//! What is asked of a worker, and what is kept of it while the worker is busy.

use crate::{
    model::{Pod, PodStatus},
    pods::pod_sync::syncer::{TerminationReason, UpdateKind},
};
use std::sync::Arc;

/// What a worker should do about its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make it run as specified.
    Sync(UpdateKind),
    /// Stop it, for good.
    Kill {
        /// At most this many seconds, whatever the pod says; zero means as fast as possible.
        grace_seconds: Option<i64>,
        /// Why. An eviction lets the pod's containers be removed at once.
        reason: TerminationReason,
    },
}

/// One call of `update_pod`.
#[derive(Clone, Debug)]
pub struct UpdateOptions {
    /// What to do.
    pub request: Request,
    /// The pod; `None` when only the runtime knows it, and then it can only be killed.
    pub pod: Option<Arc<Pod>>,
    /// Its runtime status, if all of it is known. Only looked at when the worker is new.
    pub running: Option<Arc<PodStatus>>,
}

impl UpdateOptions {
    /// Make the pod run as specified.
    pub fn sync(kind: UpdateKind, pod: Arc<Pod>) -> Self {
        Self {
            request: Request::Sync(kind),
            pod: Some(pod),
            running: None,
        }
    }

    /// Stop the pod with its own grace.
    pub fn kill(pod: Arc<Pod>, reason: TerminationReason) -> Self {
        Self {
            request: Request::Kill {
                grace_seconds: None,
                reason,
            },
            pod: Some(pod),
            running: None,
        }
    }

    /// Stop a pod of which only the runtime knows.
    pub fn orphan(running: Arc<PodStatus>) -> Self {
        Self {
            request: Request::Kill {
                grace_seconds: None,
                reason: TerminationReason::Orphaned,
            },
            pod: None,
            running: Some(running),
        }
    }

    /// Stop a pod of which only the runtime knows and that another one takes the place of: with the grace
    /// that its containers were created with.
    pub fn superseded(running: Arc<PodStatus>) -> Self {
        let grace = running.grace_seconds();
        let orphan = Self::orphan(running);
        match grace {
            Some(seconds) => orphan.within(seconds.into()),
            None => orphan,
        }
    }

    /// Stop it within so many seconds; has no effect on anything but a kill.
    #[must_use]
    pub fn within(mut self, seconds: i64) -> Self {
        if let Request::Kill { grace_seconds, .. } = &mut self.request {
            *grace_seconds = Some(seconds);
        }
        self
    }

    /// Adds the runtime status, if all of it is known.
    #[must_use]
    pub fn seen(mut self, running: impl Into<Option<Arc<PodStatus>>>) -> Self {
        self.running = running.into();
        self
    }

    pub(super) fn is_create(&self) -> bool {
        self.request == Request::Sync(UpdateKind::Create)
    }
}

/// What goes through a worker's channel: that there is something to do. What exactly (the newest pod,
/// the grace) is kept in the worker's state, where it cannot be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Look at the pod.
    Sync(UpdateKind),
    /// Stop the pod, with this many seconds of grace.
    Kill(i64),
}

/// The last update that could not be delivered because the worker was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Undelivered(Option<Work>);

impl Undelivered {
    /// A newer update takes the place of an older one, except that a kill is only replaced by a kill
    /// with a shorter grace, and that a pod that is new stays new.
    pub(super) fn put(&mut self, work: Work) {
        self.0 = Some(match (self.0, work) {
            (Some(Work::Kill(old)), Work::Kill(new)) => Work::Kill(old.min(new)),
            (Some(kill @ Work::Kill(_)), Work::Sync(_)) => kill,
            (Some(Work::Sync(old)), Work::Sync(new)) => Work::Sync(stronger(old, new)),
            (None | Some(Work::Sync(_)), work) => work,
        });
    }

    /// Takes it out for delivery.
    pub(super) fn take(&mut self) -> Option<Work> {
        self.0.take()
    }
}

/// Of two reasons to look, the one that says more: new, changed, look again.
pub(super) fn stronger(a: UpdateKind, b: UpdateKind) -> UpdateKind {
    use UpdateKind::{Create, Sync, Update};
    match (a, b) {
        (Create, _) | (_, Create) => Create,
        (Update, _) | (_, Update) => Update,
        (Sync, Sync) => Sync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use UpdateKind::{Create, Sync, Update};

    #[test]
    fn a_pending_kill_is_replaced_by_nothing_but_a_shorter_kill() {
        for (first, second, left) in [
            (Work::Sync(Sync), Work::Sync(Update), Work::Sync(Update)),
            (Work::Sync(Create), Work::Sync(Sync), Work::Sync(Create)),
            (Work::Sync(Create), Work::Kill(5), Work::Kill(5)),
            (Work::Kill(5), Work::Sync(Create), Work::Kill(5)),
            (Work::Kill(5), Work::Kill(9), Work::Kill(5)),
            (Work::Kill(5), Work::Kill(1), Work::Kill(1)),
        ] {
            let mut slot = Undelivered::default();
            slot.put(first);
            slot.put(second);
            assert_eq!(slot.take(), Some(left), "{first:?} then {second:?}");
            assert_eq!(slot.take(), None);
        }
    }
}
