//! What happens after a pod's end, and the audit for what nobody claims.

use super::{
    SyncLoop,
    orphans::{Claims, find},
};
use crate::{
    base::{
        chain,
        panics::{Place, contain},
    },
    model::{Pod, PodExt, PodSource, PodStatus, PodUid},
    pod_cache::Complete,
    pod_sync::syncer::TerminationReason,
    pod_workers::{Collected, UpdateOptions},
};
use std::{collections::HashSet, sync::Arc};

impl SyncLoop {
    /// Workers that have nothing more to do. One whose pod is gone, or is wanted afresh under the same
    /// UID (also by now, after an orphan of that UID), is cleaned up after; a pod that ended by itself
    /// stays as it is, to be looked at.
    pub(super) fn on_finished(&mut self, uids: HashSet<PodUid>) {
        let manager = self.manager.reader();
        for uid in uids {
            let unwanted = manager.get(&uid).is_none();
            if unwanted || self.workers.wants_restart(&uid) || !self.workers.knows(&uid) {
                self.clean(uid);
            }
        }
    }

    /// A source no longer has the pod. One that had ended before has only its remains left.
    pub(super) fn end(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid();
        if self.workers.knows(&uid) && self.workers.should_pod_be_finished(&uid) {
            self.clean(uid);
        } else {
            self.tell(&uid, UpdateOptions::kill(pod, TerminationReason::Deleted));
        }
    }

    /// The clean-up after a pod is over: its worker may go, and a pod that was asked for again
    /// meanwhile starts afresh. False when something is left of one of them.
    pub(super) fn on_cleaned(&mut self, uids: HashSet<(PodUid, bool)>) -> bool {
        let manager = self.manager.reader();
        let mut all_gone = true;
        for (uid, gone) in uids {
            all_gone &= gone;
            if !gone {
                self.metrics.left_over();
            }
            self.cleaning.remove(&uid);
            let wanted = manager.get(&uid);
            let knew = self.workers.knows(&uid);
            let collected = self.workers.collect(&uid, wanted.is_some());
            if let (Collected::Forgotten, Some(pod)) = (collected, wanted) {
                if knew {
                    self.metrics.restarted(&pod);
                }
                self.create(pod);
            }
        }
        all_gone
    }

    /// Something of these pods is on disk although nobody knew them when an audit looked.
    pub(super) fn on_strays(&mut self, uids: HashSet<PodUid>) {
        let manager = self.manager.reader();
        for uid in uids {
            if manager.get(&uid).is_none() && !self.workers.knows(&uid) {
                self.clean(uid);
            }
        }
    }

    /// A pod that ended under an earlier kubelet, and whose manifest was edited since without getting
    /// another UID, makes way like one that is replaced now: the new one starts when all of it is gone.
    pub(super) fn make_way(&mut self, pod: &Pod) {
        let uid = pod.uid();
        let is_new = self.manager.reader().get(&uid).is_none() && !self.workers.knows(&uid);
        if is_new && self.pod_sync.ended_as_another(pod) {
            self.pod_sync.journal.forget(&uid);
            self.clean(uid);
        }
    }

    /// Removes what is left of a pod, beside the loop. Its worker stays until that is done, so a pod
    /// of the same UID cannot start into its own removal.
    fn clean(&mut self, uid: PodUid) {
        if !self.cleaning.insert(uid.clone()) {
            return;
        }
        let (pod_sync, cleaned) = (self.pod_sync.clone(), self.cleaned.clone());
        tokio::spawn(async move {
            // A panic must not keep the UID from ever being used again.
            let removal = contain(Place::CleanUp, pod_sync.remove_pod(&uid)).await;
            cleaned.mark((uid, removal.unwrap_or(false)));
        });
    }

