//! The pods that `/pods` lists.

use crate::model::{Pod, PodExt, PodUid};
use crate::pods::status::Statuses;
use crate::state::pod_manager::PodManager;
use crate::state::pod_state_store::{PodRecord, PodStateStore};
use k8s_openapi::api::core::v1 as api;
use std::collections::HashSet;
use std::sync::Arc;

/// A pod with its current status; `None` if none was generated yet: then the status in the pod object is used.
pub type PodWithStatus = (Arc<Pod>, Option<Arc<api::PodStatus>>);

/// Reads the pods of this node; cheap to clone.
#[derive(Clone)]
pub struct PodLister {
    /// The desired pods.
    pub pod_manager: PodManager,
    /// The statuses that were generated.
    pub statuses: Statuses,
    /// The statuses of the previous process.
    pub state_store: PodStateStore,
}

impl PodLister {
    /// The desired pods, then those that no source has any more, until they are removed (upstream omits these). After a
    /// restart, until a pod's status is generated, it has the one that the previous process stored.
    pub fn list(&self) -> Vec<PodWithStatus> {
        let with_status = |pod: Arc<Pod>| {
            let uid = pod.uid();
            // A stored status without a phase is partial: of a terminal status that was not recorded as the end of the
            // pod, only conditions and the start time are stored.
            let stored = || {
                let status = self.state_store.read(&uid, PodRecord::last_status);
                status.filter(|status| status.phase.is_some())
            };
            let status = self.statuses.get(&uid).or_else(stored);
            (pod, status)
        };
        let desired = self.pod_manager.pods().into_iter();
        let mut list = desired.map(with_status).collect::<Vec<_>>();
        let uids = list.iter().map(|(pod, _)| pod.uid()).collect::<HashSet<PodUid>>();
        let entries = self.statuses.all().into_iter();
        let not_desired = entries.filter(|entry| !uids.contains(&entry.pod.uid()));
        list.extend(not_desired.map(|entry| (entry.pod, Some(entry.status))));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::status::StatusManager;
    use crate::state::pod_manager::PodManagerWriter;
    use k8s_openapi::api::core::v1::PodStatus;

    #[test]
    fn a_stored_status_without_a_phase_does_not_replace_that_of_the_pod() {
        let dir = tempfile::tempdir().unwrap();
        let pod_manager = PodManagerWriter::default();
        let lister = PodLister {
            pod_manager: pod_manager.reader(),
            statuses: StatusManager::new(None).reader(),
            state_store: PodStateStore::open(dir.path().to_path_buf()).unwrap(),
        };
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        pod_manager.set(Arc::new(pod));
        for phase in [None, Some("Running".to_owned())] {
            let status = Arc::new(PodStatus { phase: phase.clone(), ..PodStatus::default() });
            let store = &lister.state_store;
            store.update(&"u".into(), |record| record.status = Some(status));
            let shown = lister.list().remove(0).1;
            assert_eq!(shown.and_then(|status| status.phase.clone()), phase);
        }
    }
}
