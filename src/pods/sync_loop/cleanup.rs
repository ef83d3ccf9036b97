//! Removal of pods that ended, and housekeeping of orphans (upstream's `HandlePodCleanups`).

use super::SyncLoop;
use super::admit::may_be_running;
use super::orphans::{OrphanCriteria, find};
use super::removals::EndedRemoval;
use super::resize::ResizeTrigger;
use super::uid_owner::UidOwner;
use crate::base::error_chain;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, PodSource, PodStatus, PodUid};
use crate::pods::pod_config::SourcesReadyReader;
use crate::pods::pod_sync::syncer::TerminationReason;
use crate::pods::pod_workers::metrics::static_label;
use crate::pods::pod_workers::{UpdatePodOptions, WorkerRemoval};
use crate::state::pod_cache::{RuntimeListed, StaleItem};
use crate::state::pod_state_store::PodOrigin;
use std::collections::HashSet;
use std::sync::Arc;

impl SyncLoop {
    /// Handles finished workers. A pod that no source has any more, or that was added again under the same UID, is
    /// removed. The containers and logs of a pod that ended by itself are kept for users.
    pub(super) fn on_finished(&mut self, uids: HashSet<PodUid>) {
        let pod_manager = self.pod_manager.reader();
        for uid in uids {
            let is_desired = pod_manager.get(&uid).is_some();
            if !is_desired || self.workers.restart_requested(&uid) || !self.workers.has_worker(&uid)
            {
                self.start_removal(uid);
            }
        }
        self.release_resources();
        self.retry_pending_admissions();
        self.retry_resizes(ResizeTrigger::PodTerminated);
    }

    /// After a cancelled node shutdown, starts the static pods again that the shutdown stopped. Pods of an API server
    /// stay failed there and are replaced.
    pub(super) fn on_node_shutdown_changed(&mut self) {
        if *self.admission.shutting_down.borrow_and_update() {
            return;
        }
        let mut pods = self.pod_manager.reader().pods();
        pods.retain(|pod| pod.is_static() && self.pod_sync.ended_by_shutdown(&pod.uid()));
        for pod in pods {
            self.create(pod);
        }
    }

    /// Kills a pod that its source no longer has, or removes it if it has ended or never started.
    pub(super) fn handle_pod_removal(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid();
        if self.pending_admissions.remove(&uid) {
            self.deferred.remove(&uid);
            self.start_removal(uid);
        } else if self.deferred.remove(&uid) {
            // It was never started: containers under its UID belong to another pod or to an orphan.
            let settled = self.cache.try_settled(&uid);
            if settled.is_some_and(|runtime_status| runtime_status.is_empty()) {
                self.start_removal(uid);
            } else {
                self.housekeeping_schedule.run_soon();
            }
        } else if self.workers.has_worker(&uid) && self.workers.should_pod_be_finished(&uid) {
            self.start_removal(uid);
        } else {
            self.update_worker(&uid, UpdatePodOptions::kill(pod, TerminationReason::Deleted));
        }
    }

    /// Handles ended removals: forgets the workers, and creates pods that were added again meanwhile. False if
    /// something could not be removed.
    pub(super) fn on_removals_ended(&mut self, ended: HashSet<EndedRemoval>) -> bool {
        let pod_manager = self.pod_manager.reader();
        let mut all_complete = true;
        for EndedRemoval { uid, complete } in ended {
            all_complete &= complete;
            if !complete {
                self.metrics.incomplete_removals.inc();
            }
            self.removals.finish(&uid);
            let desired = pod_manager.get(&uid);
            let had_worker = self.workers.has_worker(&uid);
            let removal = self.workers.remove_terminated(&uid, desired.is_some());
            if let (WorkerRemoval::Removed, Some(pod)) = (removal, desired) {
                if had_worker {
                    self.metrics.restarts.with([static_label(pod.is_static())]).inc();
                }
                // What could not be removed is left to housekeeping.
                if !complete && self.uid_owner(&pod) != UidOwner::Itself {
                    self.deferred.insert(uid);
                } else {
                    self.create(pod);
                }
            }
        }
        self.retry_pending_admissions();
        all_complete
    }

