//! Compares the list of a source with its last one (upstream's `podStorage.merge`). Pure.

use crate::model::{Completeness, Pod, PodExt, PodOp, PodSource, PodUid, PodUpdate, keys};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Annotations that the kubelet sets itself; changing them is not an update of the pod.
const LOCAL_ANNOTATIONS: [&str; 3] = [keys::CONFIG_SOURCE, keys::CONFIG_SEEN, keys::CONFIG_MIRROR];

/// The result of merging one list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Messages in the order in which they must be sent: REMOVE, ADD, UPDATE, DELETE, RECONCILE.
    pub updates: Vec<PodUpdate>,
    /// Later pods of the list with a name or UID that an earlier one has; they are left out.
    pub duplicates: Vec<Arc<Pod>>,
}

/// The pods of one source as last sent to the sync loop.
#[derive(Debug)]
pub struct SourcePods {
    source: PodSource,
    pods: HashMap<PodUid, Arc<Pod>>,
    has_merged: bool,
}

impl SourcePods {
    /// A source without a list yet.
    pub fn new(source: PodSource) -> Self {
        Self { source, pods: HashMap::new(), has_merged: false }
    }

    /// Merges the latest list of the source's pods. The first list causes an update even if it is empty: an ADD
    /// without pods, which carries the completeness of the list.
    pub fn merge(&mut self, list: Vec<Arc<Pod>>, now: Timestamp) -> Merged {
        let (good, duplicates) = without_duplicates(&list);
        let mut changes = Changes::default();
        let mut old = std::mem::take(&mut self.pods);
        self.pods.reserve(good.len());
        for pod in good {
            let (uid, pod) = (pod.uid(), pod.clone());
            let pod = match old.remove(&uid) {
                None => changes.add(with_source_annotations(pod, self.source, None, now)),
                Some(old) if Arc::ptr_eq(&old, &pod) => old,
                // A UID that the user chose now names another pod.
                Some(old) if self.is_replacement(&old, &pod) => {
                    changes.remove.push(old);
                    changes.add(with_source_annotations(pod, self.source, None, now))
                }
                Some(old) => changes.compare(old, pod, self.source, now),
            };
            self.pods.insert(uid, pod);
        }
        changes.remove.extend(old.into_values());
        changes.remove.sort_by_cached_key(|pod| pod.full_name());
        let first = !std::mem::replace(&mut self.has_merged, true);
        Merged {
            updates: changes.into_updates(self.source, first),
            duplicates: duplicates.into_iter().cloned().collect(),
        }
    }

    /// Whether two pods of one UID are not the same pod: the name differs, or the manifest of a static pod was edited.
    /// The digest annotation of an API pod may come from its user, so it is not compared.
    fn is_replacement(&self, old: &Pod, new: &Pod) -> bool {
        let edited =
            || old.annotation(keys::MANIFEST_DIGEST) != new.annotation(keys::MANIFEST_DIGEST);
        let renamed = old.name() != new.name() || old.namespace() != new.namespace();
        renamed || (self.source != PodSource::Api && edited())
    }
}

fn message(source: PodSource, op: PodOp, pods: Vec<Arc<Pod>>) -> PodUpdate {
    PodUpdate { source, op, pods, completeness: Completeness::Partial }
}

/// The updates of one list, with its completeness. Only the last update carries it: until the sync loop has handled
/// that one, pods of the list are missing from the store of desired pods. If nothing but the completeness changed since
/// the `last` one that was sent, an update without pods carries it.
pub(super) fn with_completeness(
    source: PodSource,
    mut updates: Vec<PodUpdate>,
    completeness: Completeness,
    last: Option<Completeness>,
) -> Vec<PodUpdate> {
    if updates.is_empty() && last.as_ref() != Some(&completeness) {
        updates.push(message(source, PodOp::Add, Vec::new()));
    }
    if let Some(last) = updates.last_mut() {
        last.completeness = completeness;
    }
    updates
}

/// The pods of a list, and those with a name or UID that an earlier one has.
fn without_duplicates(list: &[Arc<Pod>]) -> (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) {
    let mut names = HashSet::with_capacity(list.len());
    let mut uids = HashSet::with_capacity(list.len());
    list.iter().partition(|pod| {
        let name = (pod.namespace(), pod.name());
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if names.contains(&name) || uids.contains(uid) {
            return false;
        }
        names.insert(name) && uids.insert(uid)
    })
}

#[derive(Default)]
struct Changes {
    remove: Vec<Arc<Pod>>,
    add: Vec<Arc<Pod>>,
    update: Vec<Arc<Pod>>,
    delete: Vec<Arc<Pod>>,
    reconcile: Vec<Arc<Pod>>,
}

impl Changes {
    /// The messages, in order.
    fn into_updates(self, source: PodSource, first: bool) -> Vec<PodUpdate> {
        let quiet = self.add.is_empty() && self.update.is_empty() && self.delete.is_empty();
        let messages = [
            (PodOp::Remove, self.remove, false),
            (PodOp::Add, self.add, first && quiet),
            (PodOp::Update, self.update, false),
            (PodOp::Delete, self.delete, false),
            (PodOp::Reconcile, self.reconcile, false),
        ];
        let needed =
            messages.into_iter().filter(|(_, pods, even_empty)| *even_empty || !pods.is_empty());
        needed.map(|(op, pods, _)| message(source, op, pods)).collect()
    }

    fn add(&mut self, pod: Arc<Pod>) -> Arc<Pod> {
        self.add.push(pod.clone());
        pod
    }

    /// Compares a known pod with its new version (upstream's `checkAndUpdatePod`) and returns the version to store.
    fn compare(
        &mut self,
        old: Arc<Pod>,
        new: Arc<Pod>,
        source: PodSource,
        now: Timestamp,
    ) -> Arc<Pod> {
        let differs = pods_differ_semantically(&old, &new);
        if !differs && old.status == new.status {
            return old;
        }
        let seen = old.annotation(keys::CONFIG_SEEN);
        let new = with_source_annotations(new, source, seen, now);
        let list = match (differs, new.is_being_deleted()) {
            (false, _) => &mut self.reconcile,
            (true, true) => &mut self.delete,
            (true, false) => &mut self.update,
        };
        list.push(new.clone());
        new
    }
}

/// The pod with the annotations of its source and of the time it was first seen: that of its earlier version (`seen`),
/// else its own annotation, else now.
fn with_source_annotations(
    pod: Arc<Pod>,
    source: PodSource,
    seen: Option<&str>,
    now: Timestamp,
) -> Arc<Pod> {
    let has = |key: &str, value: &str| pod.annotation(key) == Some(value);
    let seen = match seen.or_else(|| pod.annotation(keys::CONFIG_SEEN)) {
        Some(seen) => seen.to_string(),
        None => now.to_string(),
    };
    if has(keys::CONFIG_SOURCE, source.as_str()) && has(keys::CONFIG_SEEN, &seen) {
        return pod;
    }
    let mut pod = Arc::unwrap_or_clone(pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_SOURCE.into(), source.as_str().into());
    annotations.insert(keys::CONFIG_SEEN.into(), seen);
    Arc::new(pod)
}

fn pods_differ_semantically(old: &Pod, new: &Pod) -> bool {
    old.spec != new.spec
        || old.metadata.labels != new.metadata.labels
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
        || !non_local_annotations(old).eq(non_local_annotations(new))
}

fn non_local_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let all = pod.metadata.annotations.iter().flat_map(BTreeMap::iter);
    all.filter(|(key, _)| !LOCAL_ANNOTATIONS.contains(&key.as_str()))
}

#[cfg(test)]
mod tests;
