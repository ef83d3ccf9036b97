//! Pods of which something is being created: the runtime sends its event before the create call returns its
//! id.

use super::{PodCache, PodCacheWriter};
use crate::model::PodUid;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

/// Number of create calls of each pod that are running.
#[derive(Debug, Default)]
pub(super) struct Creations(Mutex<HashMap<PodUid, usize>>);

/// Until it is dropped, something of a pod is being created.
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
    /// Something of this pod is being created, until the value is dropped: after the item was touched or
    /// observed. Meanwhile an unknown id of this pod is not a reason for a list, however long the runtime
    /// takes.
    pub fn creating(&self, uid: PodUid) -> PodCreationGuard {
        let creations = self.shared.creations.clone();
        *creations.0.lock().entry(uid.clone()).or_default() += 1;
        PodCreationGuard { creations, uid }
    }
}

impl PodCacheWriter {
    /// Whether something of this pod is being created.
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
        let (first, second) = (cache.creating(uid.clone()), cache.creating(uid.clone()));
        assert!(!writer.is_creating(&"other".into()));
        drop(first);
        assert!(writer.is_creating(&uid));
        drop(second);
        assert!(!writer.is_creating(&uid));
    }
}