    /// Removes orphans that housekeeping found by their record or cgroup, unless such a pod was added since.
    pub(super) fn on_orphans_outside_runtime(&mut self, uids: HashSet<PodUid>) {
        let pod_manager = self.pod_manager.reader();
        for uid in uids {
            if pod_manager.get(&uid).is_none() && !self.workers.has_worker(&uid) {
                self.start_removal(uid);
            }
        }
    }

    /// Removes a pod in the background. Its worker is kept until that is done, so that a pod of the same UID does not
    /// start during the removal.
    fn start_removal(&mut self, uid: PodUid) {
        if self.removals.contains(&uid) {
            return;
        }
        let readded = self.pod_manager.reader().get(&uid);
        let readded = readded.filter(|pod| self.uid_owner(pod) == UidOwner::Itself);
        let pod_sync = self.pod_sync.clone();
        self.removals.start(uid.clone(), |stop| async move {
            pod_sync.remove_pod(&uid, readded.as_deref(), &stop).await
        });
    }

    /// Whether a pod that is in no list has been removed from its source.
    fn is_removed_from_source(&self, pod: &PodStatus) -> bool {
        let source = pod.source();
        let origin = self.pod_sync.origin(&pod.uid);
        let origin = origin.filter(|origin| origin.source() == Some(source));
        let manifest = origin.and_then(|origin| origin.manifest);
        self.sources.is_removed(source, &pod.uid, manifest.as_deref())
    }