    /// Looks for what nobody claims. Acts only on settled pictures from a complete list, and only on
    /// pods whose source has delivered.
    pub(super) fn audit(&mut self, complete: Complete) {
        let pods = self.cache.pods();
        self.workers.observe_runtime(&pods);
        let pods: Vec<_> = pods
            .into_iter()
            .filter(|p| self.cache.try_settled(&p.uid).is_some())
            .collect();
        let wanted = self.manager.reader().uids();
        let claimed = |uid: &PodUid| {
            wanted.contains(uid) || self.workers.knows(uid) || self.cleaning.contains(uid)
        };
        let claims = Claims {
            claimed: &claimed,
            delivered: &|source| self.sources.ready(source),
            all_delivered: self.sources.all_ready().is_some(),
        };
        let orphans = find(&pods, &claims);
        for orphan in orphans.running {
            tracing::info!(
                pod = %orphan.name,
                namespace = %orphan.namespace,
                "podUID" = %orphan.uid,
                "Stopping a pod that no source wants"
            );
            self.metrics.orphan();
            self.workers.update_pod(UpdateOptions::orphan(orphan));
        }
        for remains in orphans.remains {
            self.clean(remains.uid.clone());
        }
        // Before anything is compared with what is wanted, all of that has to be known.
        let all_delivered = self.sources.all_ready().is_some();
        let whole = self.audits.done(all_delivered);
        if whole {
            self.compare(&wanted);
        }
        self.collect(pods, wanted, whole, complete);
    }

    /// Makes up for updates of workers that were lost somewhere: what is wanted and has no worker gets
    /// one, and what is not wanted any more is stopped, or told to try again.
    fn compare(&mut self, wanted: &HashSet<PodUid>) {
        let found = self.workers.sync_known_pods(wanted);
        let manager = self.manager.reader();
        for uid in found.to_create {
            // Those that were forgotten just now are cleaned up after first.
            if found.forgotten.contains(&uid) || self.cleaning.contains(&uid) {
                continue;
            }
            if let Some(pod) = manager.get(&uid) {
                tracing::warn!(pod = %pod.full_name(), "A pod had no worker; it gets one");
                self.create(pod);
            }
        }
    }

    /// What is superseded of pods that stay, and strays on disk.
    fn collect(
        &mut self,
        pods: Vec<Arc<PodStatus>>,
        mut claimed: HashSet<PodUid>,
        whole: bool,
        complete: Complete,
    ) {
        claimed.extend(self.cleaning.iter().cloned());
        claimed.extend(self.workers.known().into_iter().map(|known| known.uid));
        let all_delivered = self.sources.all_ready().is_some();
        let (pod_sync, strays) = (self.pod_sync.clone(), self.strays.clone());
        let metrics = self.metrics.clone();
        self.audits.start(async move {
            if all_delivered {
                let found = pod_sync.strays(&claimed, whole, complete).await;
                metrics.swept(found.len());
                strays.mark_all(found);
            }
            if let Err(error) = pod_sync.runtime.collect_superseded(&pods, complete).await {
                tracing::warn!(err = %chain(error.as_ref()), "Cannot remove all dead containers");
            }
        });
    }

    /// Ends and removes what has the UID of a pod that is wanted, but not its name; that pod is created
    /// after that. True when a worker is at it, which has to be told of the pod.
    pub(super) fn end_namesake(&mut self, other: Arc<PodStatus>) -> bool {
        let may_run = other.is_active() || self.cache.try_settled(&other.uid).is_none();
        match may_run {
            true => self.workers.update_pod(UpdateOptions::orphan(other)),
            false => self.clean(other.uid.clone()),
        }
        may_run
    }

    /// What an earlier kubelet ran under the same full name has to end before a new static pod starts
    /// (P-12): its worker holds the start gate of that name. One of another source that has not
    /// delivered yet may still be wanted: it holds the name itself, until an audit judges it.
    pub(super) fn end_predecessors(
        &self,
        pod: &Pod,
        pods: &[Arc<PodStatus>],
        delivering: PodSource,
    ) {
        let (uid, manager) = (pod.uid(), self.manager.reader());
        for other in pods {
            let same_name = *other.name == *pod.name() && *other.namespace == *pod.namespace();
            let source = other.newest_sandbox().and_then(|sandbox| sandbox.source);
            let may_be_wanted =
                source.is_some_and(|source| source != delivering && !self.sources.ready(source));
            if same_name && !may_be_wanted && other.uid != uid && manager.get(&other.uid).is_none()
            {
                self.workers
                    .update_pod(UpdateOptions::orphan(other.clone()));
            }
        }
    }
}
