//! Reports pods whose sync waits because the runtime cannot return the status of a sandbox or container.

use super::PodSync;
use crate::base::clock;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, PodStatus};
use crate::state::events::ObjectRef;
use crate::state::pod_history::DecisionKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a pod waits for its runtime status before that is reported.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// Interval of further reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl PodSync {
    /// Waits for the settled runtime status of the pod. If that takes long, the stale item and the error are reported.
    /// The caller may drop the future.
    pub(super) async fn settled(&self, pod: &Pod) -> Arc<PodStatus> {
        let uid = pod.uid();
        let mut limit = REPORT_AFTER;
        loop {
            if let Ok(status) = timeout(limit, self.cache.settled(&uid)).await {
                return status;
            }
            // A runtime that is down is reported elsewhere.
            if self.runtime_state.borrow().runtime_error(clock::instant()).is_none() {
                self.report_stale(pod);
            }
            limit = REPORT_INTERVAL;
        }
    }

    /// Reports which item of the pod cannot be read, if there is one.
    pub(super) fn report_stale(&self, pod: &Pod) {
        if let Some(stale) = self.cache.stale(&pod.uid()).first() {
            let text = format!("error determining status: {stale}");
            self.events.warning(&ObjectRef::pod(pod), event::FAILED_SYNC, &*text);
            self.record_history(pod, DecisionKind::Wait, text);
        }
    }
}