    /// Retries deferred pods, updates the start gate, stops and removes orphans, repairs workers (in a full run),
    /// releases devices and allocations of pods that are gone, and starts the background part. Orphans are taken only
    /// from a complete list, if the source of the pod has delivered, and if the runtime status of the pod is settled or
    /// cannot be read.
    pub(super) fn housekeeping(&mut self, listed: RuntimeListed) {
        let pod_manager = self.pod_manager.reader();
        let deferred: Vec<_> =
            self.deferred.iter().filter_map(|uid| pod_manager.get(uid)).collect();
        deferred.into_iter().for_each(|pod| self.create_deferred(pod));
        let pods = self.cache.pods();
        self.workers.update_start_gate(&pods);
        let (pods, unsettled): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|p| self.cache.try_settled(&p.uid).is_some());
        let (unreadable, unread): (Vec<_>, Vec<_>) =
            unsettled.into_iter().partition(|p| self.cache.is_unreadable(&p.uid));
        let desired = self.pod_manager.reader().uids();
        let is_known = |uid: &PodUid| {
            desired.contains(uid) || self.workers.has_worker(uid) || self.removals.contains(uid)
        };
        let criteria = OrphanCriteria {
            is_known: &is_known,
            is_removed_from_source: &|pod| self.is_removed_from_source(pod),
        };
        let orphans = find(&pods, &criteria);
        // Whether something of these runs is not known, so they are stopped, by a list, before they are removed.
        let unreadable_orphans = find(&unreadable, &criteria);
        let unreadable_orphans = [unreadable_orphans.running, unreadable_orphans.stopped].concat();
        // Whether every pod that may be running was passed to the device manager, which needs that after a damaged
        // checkpoint. Desired pods are, when they are admitted (`mark_running`); orphans never are, so none may be running.
        let mut unsettled = unreadable.iter().chain(&unread);
        let all_known = unsettled
            .all(|pod| desired.contains(&pod.uid) && self.workers.has_worker(&pod.uid))
            && pods.iter().all(|pod| !pod.may_be_running() || desired.contains(&pod.uid));
        let needs_inventory = self.devices().needs_inventory();
        let undecided = unreadable.iter().chain(&unread).map(|pod| &pod.uid);
        let undecided = undecided.filter(|uid| needs_inventory || !is_known(uid));
        let undecided: Vec<_> = undecided.cloned().collect();
        let unread_orphans = unread.iter().any(|pod| !is_known(&pod.uid));
        let cache = &self.cache;
        let is_gone = |uid: &PodUid| cache.try_settled(uid).is_some_and(|status| status.is_empty());
        self.awaits_settled.retain(|uid| !is_gone(uid));
        self.awaits_settled.extend(undecided);
        for orphan in unreadable_orphans {
            let stale = self.cache.stale(&orphan.uid);
            tracing::warn!(
                pod = %orphan.log_name(),
                podUID = %orphan.uid,
                err = stale.first().map(StaleItem::to_string),
                "Clean up containers for orphaned pod whose status cannot be read"
            );
            self.stop_orphan(orphan);
        }
        for orphan in orphans.running {
            tracing::info!(
                pod = %orphan.log_name(),
                "podUID" = %orphan.uid,
                "Clean up containers for orphaned pod"
            );
            self.stop_orphan(orphan);
        }
        for orphan in orphans.stopped {
            self.start_removal(orphan.uid.clone());
        }
        // Workers are compared with the desired pods only once every source has delivered. Unusable manifests are
        // allowed: their pods keep their last valid version, or have had no worker in this process.
        let all_delivered = self.sources.all_delivered();
        let is_full = self.housekeeping_schedule.begin(all_delivered);
        let with_cgroups = all_delivered && self.housekeeping_schedule.searches_cgroups(is_full);
        if unread_orphans {
            // That an item of such a pod cannot be read settles nothing, so nothing else wakes the loop.
            self.housekeeping_schedule.retry_later();
        }
        if is_full {
            self.repair_workers(&desired);
        }
        self.start_background_housekeeping(pods, desired, listed, with_cgroups);
        if all_delivered && all_known {
            self.devices().inventory_complete();
            let pods = self.pod_manager.reader().pods();
            self.pod_sync.devices().dra.inventory_complete(&pods);
            self.pod_sync.volumes_inventory_complete(&pods);
        }
    }

    fn stop_orphan(&mut self, orphan: Arc<PodStatus>) {
        self.metrics.orphans.inc();
        self.workers.update_pod(UpdatePodOptions::orphan(orphan));
    }

    /// Repairs missed updates: creates the worker of a desired pod without one, and stops pods that are not desired any
    /// more.
    fn repair_workers(&mut self, desired: &HashSet<PodUid>) {
        let found = self.workers.sync_known_pods(desired);
        let pod_manager = self.pod_manager.reader();
        for uid in found.to_create {
            // Pods that were forgotten just now are removed first.
            let waits = self.removals.contains(&uid) || self.deferred.contains(&uid);
            if found.forgotten.contains(&uid) || waits {
                continue;
            }
            if let Some(pod) = pod_manager.get(&uid) {
                tracing::warn!(
                    pod = %pod.log_name(),
                    "podUID" = %uid,
                    "Pod has no worker, creating one"
                );
                self.create(pod);
            }
        }
    }

    /// Starts the background part of housekeeping: removes superseded containers of static pods, and finds orphans of
    /// which only a record or, `with_cgroups`, a cgroup is left.
    fn start_background_housekeeping(
        &mut self,
        pods: Vec<Arc<PodStatus>>,
        mut known_pods: HashSet<PodUid>,
        listed: RuntimeListed,
        with_cgroups: bool,
    ) {
        known_pods.extend(self.removals.uids().cloned());
        known_pods.extend(self.workers.worker_pods().into_iter().map(|known| known.uid));
        let all_delivered = self.sources.all_delivered();
        if all_delivered {
            self.release_devices(&known_pods);
            let allocations = self.pod_sync.allocations();
            allocations.retain(|uid| known_pods.contains(uid));
        }
        let (pod_sync, orphans_outside_runtime) =
            (self.pod_sync.clone(), self.orphans_outside_runtime.clone());
        let (metrics, sources) = (self.metrics.clone(), self.sources.reader());
        self.housekeeping_schedule.start(async move {
            let gone = |uid: &PodUid, origin: Option<&PodOrigin>| {
                is_removed_from_source(&sources, uid, origin)
            };
            if all_delivered {
                let found = pod_sync.recorded_orphans(&known_pods, gone, listed);
                metrics.orphans_found(found.len());
                orphans_outside_runtime.mark_all(found);
            }
            if with_cgroups {
                let cgroups = pod_sync.orphans_with_cgroups(&known_pods, gone, listed);
                match cgroups.await {
                    Ok(found) => orphans_outside_runtime.mark_all(found),
                    Err(error) => {
                        tracing::error!(err = %error_chain(error.as_ref()), "Failed to get list of pods that still exist on cgroup mounts");
                    }
                }
            }
            if let Err(error) = pod_sync.remove_all_superseded(&pods, listed).await {
                tracing::warn!(err = %error_chain(error.as_ref()), "Failed to remove all dead containers");
            }
        });
    }

    /// Releases devices and claims of pods that are gone. Only called when all desired pods and all running pods are
    /// known.
    fn release_devices(&self, known_pods: &HashSet<PodUid>) {
        let is_here = |uid: &PodUid| {
            known_pods.contains(uid) || may_be_running(self.cache.try_settled(uid).as_deref())
        };
        let devices = self.pod_sync.devices();
        devices.plugins.retain(is_here);
        devices.dra.retain(is_here);
    }

    /// Resolves a conflict with another pod of the same UID in the runtime; true if `create` may go on. If the other pod
    /// runs, a worker is created that stops it, and the desired pod is created after its removal (true). If only its
    /// dead containers are left, they are removed first (false).
    pub(super) fn resolve_uid_conflict(&mut self, pod: &Pod) -> bool {
        let uid = pod.uid();
        match self.uid_owner(pod) {
            UidOwner::Itself => {
                // Before the record of the pod is read, because this drops a record of another manifest.
                self.pod_sync.record_origin(pod);
                return true;
            }
            UidOwner::Other => {
                let other = self.cache.latest(&uid);
                if other.may_be_running() {
                    self.workers.update_pod(UpdatePodOptions::replaced_orphan(other));
                    return true;
                }
                self.start_removal(uid);
                return false;
            }
            UidOwner::ApiPod => {
                let other = self.cache.latest(&uid);
                let (namespace, name) = (&other.namespace, &other.name);
                let why = format!(
                    "UID {uid} is already in use by pod {namespace}/{name} of the API server"
                );
                self.pod_sync.warning_event(pod, event::FAILED_SYNC, why.as_str());
                self.defer(pod, &why);
            }
            UidOwner::Unknown => {
                self.awaits_settled.insert(uid);
                self.defer(pod, "the runtime status of the pod with this UID is not known yet");
            }
        }
        false
    }

    /// Stops the pods that an earlier kubelet ran under the full name of a new static pod. Their workers block the name
    /// until they have ended. A predecessor whose source has not delivered yet may still be desired; it blocks the name
    /// as well, until housekeeping decides. False if the source of one of them is not known yet: it may be a pod of the
    /// API server.
    pub(super) fn end_predecessors(&self, pod: &Pod, pods: &[Arc<PodStatus>]) -> bool {
        let (uid, pod_manager) = (pod.uid(), self.pod_manager.reader());
        let mut all_read = true;
        for other in pods {
            let same_name = *other.name == *pod.name() && *other.namespace == *pod.namespace();
            let replaced = same_name && other.uid != uid && pod_manager.get(&other.uid).is_none();
            if !replaced {
                continue;
            }
            if self.is_source_unknown(other) && !self.workers.has_worker(&other.uid) {
                all_read = false;
            } else if PodSource::of(pod) == Some(other.source())
                || self.is_removed_from_source(other)
            {
                self.workers.update_pod(UpdatePodOptions::replaced_orphan(other.clone()));
            }
        }
        all_read
    }
}

/// Whether a pod of which only a record and perhaps files are left has been removed from its source. Records of earlier
/// versions of this kubelet have no origin.
fn is_removed_from_source(
    sources: &SourcesReadyReader,
    uid: &PodUid,
    origin: Option<&PodOrigin>,
) -> bool {
    match origin {
        Some(origin) => origin
            .source()
            .is_some_and(|source| sources.is_removed(source, uid, origin.manifest.as_deref())),
        None => sources.all_complete(),
    }
}
