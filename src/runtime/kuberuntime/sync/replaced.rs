//! Containers that a running sync stops in order to start their successors.

use crate::model::{ContainerId, PodUid};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

/// The replaced containers of running syncs. The status of the pod must not take the exit of such a container for final,
/// whatever the restart policy and the exit code.
#[derive(Clone, Debug, Default)]
pub(in crate::runtime::kuberuntime) struct ReplacedContainers(
    Arc<Mutex<HashMap<PodUid, Vec<ContainerId>>>>,
);

/// Unmarks the containers when the sync ends.
#[derive(Debug)]
pub(super) struct ReplacedGuard<'r> {
    replaced: &'r ReplacedContainers,
    uid: PodUid,
}

impl ReplacedContainers {
    /// Marks containers of a pod as being replaced, until the guard is dropped. A pod has one sync at a time.
    pub(super) fn mark(&self, uid: PodUid, ids: Vec<ContainerId>) -> ReplacedGuard<'_> {
        if !ids.is_empty() {
            self.0.lock().insert(uid.clone(), ids);
        }
        ReplacedGuard {
            replaced: self,
            uid,
        }
    }

    /// Whether a sync is about to start the successor of this container.
    pub(in crate::runtime::kuberuntime) fn contains(&self, uid: &PodUid, id: &ContainerId) -> bool {
        let replaced = self.0.lock();
        replaced.get(uid).is_some_and(|ids| ids.contains(id))
    }
}

impl Drop for ReplacedGuard<'_> {
    fn drop(&mut self) {
        self.replaced.0.lock().remove(&self.uid);
    }
}
