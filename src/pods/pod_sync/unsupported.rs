//! Running pods of another kubelet that this one cannot start, because it does not support one of their fields.

use super::{PodSync, sync_outcome};
use crate::{
    model::{Pod, PodExt, reasons::event, validation::unsupported_api_fields},
    pods::pod_sync::syncer::{SyncDelay, SyncPodOutcome},
    state::events::ObjectRef,
    state::pod_history::DecisionKind,
};
use std::sync::Arc;

impl PodSync {
    /// Ends the sync of a pod with an unsupported field before anything is started. Admission rejects such a pod unless
    /// it already runs; then it is probed, its status is published and it is stopped when it is deleted, but no
    /// container of it is started.
    pub(super) fn skip_unsupported(&self, pod: &Arc<Pod>) -> Option<SyncPodOutcome> {
        if pod.is_static() {
            return None;
        }
        let fields = unsupported_api_fields(pod, self.volumes.supports_pod_certificates());
        if fields.is_empty() {
            return None;
        }
        let fields: Vec<_> = fields.iter().map(ToString::to_string).collect();
        let text = format!(
            "unsupported fields: {}; running containers are kept, no container is started",
            fields.join(", ")
        );
        self.probes.add_pod(pod);
        self.events
            .warning(&ObjectRef::pod(pod), event::FAILED_SYNC, &*text);
        self.record_history(pod, DecisionKind::Wait, text);
        Some(sync_outcome(Ok(false), SyncDelay::Resync))
    }
}
