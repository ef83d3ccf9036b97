//! From complete lists to what changed. Pure.

use crate::model::{Pod, PodExt, PodOp, PodSource, PodUid, PodUpdate, keys};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Annotations that say nothing about what the user wants.
const LOCAL_ANNOTATIONS: [&str; 3] = [keys::CONFIG_SOURCE, keys::CONFIG_SEEN, keys::CONFIG_MIRROR];

/// What one list led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Messages in the order in which they must be sent: REMOVE, ADD, UPDATE, DELETE, RECONCILE.
    pub updates: Vec<PodUpdate>,
    /// Later pods of the list with a name or UID that an earlier one has; they are left out.
    pub duplicates: Vec<Arc<Pod>>,
}

/// The pods of one source as last told to the sync loop.
#[derive(Debug)]
pub struct SourcePods {
    source: PodSource,
    pods: HashMap<PodUid, Arc<Pod>>,
    delivered: bool,
}

impl SourcePods {
    /// A source that has delivered nothing yet.
    pub fn new(source: PodSource) -> Self {
        Self {
            source,
            pods: HashMap::new(),
            delivered: false,
        }
    }

    /// Takes the complete list of the source's pods. The first list leads to a message even when
    /// there is nothing in it: an ADD without pods says that the source has delivered.
    pub fn merge(&mut self, list: Vec<Arc<Pod>>, now: Timestamp) -> Merged {
        let mut merged = Merged::default();
        let mut changes = Changes::default();
        let mut gone = Vec::new();
        let mut next = HashMap::with_capacity(list.len());
        for pod in without_duplicates(list, &mut merged.duplicates) {
            let uid = pod.uid();
            let pod = match self.pods.remove(&uid) {
                None => changes.add(stamped(pod, self.source, None, now)),
                // A UID that the user chose now names another pod.
                Some(old) if old.full_name() != pod.full_name() => {
                    gone.push(old);
                    changes.add(stamped(pod, self.source, None, now))
                }
                Some(old) => changes.compare(old, pod, self.source, now),
            };
            next.insert(uid, pod);
        }
        gone.extend(self.pods.drain().map(|(_, pod)| pod));
        gone.sort_by_cached_key(|pod| pod.full_name());
        self.pods = next;
        let first = !std::mem::replace(&mut self.delivered, true);
        let quiet =
            changes.add.is_empty() && changes.update.is_empty() && changes.delete.is_empty();
        for (op, pods, even_empty) in [
            (PodOp::Remove, gone, false),
            (PodOp::Add, changes.add, first && quiet),
            (PodOp::Update, changes.update, false),
            (PodOp::Delete, changes.delete, false),
            (PodOp::Reconcile, changes.reconcile, false),
        ] {
            if even_empty || !pods.is_empty() {
                let source = self.source;
                merged.updates.push(PodUpdate { source, op, pods });
            }
        }
        merged
    }
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
    add: Vec<Arc<Pod>>,
    update: Vec<Arc<Pod>>,
    delete: Vec<Arc<Pod>>,
    reconcile: Vec<Arc<Pod>>,
}

impl Changes {
    fn add(&mut self, pod: Arc<Pod>) -> Arc<Pod> {
        self.add.push(pod.clone());
        pod
    }

    /// Decides what became of a known pod and returns the one to remember.
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
        let differs = differs_for_the_user(&old, &new);
        if !differs && old.status == new.status {
            return old;
        }
        let seen = old.annotation(keys::CONFIG_SEEN);
        let new = stamped(new, source, seen, now);
        let list = match (differs, new.is_being_deleted()) {
            (false, _) => &mut self.reconcile,
            (true, true) => &mut self.delete,
            (true, false) => &mut self.update,
        };
        list.push(new.clone());
        new
    }
}

/// The pod with its source and the time it was first seen: `seen` of an earlier version, its own,
/// or now.
fn stamped(pod: Arc<Pod>, source: PodSource, seen: Option<&str>, now: Timestamp) -> Arc<Pod> {
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

fn differs_for_the_user(old: &Pod, new: &Pod) -> bool {
    old.spec != new.spec
        || old.metadata.labels != new.metadata.labels
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
        || !users_annotations(old).eq(users_annotations(new))
}

fn users_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let all = pod.metadata.annotations.iter().flat_map(BTreeMap::iter);
    all.filter(|(key, _)| !LOCAL_ANNOTATIONS.contains(&key.as_str()))
}

#[cfg(test)]
mod tests;
