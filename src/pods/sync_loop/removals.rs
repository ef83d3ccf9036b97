//! Background removals of pods: their containers, files, cgroups and records.
//!
//! At shutdown the loop waits for them, under the shutdown deadline, because they write to the pod state store, which is
//! flushed after that.

use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{DirtySet, spawn};
use crate::model::PodUid;
use std::collections::HashSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A removal that ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EndedRemoval {
    pub(super) uid: PodUid,
    /// Everything was removed.
    pub(super) complete: bool,
}

/// The removals in progress, one per UID.
#[derive(Default)]
pub(in crate::pods) struct Removals {
    running: HashSet<PodUid>,
    ended: Arc<DirtySet<EndedRemoval>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Removals {
    /// Whether this pod is being removed. True until [`Self::finish`].
    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.running.contains(uid)
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.running.iter()
    }

    /// Starts a removal, which returns whether everything was removed. Its token is cancelled at shutdown; after that, a
    /// removal must not begin anything that takes long. The caller checks that no removal of this UID is running.
    pub(super) fn start<F>(&mut self, uid: PodUid, removal: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.running.insert(uid.clone());
        let (removal, ended) = (removal(self.stop.clone()), self.ended.clone());
        let work = async move {
            // Also after a panic, or no pod could use this UID again.
            let complete = catch_panic(PanicScope::CleanUp, removal).await.unwrap_or(false);
            ended.mark(EndedRemoval { uid, complete });
        };
        spawn(PanicScope::CleanUp, self.tasks.track_future(work));
    }

    /// Waits until at least one removal has ended, and returns those that have. Safe to cancel.
    pub(super) async fn ended(&self) -> HashSet<EndedRemoval> {
        self.ended.take().await
    }

    /// Forgets a removal whose end was handled.
    pub(super) fn finish(&mut self, uid: &PodUid) {
        self.running.remove(uid);
    }

    /// Waits until all have ended; the caller sets the deadline.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn the_stop_waits_for_what_is_being_written_and_not_for_what_waits() {
        let mut removals = Removals::default();
        let written = Arc::new(AtomicBool::new(false));
        let writes = written.clone();
        removals.start("writes".into(), |_| async move {
            sleep(Duration::from_secs(3)).await;
            writes.store(true, Ordering::SeqCst);
            true
        });
        removals.start("waits".into(), |stop| async move {
            stop.cancelled().await;
            false
        });
        let before = clock::instant();
        removals.stop().await;
        assert!(written.load(Ordering::SeqCst));
        assert_eq!(clock::since(before), Duration::from_secs(3));
    }

    #[tokio::test]
    async fn a_removal_is_known_until_its_end_was_handled_also_when_it_panicked() {
        let mut removals = Removals::default();
        let uid = PodUid::from("a");
        removals.start(uid.clone(), |_| async { panic!("as scripted") });
        assert!(removals.contains(&uid));
        let ended = removals.ended().await;
        let failed = EndedRemoval { uid: uid.clone(), complete: false };
        assert_eq!(ended, HashSet::from([failed]));
        assert!(removals.contains(&uid));
        removals.finish(&uid);
        assert_eq!(removals.uids().count(), 0);
    }
}
