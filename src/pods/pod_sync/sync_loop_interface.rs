//! The methods that the sync loop calls outside of a pod's syncs. None of them waits for a pod.

use super::PodSync;
use crate::model::{Pod, PodExt as _, PodStatus, PodUid, is_terminal};
use crate::pods::status::generate::PodFailure;
use crate::resources::DeviceManagers;
use crate::resources::allocation::Allocations;
use crate::state::events::ObjectRef;
use crate::state::pod_cache::RuntimeListed;
use crate::state::pod_history::DecisionKind;
use crate::state::pod_state_store::PodOrigin;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

impl PodSync {
    /// Whether this or an earlier kubelet recorded in the pod state store that the pod reached a terminal phase.
    pub fn has_recorded_end(&self, uid: &PodUid) -> bool {
        self.state_store.read(uid, |record| record.terminal.is_some())
    }

    /// Publishes a pod as failed because the node rejects it; its worker then terminates it. A rejection is not
    /// recorded: after a restart of the kubelet, the pod is admitted again.
    pub fn reject(&self, pod: &Arc<Pod>, reason: Cow<'static, str>, message: &str) {
        tracing::info!(podUID = %pod.uid(), pod = %pod.log_name(), reason = &*reason, event_message = message, "Pod admission denied");
        self.status_publisher.starts.rejected(reason.clone());
        self.events.warning(&ObjectRef::pod(pod), reason.clone(), message);
        let rejection = format!("the node rejects the pod: {reason}: {message}");
        self.record_history(pod, DecisionKind::Fail, rejection);
        let failure = PodFailure {
            reason: reason.into_owned(),
            message: format!("Pod was rejected: {message}"),
            disruption: false,
        };
        self.status_publisher.reject(pod, failure);
    }

    /// Generates the pod's API status as of now and sets it in the status manager.
    pub fn publish_status(&self, pod: &Arc<Pod>) {
        self.status_publisher.publish_status(pod);
    }

    /// Whether the published status has a terminal phase, which includes rejected pods.
    pub fn has_terminal_status(&self, uid: &PodUid) -> bool {
        let status = self.status_publisher.statuses().get(uid);
        status.is_some_and(|status| is_terminal(&status))
    }

    /// Whether the pod was stopped or rejected because of a node shutdown.
    pub fn ended_by_shutdown(&self, uid: &PodUid) -> bool {
        self.status_publisher.ended_by_shutdown(uid)
    }

    /// Where the pod of this UID came from, as it was recorded when it was first started.
    pub fn origin(&self, uid: &PodUid) -> Option<PodOrigin> {
        self.state_store.read(uid, |record| record.origin.clone())
    }

    /// Wakes the probes of a pod whose runtime status changed.
    pub fn runtime_status_changed(&self, uid: &PodUid) {
        self.probes.pod_changed(uid);
    }

    /// Pods whose volumes changed after their last sync. Safe to cancel.
    pub async fn volumes_changed(&self) -> HashSet<PodUid> {
        self.volumes.changed().await
    }

    /// The device plugins and DRA drivers, and what they allocated.
    pub fn devices(&self) -> &DeviceManagers {
        self.runtime.devices()
    }

    /// The allocated resources of pods (in-place resize).
    pub fn allocations(&self) -> &Allocations {
        self.runtime.allocations()
    }

    /// Records a warning about the pod.
    pub fn warning_event(
        &self,
        pod: &Pod,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.events.warning(&ObjectRef::pod(pod), reason, message);
    }

    /// Records a normal event about the pod.
    pub fn normal_event(&self, pod: &Pod, reason: &'static str, message: String) {
        self.events.normal(&ObjectRef::pod(pod), reason, message);
    }

    /// Records the origin of the pod, and drops a record that an earlier manifest of its UID left. Called before the
    /// record is read.
    pub fn record_origin(&self, pod: &Pod) {
        self.status_publisher.record_origin(pod);
    }

    /// Removes superseded containers of these pods, except pods of the API server: their syncs remove them. The last
    /// containers of ended pods are kept for users until disk space is needed. Takes the proof that the runtime was
    /// listed completely.
    ///
    /// # Errors
    /// The runtime did not remove one; the others were removed.
    pub async fn remove_all_superseded(
        &self,
        pods: &[Arc<PodStatus>],
        proof: RuntimeListed,
    ) -> anyhow::Result<()> {
        self.runtime.garbage_collect(pods, &|_| false, proof).await
    }
}
