//! The runtime statuses of all pods, and the order of reads and touches. Pure.

use super::{InspectedItem, ItemId, PodRef, StaleItem};
use crate::model::{
    ContainerState, ContainerStatus, PodStatus, PodUid, SandboxId, SandboxStatus, Seq,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A sandbox or container of a list or of its own status, with the pod that its labels name.
#[derive(Clone, Debug, PartialEq)]
pub struct ListEntry<T> {
    /// The pod.
    pub pod_ref: PodRef,
    /// The status; from a list, with the fields that a list returns.
    pub status: T,
}

#[derive(Debug)]
struct TrackedItem {
    uid: PodUid,
    sandbox: Option<SandboxId>,
    /// Number of the newest applied read; zero before the first.
    read: Seq,
    /// Set if the item has to be read again, by a read with this number or a larger one.
    stale: Option<Seq>,
}

#[derive(Debug, Default)]
struct CacheEntry {
    status: Arc<PodStatus>,
    item_count: usize,
    stale_count: usize,
}

/// The effects of applying one read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReadEffects {
    pub(super) changed: bool,
    pub(super) settled: bool,
}

/// The effects of applying a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListOutcome {
    pub(super) changed: Vec<PodUid>,
    pub(super) settled: Vec<PodUid>,
    pub(super) inspect: Vec<ItemId>,
}

#[derive(Debug, Default)]
pub(super) struct PodCacheState {
    pods: HashMap<PodUid, CacheEntry>,
    items: HashMap<ItemId, TrackedItem>,
    /// Items that were read as gone, so that a list that began before does not add them again.
    tombstones: HashMap<ItemId, Seq>,
    /// Errors of the last read of stale items.
    failures: HashMap<ItemId, Arc<str>>,
    /// The number of the last applied list.
    listed: Option<Seq>,
    /// The number of the newest read, list or touch.
    newest: Seq,
}

impl PodCacheState {
    pub(super) fn status(&self, uid: &PodUid) -> Arc<PodStatus> {
        match self.pods.get(uid) {
            Some(entry) => entry.status.clone(),
            None => Arc::new(PodStatus { uid: uid.clone(), ..PodStatus::default() }),
        }
    }

    pub(super) fn settled(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        match self.pods.get(uid) {
            Some(entry) if entry.stale_count > 0 => None,
            _ => Some(self.status(uid)),
        }
    }

    pub(super) fn pods(&self) -> Vec<Arc<PodStatus>> {
        self.pods.values().map(|entry| entry.status.clone()).collect()
    }

