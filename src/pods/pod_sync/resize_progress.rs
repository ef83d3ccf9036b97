//! The progress of a pod's resize, as conditions and events show it.

use super::PodSync;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt as _};
use crate::resources::allocation::{ResizeInProgress, event_message};
use crate::runtime::kuberuntime::PodSyncResult;
use crate::state::events::ObjectRef;
use std::sync::Arc;

impl PodSync {
    /// Records the progress of the pod's resize after a sync.
    pub(super) fn record_resize_progress(&self, pod: &Arc<Pod>, result: &PodSyncResult) {
        let (uid, allocations) = (pod.uid(), self.runtime.allocations());
        // A resize may have been accepted during this sync.
        let pod = &allocations.apply(pod);
        let before = allocations.conditions(&uid).in_progress;
        let error = result.resize_error.clone();
        let goes_on = error.is_some()
            || before.is_some()
                && (result.cancelled || self.runtime.is_resizing(pod, &self.cache.latest(&uid)));
        let generation =
            before.as_ref().map_or(pod.metadata.generation, |before| before.generation);
        let now = goes_on.then(|| ResizeInProgress {
            error: error.clone().or_else(|| before.clone()?.error),
            generation,
        });
        if now == before {
            return;
        }
        allocations.change_conditions(&uid, |conditions| {
            // Else another resize was accepted meanwhile, which this sync says nothing about.
            if conditions.in_progress == before {
                conditions.in_progress = now;
            }
        });
        let object = ObjectRef::pod(pod);
        if let Some(error) = error {
            let text = event_message("Pod resize error", pod, generation, &error);
            self.events.warning(&object, event::RESIZE_ERROR, text);
        } else {
            let text = event_message("Pod resize completed", pod, generation, "");
            self.events.normal(&object, event::RESIZE_COMPLETED, text);
            allocations.set_completed();
        }
    }
}
