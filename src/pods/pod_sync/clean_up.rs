//! Removal of superseded containers, of pods that no source has any more, and the search for such pods.

use super::PodSync;
use crate::base::panics::PanicScope;
use crate::base::{error_chain, spawn, spawn_blocking};
use crate::model::reasons::event;
use crate::model::{
    ContainerState, ContainerStatus, Pod, PodExt as _, PodStatus, PodUid, container_should_restart,
    is_sidecar,
};
use crate::state::events::ObjectRef;
use crate::state::pod_cache::{PodRef, RuntimeListed};
use crate::state::pod_history::DecisionKind;
use crate::state::pod_state_store::PodOrigin;
use crate::volumes::VolumeError;
use anyhow::Context as _;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long the runtime status of a pod that is gone may take to settle.
const CACHE_TIMEOUT: Duration = Duration::from_secs(30);
/// After this a failed removal of a superseded container is repeated.
pub(super) const REMOVAL_RETRY: Duration = Duration::from_secs(60);

impl PodSync {
    /// Removes dead instances beyond `--maximum-dead-containers-per-container`; false if the runtime did not remove one.
    pub(super) async fn remove_superseded(&self, pod: &Pod) -> bool {
        let runtime_status = self.cache.latest(&pod.uid());
        let removed = self.runtime.remove_dead_containers(&runtime_status, false).await;
        if let Err(error) = removed {
            let err = error_chain(error.as_ref());
            tracing::warn!(pod = %pod.log_name(), err, "Failed to remove superseded containers");
            return false;
        }
        true
    }

    /// Removes everything of a pod that no source has and none of whose containers runs: containers, sandboxes, logs,
    /// volumes, directories and records. Returns whether everything was removed; otherwise housekeeping retries. If the
    /// pod was added again under its UID (`readded`), its restart counts continue, as upstream's. Once `stop` is cancelled
    /// it no longer waits for the runtime status, because the PLEG that reads it stops as well.
    pub async fn remove_pod(
        &self,
        uid: &PodUid,
        readded: Option<&Pod>,
        stop: &CancellationToken,
    ) -> bool {
        let settled = tokio::time::timeout(CACHE_TIMEOUT, self.cache.settled(uid));
        let Some(Ok(runtime_status)) = stop.run_until_cancelled(settled).await else {
            return false;
        };
        if runtime_status.maybe_running_containers().next().is_some() {
            tracing::warn!(podUID = %uid, "Pod still has running containers, not removing it");
            return false;
        }
        if self.has_only_a_cgroup(uid, &runtime_status) {
            return self.remove_cgroup(uid).await;
        }
        self.runtime.devices().plugins.release(uid);
        let mut pod_ref = PodRef::of_status(&runtime_status);
        if let Some(entry) = self.status_publisher.statuses().entry(uid)
            && runtime_status.is_empty()
        {
            pod_ref = PodRef::of(&entry.pod);
        }
        let content = self.runtime.remove_dead_containers(&runtime_status, true).await;
        // Under every name: a pod of another name may have had the UID before.
        self.runtime.remove_logs_of(uid).await;
        let disk = self.remove_from_disk(uid).await;
        let cgroup = match &content {
            Ok(_) => self.cgroups.destroy(uid).await,
            // The runtime may still have processes in the cgroup.
            Err(_) => Ok(()),
        };
        self.runtime.release_user_namespace(uid).await;
        let mut clean = true;
        for error in [content.err(), disk.err(), cgroup.err()].into_iter().flatten() {
            clean = false;
            tracing::warn!(
                pod = %pod_ref.log_name(),
                "podUID" = %uid,
                err = %error_chain(error.as_ref()),
                "Failed to clean up pod, retrying"
            );
        }
        let exits = readded.map(|pod| exits_to_keep(pod, &runtime_status));
        self.probes.remove_pod(uid);
        self.status_publisher.forget(uid);
        self.runtime.forget_pod(uid);
        if clean {
            self.state_store.forget(uid);
        } else {
            // A later pod of the same UID must not inherit how this one ended.
            let source = (!runtime_status.is_empty()).then(|| runtime_status.source());
            self.state_store.forget_except_origin(uid, source);
        }
        for exit in exits.into_iter().flatten() {
            self.state_store.update(uid, |record| record.exits.record(exit, false));
        }
        clean
    }

