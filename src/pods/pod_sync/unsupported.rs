//! Pods that another kubelet started and that this one could not start, and what of theirs it cannot take down.

use super::{PodSync, synced};
use crate::{
    base::chain,
    model::{Pod, PodExt, reasons::event, validation::unsupported_api_fields},
    pods::pod_sync::syncer::{PodSyncResult, RetryDelay},
    state::events::ObjectRef,
    state::pod_history::Action,
    volumes::VolumeError,
};
use std::sync::Arc;

impl PodSync {
    /// The result of the sync of a pod with a field that this kubelet does not support. Admission rejects such a pod
    /// unless it runs: then it is probed, shown and in the end stopped, but nothing of it is started.
    pub(super) fn hold_unsupported(&self, pod: &Arc<Pod>) -> Option<PodSyncResult> {
        if pod.is_static() {
            return None;
        }
        let fields = unsupported_api_fields(pod, self.volumes.serves_certificates());
        if fields.is_empty() {
            return None;
        }
        let fields: Vec<_> = fields.iter().map(ToString::to_string).collect();
        let text = format!(
            "the pod runs on, but nothing of it is started: {}",
            fields.join(", ")
        );
        self.probes.add_pod(pod);
        self.events
            .warning(&ObjectRef::pod(pod), event::FAILED_SYNC, &*text);
        self.record_history(pod, Action::Hold, text);
        Some(synced(Ok(false), RetryDelay::Resync))
    }

    /// Reports what keeps the volumes of an ended pod from being taken down, such as a mount of another kubelet.
    pub(super) fn report_teardown(&self, pod: &Pod, torn_down: &Result<(), VolumeError>) {
        if let Err(error) = torn_down {
            let text = chain(error);
            self.events
                .warning(&ObjectRef::pod(pod), event::FAILED_UNMOUNT, &*text);
            self.record_history(pod, Action::Fail, text);
        }
    }
}
