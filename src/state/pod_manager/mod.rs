//! The desired pods of this node (upstream's pod manager).
//!
//! * Owns: the pods of all sources by UID, and the mirror pods of static pods by full name.
//! * Woken by: the sync loop, the only writer.
//! * Publishes: the pods and mirror pods, and a version counter; the set of changed ones, for the tasks that write to
//!   the API server.
//! * Must never add or remove a pod on its own, or return a mirror pod among the desired pods.
//! * Upstream: `pkg/kubelet/pod`.

use crate::base::DirtySet;
use crate::model::{Pod, PodExt, PodFullName, PodUid};
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;

/// Reading end; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodManager {
    pods: Arc<RwLock<HashMap<PodUid, Arc<Pod>>>>,
    mirrors: Arc<RwLock<HashMap<PodFullName, Arc<Pod>>>>,
    version: Arc<watch::Sender<u64>>,
}

/// Writing end, for the sync loop alone.
#[derive(Debug, Default)]
pub struct PodManagerWriter {
    reader: PodManager,
    changes: Option<Arc<PodChanges>>,
}

/// The pods that changed since they were last taken. Recorded only if there is a consumer, that is, with an API server.
#[derive(Debug, Default)]
pub struct PodChanges {
    /// Pods whose object or mirror pod changed.
    pub pods: Arc<DirtySet<PodUid>>,
    /// Full names of static pods and mirror pods that were added, changed or removed.
    pub mirrors: Arc<DirtySet<PodFullName>>,
}

impl PodManager {
    /// A counter that grows with every change of the desired pods.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The desired pod with this UID.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.pods.read().get(uid).cloned()
    }

    /// Whether the pod is desired.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.pods.read().contains_key(uid)
    }

    /// All desired pods, in no order.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.read().values().cloned().collect()
    }

    /// Number of desired pods.
    pub fn count(&self) -> usize {
        self.pods.read().len()
    }

    /// UIDs of all desired pods.
    pub fn uids(&self) -> HashSet<PodUid> {
        self.pods.read().keys().cloned().collect()
    }

    /// The mirror pod of a static pod.
    pub fn mirror_of(&self, name: &PodFullName) -> Option<Arc<Pod>> {
        self.mirrors.read().get(name).cloned()
    }

    /// The static pod with this full name.
    pub fn static_of(&self, name: &PodFullName) -> Option<Arc<Pod>> {
        let pods = self.pods.read();
        let mut named = pods.values().filter(|pod| pod.full_name() == *name);
        named.find(|pod| pod.is_static()).cloned()
    }

    /// All mirror pods, in no order.
    pub fn mirrors(&self) -> Vec<Arc<Pod>> {
        self.mirrors.read().values().cloned().collect()
    }
}

impl PodManagerWriter {
    /// Returns a reading end.
    pub fn reader(&self) -> PodManager {
        self.reader.clone()
    }

    /// Records changes in `changes`, if given.
    #[must_use]
    pub fn with_changes(self, changes: impl Into<Option<Arc<PodChanges>>>) -> Self {
        let changes = changes.into();
        Self { changes, ..self }
    }

    /// Adds or replaces a pod.
    pub fn set(&self, pod: Arc<Pod>) {
        self.reader.pods.write().insert(pod.uid(), pod.clone());
        self.changed(&pod);
    }

    /// Removes a pod and returns it.
    pub fn remove(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let removed = self.reader.pods.write().remove(uid);
        removed.iter().for_each(|pod| self.changed(pod));
        removed
    }

    /// Adds or replaces a mirror pod; its static pod need not exist.
    pub fn set_mirror(&self, mirror: Arc<Pod>) {
        let name = mirror.full_name();
        self.reader.mirrors.write().insert(name.clone(), mirror);
        self.mirror_changed(name);
    }

    /// Removes a mirror pod and returns it. A newer mirror pod of the same name, which has another UID, is kept.
    pub fn unset_mirror(&self, name: &PodFullName, uid: &PodUid) -> Option<Arc<Pod>> {
        let mut mirrors = self.reader.mirrors.write();
        let is_it = mirrors.get(name).is_some_and(|known| known.uid() == *uid);
        let removed = is_it.then(|| mirrors.remove(name)).flatten();
        drop(mirrors);
        if removed.is_some() {
            self.mirror_changed(name.clone());
        }
        removed
    }

    fn changed(&self, pod: &Pod) {
        self.reader.version.send_modify(|version| *version += 1);
        if let Some(changes) = &self.changes {
            changes.pods.mark(pod.uid());
            if pod.is_static() {
                changes.mirrors.mark(pod.full_name());
            }
        }
    }

    fn mirror_changed(&self, name: PodFullName) {
        if let Some(changes) = &self.changes {
            let mirrored = self.reader.static_of(&name);
            changes.pods.mark_all(mirrored.map(|pod| pod.uid()));
            changes.mirrors.mark(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{fixture, keys};

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

    fn pod(uid: &str, source: &str) -> Arc<Pod> {
        let pod = fixture::pod(&format!("default/web/{uid}"), None);
        Arc::new(fixture::annotated(pod, [(keys::CONFIG_SOURCE, source)]))
    }

    #[test]
    fn a_mirror_is_no_pod_that_should_run_and_is_found_by_its_name() {
        let writer = PodManagerWriter::default();
        let manager = writer.reader();
        let name = pod("m", "api").full_name();
        writer.set_mirror(pod("m", "api"));
        assert!(manager.count() == 0 && manager.static_of(&name).is_none());
        writer.set(pod("api", "api"));
        assert!(manager.static_of(&name).is_none(), "not a static pod");
        writer.set(pod("s", "file"));
        assert_eq!(manager.static_of(&name).unwrap().uid(), "s".into());
        assert_eq!(manager.mirror_of(&name).unwrap().uid(), "m".into());
        assert_eq!(manager.mirrors().len(), 1);
    }

    #[test]
    fn removing_an_earlier_mirror_keeps_the_one_that_took_its_place() {
        let writer = PodManagerWriter::default();
        let name = pod("m", "api").full_name();
        writer.set_mirror(pod("new", "api"));
        assert!(writer.unset_mirror(&name, &"old".into()).is_none());
        assert!(writer.reader().mirror_of(&name).is_some());
        assert!(writer.unset_mirror(&name, &"new".into()).is_some());
        assert!(writer.reader().mirror_of(&name).is_none());
    }

    #[test]
    fn what_changes_is_marked_for_those_who_write_to_the_api_server() {
        let changes = Arc::new(PodChanges::default());
        let writer = PodManagerWriter::default().with_changes(changes.clone());
        let name = pod("s", "file").full_name();
        let taken = || (changes.pods.take_now(), changes.mirrors.take_now());
        let both = (HashSet::from(["s".into()]), HashSet::from([name.clone()]));
        writer.set(pod("s", "file"));
        assert_eq!(taken(), both);
        writer.set_mirror(pod("m", "api"));
        assert_eq!(taken(), both, "the pod whose status the mirror shows");
        writer.unset_mirror(&name, &"m".into());
        assert_eq!(taken(), both);
        writer.set(pod("a", "api"));
        assert_eq!(taken(), (HashSet::from(["a".into()]), HashSet::new()));
    }
}
