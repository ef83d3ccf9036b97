//! Compares the list of a source with its last one (upstream's `podStorage.merge`). Pure.

use crate::model::{
    Completeness, Pod, PodExt, PodFullName, PodOp, PodSource, PodUid, PodUpdate, keys,
};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::{ops::Range, sync::Arc};

/// Maximum number of changed pods of a list for an incremental merge; for more, the whole list is compared.
const MAX_CHANGED_PODS: usize = 8;

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
    /// The last list; empty if it had duplicates.
    last: Vec<Arc<Pod>>,
    names: HashSet<PodFullName>,
    delivered: bool,
}

impl SourcePods {
    /// A source that has delivered nothing yet.
    pub fn new(source: PodSource) -> Self {
        Self {
            source,
            pods: HashMap::new(),
            last: Vec::new(),
            names: HashSet::new(),
            delivered: false,
        }
    }

    /// Merges the complete list of the source's pods. The first list causes an update even if it is empty: an ADD
    /// without pods means that the source has delivered.
    pub fn merge(&mut self, list: Vec<Arc<Pod>>, now: Timestamp) -> Merged {
        let mut merged = Merged::default();
        let mut changes = Changes::default();
        let gone = match self.changed_part(&list) {
            Some((before, after)) => {
                let mut old = self.take_part(&before);
                let new = list.get(after).unwrap_or_default();
                self.names.extend(new.iter().map(|pod| pod.full_name()));
                self.compare_all(new.to_vec(), &mut old, &mut changes, now);
                self.last = list;
                old
            }
            None => {
                let good = without_duplicates(list, &mut merged.duplicates);
                let complete = merged.duplicates.is_empty();
                self.last = if complete { good.clone() } else { Vec::new() };
                self.names = self.last.iter().map(|pod| pod.full_name()).collect();
                let mut old = std::mem::take(&mut self.pods);
                self.compare_all(good, &mut old, &mut changes, now);
                old
            }
        };
        changes.remove.extend(gone.into_values());
        changes.remove.sort_by_cached_key(|pod| pod.full_name());
        let first = !std::mem::replace(&mut self.delivered, true);
        merged.updates = changes.into_updates(self.source, first);
        merged
    }

    /// The range of the last list that changed and the range of this list that replaces it; the unchanged pods are only
    /// compared by pointer. `None` if a whole comparison is needed: the part is too long, or a pod in it has the name
    /// or UID of a pod outside.
    fn changed_part(&self, list: &[Arc<Pod>]) -> Option<(Range<usize>, Range<usize>)> {
        let same = |(one, other): &(&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(one, other);
        let start = self.last.iter().zip(list).take_while(same).count();
        let rest = self.last.len().min(list.len()) - start;
        let ends = self.last.iter().rev().zip(list.iter().rev());
        let end = ends.take(rest).take_while(same).count();
        let (before, after) = (start..self.last.len() - end, start..list.len() - end);
        if !self.delivered || start + end == 0 || before.len().max(after.len()) > MAX_CHANGED_PODS {
            return None;
        }
        let (old, new) = (self.last.get(before.clone())?, list.get(after.clone())?);
        let is_old = |same: &dyn Fn(&Pod) -> bool| old.iter().any(|pod| same(pod));
        let is_isolated = new.iter().enumerate().all(|(index, pod)| {
            let (uid, name) = (pod.uid(), pod.full_name());
            let unlike = |other: &Pod| other.uid() != uid && other.full_name() != name;
            new.iter().take(index).all(|other| unlike(other))
                && (!self.pods.contains_key(&uid) || is_old(&|other| other.uid() == uid))
                && (!self.names.contains(&name) || is_old(&|other| other.full_name() == name))
        });
        is_isolated.then_some((before, after))
    }

    /// Takes the known pods of a part of the last list.
    fn take_part(&mut self, part: &Range<usize>) -> HashMap<PodUid, Arc<Pod>> {
        let part = self.last.get(part.clone()).unwrap_or_default();
        for pod in part {
            self.names.remove(&pod.full_name());
        }
        part.iter()
            .filter_map(|pod| self.pods.remove_entry(&pod.uid()))
            .collect()
    }

    /// Compares each pod with its version in `old`, moves it out of there, and stores the new version.
    fn compare_all(
        &mut self,
        new: Vec<Arc<Pod>>,
        old: &mut HashMap<PodUid, Arc<Pod>>,
        changes: &mut Changes,
        now: Timestamp,
    ) {
        for pod in new {
            let uid = pod.uid();
            let pod = match old.remove(&uid) {
                None => changes.add(with_source_annotations(pod, self.source, None, now)),
                // A UID that the user chose now names another pod.
                Some(old) if self.is_replacement(&old, &pod) => {
                    changes.remove.push(old);
                    changes.add(with_source_annotations(pod, self.source, None, now))
                }
                Some(old) => changes.compare(old, pod, self.source, now),
            };
            self.pods.insert(uid, pod);
        }
    }

    /// Whether two pods of one UID are not the same pod: the name differs, or the manifest of a static pod was edited.
    /// The digest annotation of an API pod may come from its user, so it is not compared.
    fn is_replacement(&self, old: &Pod, new: &Pod) -> bool {
        let edited =
            || old.annotation(keys::MANIFEST_DIGEST) != new.annotation(keys::MANIFEST_DIGEST);
        old.full_name() != new.full_name() || (self.source != PodSource::Api && edited())
    }
}

fn message(source: PodSource, op: PodOp, pods: Vec<Arc<Pod>>) -> PodUpdate {
    PodUpdate {
        source,
        op,
        pods,
        completeness: Completeness::Partial,
    }
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

fn without_duplicates(list: Vec<Arc<Pod>>, duplicates: &mut Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    let mut names = HashSet::with_capacity(list.len());
    let mut uids = HashSet::with_capacity(list.len());
    let (good, bad) = list.into_iter().partition(|pod| {
        let name = pod.full_name();
        let uid = pod.uid();
        if names.contains(&name) || uids.contains(&uid) {
            return false;
        }
        names.insert(name);
        uids.insert(uid);
        true
    });
    *duplicates = bad;
    good
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
        let needed = messages
            .into_iter()
            .filter(|(_, pods, even_empty)| *even_empty || !pods.is_empty());
        needed
            .map(|(op, pods, _)| message(source, op, pods))
            .collect()
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
        if Arc::ptr_eq(&old, &new) {
            return old;
        }
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