    /// Pods with a record that neither a source nor the runtime has, and that are `gone` by the recorded origin. Pod
    /// directories and logs without a record are kept: they may belong to pods of the API server. Takes the proof that
    /// the runtime was listed completely.
    pub fn recorded_orphans(
        &self,
        known_pods: &HashSet<PodUid>,
        gone: impl Fn(&PodUid, Option<&PodOrigin>) -> bool,
        _proof: RuntimeListed,
    ) -> HashSet<PodUid> {
        let is_gone =
            |uid: &PodUid| self.state_store.read(uid, |record| gone(uid, record.origin.as_ref()));
        let recorded = self.state_store.uids().into_iter();
        recorded.filter(|uid| self.is_orphan(uid, known_pods) && is_gone(uid)).collect()
    }

    /// Orphans that still have a cgroup; the conditions are those of [`Self::recorded_orphans`].
    pub async fn orphans_with_cgroups(
        &self,
        known_pods: &HashSet<PodUid>,
        gone: impl Fn(&PodUid, Option<&PodOrigin>) -> bool,
        _proof: RuntimeListed,
    ) -> anyhow::Result<HashSet<PodUid>> {
        let is_gone =
            |uid: &PodUid| self.state_store.read(uid, |record| gone(uid, record.origin.as_ref()));
        let found = self.cgroups.pods_with_cgroups().await?.into_iter();
        Ok(found.filter(|uid| self.is_orphan(uid, known_pods) && is_gone(uid)).collect())
    }

    fn is_orphan(&self, uid: &PodUid, known_pods: &HashSet<PodUid>) -> bool {
        !known_pods.contains(uid)
            && self.cache.try_settled(uid).is_some_and(|runtime_status| runtime_status.is_empty())
            && self.status_publisher.statuses().get(uid).is_none()
    }

    /// Whether only a cgroup is known of the pod. A directory of such a pod is not removed, because it may belong to
    /// another kubelet.
    fn has_only_a_cgroup(&self, uid: &PodUid, runtime_status: &PodStatus) -> bool {
        runtime_status.is_empty()
            && self.status_publisher.statuses().get(uid).is_none()
            && !self.state_store.uids().contains(uid)
    }

    async fn remove_cgroup(&self, uid: &PodUid) -> bool {
        let removed = self.cgroups.destroy(uid).await;
        if let Err(error) = &removed {
            tracing::warn!("podUID" = %uid, err = %error_chain(error.as_ref()), "Failed to delete cgroup paths");
        }
        removed.is_ok()
    }

    /// Unprepares the resource claims of a pod whose containers have ended.
    pub(super) async fn unprepare_resources(&self, uid: &PodUid) -> anyhow::Result<()> {
        let unprepared = self.runtime.devices().dra.unprepare(uid).await;
        unprepared.context("unprepare dynamic resources")
    }

    /// Reports a failed teardown of a pod's volumes, for example because of a mount that another kubelet made.
    pub(super) fn report_teardown(&self, pod: &Pod, torn_down: &Result<(), VolumeError>) {
        if let Err(error) = torn_down {
            let text = error_chain(error);
            self.events.warning(&ObjectRef::pod(pod), event::FAILED_UNMOUNT, &*text);
            self.record_history(pod, DecisionKind::Fail, text);
        }
    }

    /// Reports the desired pods, once every source has delivered: volumes of others may be undone.
    pub fn volumes_inventory_complete(&self, pods: &[Arc<Pod>]) {
        self.volumes.release_leftovers();
        let csi = self.volumes.csi().clone();
        if csi.count() == 0 {
            csi.pods_are_known(|_| true);
            return;
        }
        let desired: HashSet<_> = pods.iter().map(|pod| pod.uid()).collect();
        // It reads directories.
        let report = move || csi.pods_are_known(|uid| desired.contains(uid));
        spawn(PanicScope::Housekeeping, async move {
            let _ = spawn_blocking(report).await;
        });
    }

    async fn remove_from_disk(&self, uid: &PodUid) -> anyhow::Result<()> {
        self.volumes.teardown(uid).await?;
        self.volumes.remove_pod_dir(uid).await?;
        Ok(())
    }
}

/// The last exits of containers and sidecars that the restart policy restarts after any exit code; their restart counts
/// continue when the pod starts again.
fn exits_to_keep<'s>(pod: &Pod, status: &'s PodStatus) -> Vec<&'s ContainerStatus> {
    let sidecars = pod.init_containers().iter().filter(|one| is_sidecar(one));
    let containers = sidecars.chain(pod.containers());
    let ended = containers.filter_map(|container| {
        let newest = status.newest(&container.name)?;
        let again =
            newest.state == ContainerState::Exited && container_should_restart(pod, container, 0);
        again.then_some(newest)
    });
    ended.collect()
}
