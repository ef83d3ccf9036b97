//! The runtime status for stopping a pod. If the status of an item cannot be read, a list is enough to stop the pod and to
//! check that it has stopped.

use super::plan;
use crate::base::error_chain;
use crate::cri::v1::{Container, ContainerFilter, PodSandboxFilter};
use crate::cri::{CriError, RuntimeClient};
use crate::model::{ContainerStatus, PodStatus, PodUid, SandboxStatus, keys};
use crate::runtime::kuberuntime::sandbox_lookup::SandboxLookup;
use crate::runtime::kuberuntime::translate;
use crate::state::pod_cache::{InspectedItem, ItemId, PodCache, PodRef, StaleItem};
use anyhow::Context as _;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Limit for reading the exits of a stopped pod. Longer than the deadline of one read in the PLEG, so that a read that
/// hangs has failed before.
const EXITS_TIMEOUT: Duration = Duration::from_secs(12);

/// Limit for looking up a sandbox that may have been created.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(12);

/// Reads what has to be stopped of a pod, and whether it has stopped.
#[derive(Clone)]
pub(in crate::runtime::kuberuntime) struct StopStatusReader {
    pub(super) runtime: RuntimeClient,
    pub(super) cache: PodCache,
    pub(super) lookup: Arc<SandboxLookup>,
}

impl StopStatusReader {
    /// The runtime status for stopping a pod that has `left` of its grace period: the settled one, or, if that takes too
    /// long, the latest one completed from a list. Empty only if the runtime has nothing of the pod.
    ///
    /// # Errors
    /// A sandbox may have been created that cannot be looked up yet.
    pub(in crate::runtime::kuberuntime) async fn read_status_for_stop(
        &self,
        pod_ref: &PodRef,
        left: Duration,
    ) -> anyhow::Result<Arc<PodStatus>> {
        let lookup = Box::pin(self.lookup.adopt(pod_ref));
        timeout(LOOKUP_TIMEOUT, lookup)
            .await
            .context("timed out")
            .and_then(|found| Ok(found?))
            .context("cannot look up a sandbox that may have been created")?;
        let uid = &pod_ref.uid;
        let limit = plan::status_timeout(left);
        if let Ok(status) = timeout(limit, self.cache.settled(uid)).await {
            return Ok(status);
        }
        let stale = self.cache.stale(uid);
        let listed = match timeout(limit, self.list_pod(uid)).await {
            Ok(Ok(listed)) => Ok(listed),
            Ok(Err(error)) => Err(error_chain(&error)),
            Err(_) => Err(format!("list timed out after {} ms", limit.as_millis())),
        };
        tracing::warn!(
            podUID = %uid,
            err = stale.first().map(StaleItem::to_string),
            listErr = listed.as_ref().err(),
            "Stopping a pod without its complete status"
        );
        Ok(Arc::new(self.completed(uid, listed.ok().as_ref())))
    }

    /// Waits until the exit of every container of a stopped pod has been read. An item that cannot be read, and that is
    /// not running according to a list, counts as ended with an unknown exit.
    ///
    /// # Errors
    /// Something may still run, or there is no list.
    pub(in crate::runtime::kuberuntime) async fn settle_stopped(
        &self,
        uid: &PodUid,
    ) -> anyhow::Result<()> {
        let settled = timeout(EXITS_TIMEOUT, self.cache.settled_or_failed(uid)).await;
        if matches!(settled, Ok(Some(_))) {
            return Ok(());
        }
        let seq = self.cache.next_seq();
        let listed = self.list_pod(uid).await?;
        let status = self.completed(uid, Some(&listed));
        anyhow::ensure!(
            !status.may_be_running(),
            "containers or sandboxes of the pod still run after the stop"
        );
        let (pod_ref, read) = (PodRef::of_status(&status), self.cache.latest(uid));
        for StaleItem { item, .. } in self.cache.stale(uid) {
            tracing::warn!(
                pod = %pod_ref.log_name(),
                podUID = %uid,
                podSandboxID = item.sandbox_id(),
                containerID = item.container_id(),
                "Failed to read the exit status of a stopped sandbox or container"
            );
            let known = match &item {
                ItemId::Container(id) => listed.container(id).map(|listed| {
                    InspectedItem::Container(listed.clone().with_unknown_end(read.container(id)))
                }),
                ItemId::Sandbox(id) => {
                    let mut known = status.sandboxes.iter().filter(|s| s.id == *id);
                    known.next().cloned().map(InspectedItem::Sandbox)
                }
            };
            self.cache.apply_read(&pod_ref, &item, seq, known.unwrap_or(InspectedItem::Gone));
        }
        Ok(())
    }

    /// The latest status of a pod, completed from a list for the items that cannot be read.
    pub(super) fn completed(&self, uid: &PodUid, listed: Option<&PodStatus>) -> PodStatus {
        let stale = self.cache.stale(uid);
        let stale: Vec<ItemId> = stale.into_iter().map(|stale| stale.item).collect();
        plan::complete_from_list(&self.cache.latest(uid), &stale, listed)
    }

    pub(super) async fn list_containers_of(
        &self,
        uid: &PodUid,
    ) -> Result<Vec<Container>, CriError> {
        let filter =
            ContainerFilter { label_selector: selector(uid), ..ContainerFilter::default() };
        self.runtime.list_containers(Some(filter)).await
    }

    /// Lists the sandboxes and containers of one pod.
    pub(super) async fn list_pod(&self, uid: &PodUid) -> Result<PodStatus, CriError> {
        let filter =
            PodSandboxFilter { label_selector: selector(uid), ..PodSandboxFilter::default() };
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_pod_sandboxes(Some(filter)),
            self.list_containers_of(uid),
        )?;
        let strings = self.cache.strings();
        let sandboxes = sandboxes.iter();
        let sandboxes: Vec<SandboxStatus> = sandboxes
            .filter_map(|found| translate::sandbox_from_list(found, strings))
            .map(|entry| entry.status)
            .collect();
        let containers = containers.iter();
        let containers: Vec<ContainerStatus> = containers
            .filter_map(|found| translate::container_from_list(found, strings))
            .map(|entry| entry.status)
            .collect();
        Ok(PodStatus { uid: uid.clone(), sandboxes, containers, ..PodStatus::default() })
    }
}

fn selector(uid: &PodUid) -> HashMap<String, String> {
    HashMap::from([(keys::POD_UID.to_string(), uid.to_string())])
}
