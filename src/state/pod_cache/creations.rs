//! Running creations by pod. The runtime sends the event of a new item before the create call returns its id, so that the
//! id of the event is unknown.

use super::{PodCache, PodCacheWriter};
use crate::model::PodUid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of running create calls of each pod.
#[derive(Debug, Default)]
pub(super) struct Creations(Mutex<HashMap<PodUid, usize>>);

/// Marks a creation as running until it is dropped.
#[derive(Debug)]
pub struct PodCreationGuard {
    creations: Arc<Creations>,
    uid: PodUid,
}

impl Drop for PodCreationGuard {
    fn drop(&mut self) {
        let mut pods = self.creations.0.lock();
        match pods.get_mut(&self.uid) {
            Some(number) if *number > 1 => *number -= 1,
            _ => drop(pods.remove(&self.uid)),
        }
    }
}

impl PodCache {
    /// Marks that an item of this pod is being created, until the guard is dropped, after the item was touched or its
    /// read applied. Meanwhile an event with an unknown id of this pod does not cause a relist.
    pub fn creation_guard(&self, uid: PodUid) -> PodCreationGuard {
        let creations = self.shared.creations.clone();
        *creations.0.lock().entry(uid.clone()).or_default() += 1;
        PodCreationGuard { creations, uid }
    }
}

impl PodCacheWriter {
    /// Whether an item of this pod is being created.
    pub fn is_creating(&self, uid: &PodUid) -> bool {
        self.shared.creations.0.lock().contains_key(uid)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pod_is_being_created_until_its_last_create_call_ends() {
        let (writer, cache) = super::super::pod_cache();
        let uid = "u".into();
        assert!(!writer.is_creating(&uid));
        let (first, second) =
            (cache.creation_guard(uid.clone()), cache.creation_guard(uid.clone()));
        assert!(!writer.is_creating(&"other".into()));
        drop(first);
        assert!(writer.is_creating(&uid));
        drop(second);
        assert!(!writer.is_creating(&uid));
    }
}
