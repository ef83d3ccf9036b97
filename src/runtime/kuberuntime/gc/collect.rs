//! Carries out the removal of dead containers, sandboxes and logs.

use super::plan::{self, ContainerGcPolicy, ContainerRemoval, RemovalReason};
use crate::base::{clock, error_chain};
use crate::cri::{RuntimeClient, ignore_not_found};
use crate::model::{
    ContainerId, Pod, PodExt as _, PodSource, PodStatus, PodUid, SandboxId, is_sidecar,
};
use crate::runtime::kuberuntime::container_log_files::ContainerLogFiles;
use crate::runtime::kuberuntime::exits::ExitRecords;
use crate::runtime::kuberuntime::kill::PodKiller;
use crate::runtime::kuberuntime::kill::plan::MINIMUM_STOP_SECONDS;
use crate::state::pod_cache::{ItemId, PodCache, PodRef, RuntimeListed};
use crate::state::pod_state_store::PodStateStore;
use std::sync::Arc;

/// Removes dead containers and sandboxes with their logs.
pub(in crate::runtime::kuberuntime) struct ContainerGc {
    pub(in crate::runtime::kuberuntime) runtime: RuntimeClient,
    pub(in crate::runtime::kuberuntime) cache: PodCache,
    pub(in crate::runtime::kuberuntime) state_store: PodStateStore,
    pub(in crate::runtime::kuberuntime) exits: ExitRecords,
    pub(in crate::runtime::kuberuntime) log_files: Arc<ContainerLogFiles>,
    pub(in crate::runtime::kuberuntime) killer: PodKiller,
    pub(in crate::runtime::kuberuntime) policy: ContainerGcPolicy,
}

impl ContainerGc {
    /// Removes what is superseded of one pod: dead instances of each container beyond those kept, and old sandboxes; with
    /// `remove_all`, everything. Costs nothing when there is nothing to remove.
    pub(in crate::runtime::kuberuntime) async fn remove_dead_containers(
        &self,
        status: &Arc<PodStatus>,
        remove_all: bool,
    ) -> anyhow::Result<()> {
        self.remove_dead(std::slice::from_ref(status), &|_| remove_all).await
    }

    /// Removes superseded instances that no worker removed, and everything of ended pods. The proof says that the runtime
    /// statuses come from a complete list. Pods of the API server that have not ended are left to their syncs.
    pub(in crate::runtime::kuberuntime) async fn garbage_collect(
        &self,
        pods: &[Arc<PodStatus>],
        has_ended: &(dyn Fn(&PodUid) -> bool + Send + Sync),
        _proof: RuntimeListed,
    ) -> anyhow::Result<()> {
        let is_collectable =
            |pod: &&Arc<PodStatus>| pod.source() != PodSource::Api || has_ended(&pod.uid);
        let collectable: Vec<_> = pods.iter().filter(is_collectable).cloned().collect();
        self.remove_dead(&collectable, has_ended).await
    }