    /// Numbers of pods, items and tombstones.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.pods.len(), self.items.len(), self.tombstones.len())
    }

    pub(super) fn pod_ref(&self, item: &ItemId) -> Option<PodRef> {
        let uid = &self.items.get(item)?.uid;
        let status = &self.pods.get(uid)?.status;
        Some(PodRef {
            uid: uid.clone(),
            name: status.name.clone(),
            namespace: status.namespace.clone(),
        })
    }

    pub(super) fn sandbox_of(&self, item: &ItemId) -> Option<SandboxId> {
        self.items.get(item)?.sandbox.clone()
    }

    /// The items that have to be read before the pod is settled, with the error of the last read.
    pub(super) fn stale(&self, uid: &PodUid) -> Vec<StaleItem> {
        let entry = self.pods.get(uid);
        if entry.is_none_or(|entry| entry.stale_count == 0) {
            return Vec::new();
        }
        let items = self.items.iter();
        let stale = items.filter(|(_, item)| item.uid == *uid && item.stale.is_some());
        stale
            .map(|(id, _)| StaleItem { item: id.clone(), failure: self.failures.get(id).cloned() })
            .collect()
    }

    /// Whether a pod cannot be read: a read of every item that has to be read has failed.
    pub(super) fn is_unreadable(&self, uid: &PodUid) -> bool {
        let stale = self.stale(uid);
        !stale.is_empty() && stale.iter().all(|item| item.failure.is_some())
    }

    /// Records that a read of an item, begun at `seq`, failed; `listed` is the item in a list. An exited container
    /// that has a newer instance counts as read with an unknown exit, so that it does not hold up the pod. Only its
    /// `lastState` and, if the newer instance is killed, the start of the restart delay depend on that exit. A sandbox
    /// that was never read is shown as listed, because it tells the pod's source; it still has to be read.
    pub(super) fn record_failed_read(
        &mut self,
        id: &ItemId,
        seq: Seq,
        failure: Arc<str>,
        listed: Option<InspectedItem>,
    ) -> ReadEffects {
        let Some(item) = self.items.get(id).filter(|item| item.stale.is_some()) else {
            return ReadEffects::default();
        };
        let superseded = |pod: &PodStatus, listed: &ContainerStatus| {
            listed.state == ContainerState::Exited
                && pod.instances(&listed.name).any(|c| c.restart_count > listed.restart_count)
        };
        let pod = self.status(&item.uid);
        let mut effects = ReadEffects::default();
        match listed {
            Some(InspectedItem::Container(listed)) if superseded(&pod, &listed) => {
                let pod_ref = PodRef::of_status(&pod);
                let read = pod.container(&listed.id).cloned();
                let status = listed.with_unknown_end(read.as_ref());
                return self.apply(&pod_ref, id, seq, InspectedItem::Container(status));
            }
            Some(InspectedItem::Sandbox(listed))
                if pod.sandboxes.iter().all(|known| known.id != listed.id) =>
            {
                effects.changed = self.edit(&pod.uid, |pod| {
                    upsert(&mut pod.sandboxes, listed, |sandbox| &sandbox.id)
                });
            }
            _ => {}
        }
        self.failures.insert(id.clone(), failure);
        effects
    }

    /// The items whose last read failed.
    pub(super) fn failed(&self) -> Vec<ItemId> {
        self.failures.keys().cloned().collect()
    }

    /// Whether a container was not read yet, and reading it has not failed.
    pub(super) fn has_unread_containers(&self) -> bool {
        let mut items = self.items.iter();
        items.any(|(id, item)| {
            matches!(id, ItemId::Container(_))
                && item.read == Seq(0)
                && !self.failures.contains_key(id)
        })
    }

    pub(super) fn was_read_since(&self, item: &ItemId, seq: Seq) -> bool {
        self.items.get(item).is_some_and(|item| item.read > seq)
    }

    pub(super) fn is_gone(&self, item: &ItemId) -> bool {
        self.tombstones.contains_key(item)
    }

    pub(super) fn was_listed(&self) -> bool {
        self.listed.is_some()
    }

    pub(super) fn confirm_list(&mut self, seq: Seq) -> bool {
        let unchanged = self.listed.is_some_and(|listed| self.newest <= listed);
        if unchanged {
            self.listed = Some(seq);
            self.newest = seq;
        }
        unchanged
    }

    pub(super) fn touch(
        &mut self,
        pod_ref: &PodRef,
        id: &ItemId,
        sandbox: Option<SandboxId>,
        seq: Seq,
    ) {
        self.newest = self.newest.max(seq);
        self.mark_stale(pod_ref, id, sandbox, seq);
    }

    pub(super) fn apply(
        &mut self,
        pod_ref: &PodRef,
        id: &ItemId,
        seq: Seq,
        read: InspectedItem,
    ) -> ReadEffects {
        self.newest = self.newest.max(seq);
        if self.items.get(id).is_some_and(|item| seq <= item.read)
            || self.tombstones.get(id).is_some_and(|tombstone| seq <= *tombstone)
        {
            return ReadEffects::default();
        }
        match read {
            InspectedItem::Gone => self.mark_gone(id, seq),
            InspectedItem::Sandbox(status) => {
                self.ensure_item(pod_ref, id, None);
                let changed =
                    self.edit(&pod_ref.uid, |pod| upsert(&mut pod.sandboxes, status, |s| &s.id));
                ReadEffects { changed, settled: self.mark_read(id, seq) }
            }
            InspectedItem::Container(status) => {
                self.ensure_item(pod_ref, id, Some(status.sandbox.clone()));
                let changed =
                    self.edit(&pod_ref.uid, |pod| upsert(&mut pod.containers, status, |c| &c.id));
                ReadEffects { changed, settled: self.mark_read(id, seq) }
            }
        }
    }

    pub(super) fn apply_list(
        &mut self,
        seq: Seq,
        sandboxes: Vec<ListEntry<SandboxStatus>>,
        containers: Vec<ListEntry<ContainerStatus>>,
    ) -> ListOutcome {
        let mut outcome = ListOutcome::default();
        let mut present = HashSet::with_capacity(sandboxes.len() + containers.len());
        for ListEntry { pod_ref, status } in sandboxes {
            let id = ItemId::Sandbox(status.id.clone());
            let same = self.pods.get(&pod_ref.uid).is_some_and(|entry| {
                entry.status.sandboxes.iter().any(|s| s.id == status.id && s.ready == status.ready)
            });
            if !same {
                self.mark_listed_stale(&pod_ref, &id, None, seq, &mut outcome);
            }
            present.insert(id);
        }
        for ListEntry { pod_ref, status } in containers {
            let id = ItemId::Container(status.id.clone());
            let same = self.pods.get(&pod_ref.uid).is_some_and(|entry| {
                entry.status.container(&status.id).is_some_and(|c| c.agrees_with(status.state))
            });
            if !same {
                self.mark_listed_stale(&pod_ref, &id, Some(status.sandbox), seq, &mut outcome);
            }
            present.insert(id);
        }
        self.drop_absent(seq, &present, &mut outcome);
        self.tombstones.retain(|_, tombstone| *tombstone > seq);
        self.listed = Some(seq);
        self.newest = self.newest.max(seq);
        outcome
    }

    /// Marks an item as stale that the list of `seq` shows differently, unless it was read since.
    fn mark_listed_stale(
        &mut self,
        pod_ref: &PodRef,
        id: &ItemId,
        sandbox: Option<SandboxId>,
        seq: Seq,
        outcome: &mut ListOutcome,
    ) {
        let newer = self.items.get(id).is_some_and(|item| item.read >= seq)
            || self.tombstones.get(id).is_some_and(|tombstone| *tombstone >= seq);
        if !newer {
            self.mark_stale(pod_ref, id, sandbox, seq);
            outcome.inspect.push(id.clone());
        }
    }

    fn drop_absent(&mut self, seq: Seq, present: &HashSet<ItemId>, outcome: &mut ListOutcome) {
        let gone: Vec<ItemId> = self
            .items
            .iter()
            .filter(|(id, item)| {
                item.read < seq && item.stale.is_none_or(|s| s < seq) && !present.contains(id)
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            let Some(uid) = self.items.get(&id).map(|item| item.uid.clone()) else {
                continue;
            };
            let applied = self.mark_gone(&id, seq);
            if applied.changed {
                outcome.changed.push(uid.clone());
            }
            if applied.settled {
                outcome.settled.push(uid);
            }
        }
    }

    fn ensure_item(&mut self, pod_ref: &PodRef, id: &ItemId, sandbox: Option<SandboxId>) {
        let entry = self.pods.entry(pod_ref.uid.clone()).or_insert_with(|| CacheEntry {
            status: Arc::new(PodStatus {
                uid: pod_ref.uid.clone(),
                name: pod_ref.name.clone(),
                namespace: pod_ref.namespace.clone(),
                ..PodStatus::default()
            }),
            ..CacheEntry::default()
        });
        if !self.items.contains_key(id) {
            entry.item_count += 1;
            let item = TrackedItem { uid: pod_ref.uid.clone(), sandbox, read: Seq(0), stale: None };
            self.items.insert(id.clone(), item);
        }
    }

    fn mark_stale(&mut self, pod_ref: &PodRef, id: &ItemId, sandbox: Option<SandboxId>, seq: Seq) {
        self.ensure_item(pod_ref, id, sandbox);
        let Some(item) = self.items.get_mut(id) else {
            return;
        };
        let was_settled = item.stale.is_none();
        item.stale = item.stale.max(Some(seq));
        if was_settled && let Some(entry) = self.pods.get_mut(&item.uid) {
            entry.stale_count += 1;
        }
    }

    /// Records a read; true when it settled the pod.
    fn mark_read(&mut self, id: &ItemId, seq: Seq) -> bool {
        let Some(item) = self.items.get_mut(id) else {
            return false;
        };
        item.read = seq;
        if item.stale.is_none_or(|wanted| seq < wanted) {
            return false;
        }
        item.stale = None;
        self.failures.remove(id);
        let Some(entry) = self.pods.get_mut(&item.uid) else {
            return false;
        };
        entry.stale_count = entry.stale_count.saturating_sub(1);
        entry.stale_count == 0
    }

    fn mark_gone(&mut self, id: &ItemId, seq: Seq) -> ReadEffects {
        self.tombstones.insert(id.clone(), seq);
        self.failures.remove(id);
        let Some(item) = self.items.remove(id) else {
            return ReadEffects::default();
        };
        let changed = self.edit(&item.uid, |pod| match id {
            ItemId::Sandbox(id) => remove(&mut pod.sandboxes, |s| s.id == *id),
            ItemId::Container(id) => remove(&mut pod.containers, |c| c.id == *id),
        });
        let Some(entry) = self.pods.get_mut(&item.uid) else {
            return ReadEffects::default();
        };
        entry.item_count = entry.item_count.saturating_sub(1);
        if item.stale.is_some() {
            entry.stale_count = entry.stale_count.saturating_sub(1);
        }
        let settled = item.stale.is_some() && entry.stale_count == 0;
        if entry.item_count == 0 {
            self.pods.remove(&item.uid);
        }
        // A pod whose last unread item is gone is known completely, which its sync may have waited for.
        ReadEffects { changed: changed || settled, settled }
    }

    /// Edits a pod's status; true if the edit changed it.
    fn edit(&mut self, uid: &PodUid, edit: impl FnOnce(&mut PodStatus) -> bool) -> bool {
        let Some(entry) = self.pods.get_mut(uid) else {
            return false;
        };
        let mut status = PodStatus::clone(&entry.status);
        if !edit(&mut status) {
            return false;
        }
        status.sort();
        entry.status = Arc::new(status);
        true
    }
}

fn upsert<T: PartialEq, K: PartialEq>(list: &mut Vec<T>, value: T, key: impl Fn(&T) -> &K) -> bool {
    match list.iter_mut().find(|known| key(known) == key(&value)) {
        Some(known) if *known == value => false,
        Some(known) => {
            *known = value;
            true
        }
        None => {
            // Most pods have one item of each kind; the default capacity of four would dominate the size of a status.
            list.reserve_exact(1);
            list.push(value);
            true
        }
    }
}

fn remove<T>(list: &mut Vec<T>, gone: impl Fn(&T) -> bool) -> bool {
    let before = list.len();
    list.retain(|known| !gone(known));
    list.len() != before
}
