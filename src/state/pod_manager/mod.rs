//! The desired pods: what should run on this node.
//!
//! * Owns: the pods of all sources, by UID.
//! * Woken by: the sync loop, its one writer.
//! * Publishes: pods by UID and all of them.
//! * Must never invent or drop a pod on its own.
//! * Answers to upstream's `pkg/kubelet/pod`.

use crate::model::{Pod, PodExt, PodUid};
use parking_lot::RwLock;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Reading end; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodManager {
    pods: Arc<RwLock<HashMap<PodUid, Arc<Pod>>>>,
}

/// Writing end, for the sync loop alone.
#[derive(Debug, Default)]
pub struct PodManagerWriter {
    reader: PodManager,
}

impl PodManager {
    /// One pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.pods.read().get(uid).cloned()
    }

    /// Whether this pod should run here.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.pods.read().contains_key(uid)
    }

    /// All pods, in no order.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.read().values().cloned().collect()
    }

    /// How many pods should run here.
    pub fn len(&self) -> usize {
        self.pods.read().len()
    }

    /// Whether none should.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// UIDs of all pods.
    pub fn uids(&self) -> HashSet<PodUid> {
        self.pods.read().keys().cloned().collect()
    }
}

impl PodManagerWriter {
    /// A reading end.
    pub fn reader(&self) -> PodManager {
        self.reader.clone()
    }

    /// Adds or replaces a pod.
    pub fn set(&self, pod: Arc<Pod>) {
        self.reader.pods.write().insert(pod.uid(), pod);
    }

    /// Removes a pod; returns it if it was there.
    pub fn remove(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.reader.pods.write().remove(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_version_of_a_pod_wins_and_removal_returns_it() {
        let writer = PodManagerWriter::default();
        let manager = writer.reader();
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        writer.set(Arc::new(pod.clone()));
        pod.metadata.name = Some("second".into());
        writer.set(Arc::new(pod));
        assert_eq!(manager.pods().len(), 1);
        assert_eq!(writer.remove(&"u".into()).unwrap().name(), "second");
        assert!(manager.uids().is_empty());
    }
}