    async fn remove_dead(
        &self,
        pods: &[Arc<PodStatus>],
        remove_all: &(dyn Fn(&PodUid) -> bool + Send + Sync),
    ) -> anyhow::Result<()> {
        let now = i64::try_from(clock::timestamp().as_nanosecond()).unwrap_or(i64::MAX);
        let removals = plan::containers_to_remove(pods, &self.policy, remove_all, now);
        if removals.is_empty() && plan::sandboxes_to_remove(pods, remove_all).is_empty() {
            return Ok(());
        }
        let mut first_error = None;
        for removal in &removals {
            if let Err(error) = self.remove_container(removal).await {
                first_error.get_or_insert(error);
            }
        }
        let pods: Vec<_> = pods.iter().map(|pod| self.cache.latest(&pod.uid)).collect();
        for (status, id) in plan::sandboxes_to_remove(&pods, remove_all) {
            if let Err(error) = self.remove_sandbox(status, id).await {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    async fn remove_container(&self, removal: &ContainerRemoval<'_>) -> anyhow::Result<()> {
        let ContainerRemoval { status, container, reason } = *removal;
        let pod_ref = PodRef::of_status(status);
        let id = container.id.as_str();
        tracing::debug!(pod = %pod_ref.log_name(), containerID = id, reason = %reason, "Removing a container");
        if removal.stop_first() {
            ignore_not_found(self.runtime.stop_container(id, MINIMUM_STOP_SECONDS).await)?;
        }
        if reason != RemovalReason::PodEnded {
            self.exits.record_removed(&pod_ref.uid, container).await;
        }
        self.log_files.remove_container_logs(&pod_ref, container).await;
        self.remove_from_runtime(status, &container.id).await
    }

    /// Removes a container for RestartAllContainers. The newest instance's log is kept until the next instance is
    /// removed, because the restart count continues from its file name.
    pub(in crate::runtime::kuberuntime) async fn remove_reset_container(
        &self,
        status: &PodStatus,
        id: &ContainerId,
        keep_log: bool,
    ) -> anyhow::Result<()> {
        let pod_ref = PodRef::of_status(status);
        tracing::debug!(pod = %pod_ref.log_name(), containerID = %id, "Removing a container for a restart");
        if let Some(container) = status.container(id) {
            if keep_log {
                self.log_files.retire_container_logs(&pod_ref, container).await;
            } else {
                self.log_files.remove_container_logs(&pod_ref, container).await;
            }
        }
        self.remove_from_runtime(status, id).await
    }

    /// Removes an instance that is not known to have started. Its log file is removed with the pod's logs.
    pub(in crate::runtime::kuberuntime) async fn remove_unstarted(
        &self,
        status: &PodStatus,
        id: &ContainerId,
    ) -> anyhow::Result<()> {
        tracing::debug!(pod = %status.log_name(), containerID = %id, "Removing a container that never started");
        if let Some(container) = status.container(id) {
            let pod_ref = PodRef::of_status(status);
            self.log_files.remove_link(&pod_ref, container).await;
        }
        self.remove_from_runtime(status, id).await
    }

    async fn remove_from_runtime(
        &self,
        status: &PodStatus,
        container: &ContainerId,
    ) -> anyhow::Result<()> {
        let pod_ref = PodRef::of_status(status);
        let id = container.as_str();
        ignore_not_found(self.runtime.remove_container(id).await)?;
        let item = ItemId::Container(container.clone());
        self.cache.apply_removal(&pod_ref, &item);
        self.state_store
            .update(&status.uid, |record| record.retain_containers(|known| known != id));
        Ok(())
    }

    async fn remove_sandbox(&self, status: &PodStatus, id: &SandboxId) -> anyhow::Result<()> {
        let pod_ref = PodRef::of_status(status);
        tracing::debug!(pod = %pod_ref.log_name(), podSandboxID = %id, "Removing a sandbox");
        self.killer.stop_sandbox(&pod_ref, id).await?;
        ignore_not_found(self.runtime.remove_pod_sandbox(id.as_str()).await)?;
        let item = ItemId::Sandbox(id.clone());
        self.cache.apply_removal(&pod_ref, &item);
        Ok(())
    }

    /// Removes all but the newest dead instance of each init container (upstream: `pruneInitContainersBeforeStart`).
    pub(in crate::runtime::kuberuntime) async fn prune_init_containers(
        &self,
        pod: &Pod,
        status: &PodStatus,
    ) {
        self.remove_or_log(plan::init_containers_to_remove(pod, status)).await;
    }

    /// Removes all instances of init containers before a new sandbox is created (upstream: `purgeInitContainers`).
    /// Exits of sidecars stay recorded, for the restart count.
    pub(in crate::runtime::kuberuntime) async fn purge_init_containers(
        &self,
        pod: &Pod,
        status: &PodStatus,
    ) {
        self.remove_or_log(plan::all_init_containers_to_remove(pod, status)).await;
        self.exits.forget(&pod.uid(), |name| {
            let mut init_containers = pod.init_containers().iter();
            init_containers.any(|c| c.name == name && !is_sidecar(c))
        });
    }

    async fn remove_or_log(&self, removals: Vec<ContainerRemoval<'_>>) {
        for removal in removals {
            if let Err(error) = self.remove_container(&removal).await {
                tracing::warn!(
                    pod = %removal.status.log_name(),
                    containerID = %removal.container.id,
                    err = %error_chain(error.as_ref()),
                    "Failed to remove the init container"
                );
            }
        }
    }
}
