//! The runtime status of every pod.
//!
//! * Owns: one [`PodStatus`] per pod, when each item of it was last read, and which items have to be
//!   read again.
//! * Woken by: reads of the PLEG, and touches after a change.
//! * Publishes: immutable runtime statuses; the set of pods whose status changed; items to inspect.
//! * Must never be written from a failed or partial read: a list that failed is not an empty list.
//! * Answers to upstream's `pkg/kubelet/container/cache.go`. There, a worker waits for a status newer
//!   than a wall-clock time; here every read has a place in one sequence, and an item touched after the
//!   read began keeps its pod *unsettled* until it was read again.

mod creations;
mod snapshot;
mod unread;

use crate::{
    base::{DirtySet, Strings},
    model::{
        AddressOrder, ContainerId, ContainerStatus, Pod, PodExt, PodLogName, PodStatus, PodUid,
        SandboxId, SandboxStatus, Seq,
    },
};
use parking_lot::Mutex;
use snapshot::PodSnapshot;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

pub use creations::PodCreationGuard;
pub use snapshot::ListEntry;
pub use unread::Unread;

/// A sandbox or a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ItemId {
    /// A sandbox.
    Sandbox(SandboxId),
    /// A container.
    Container(ContainerId),
}

impl ItemId {
    /// The ID of a sandbox, for the log.
    pub fn sandbox_id(&self) -> Option<&str> {
        match self {
            Self::Sandbox(id) => Some(id.as_str()),
            Self::Container(_) => None,
        }
    }

    /// The ID of a container, for the log.
    pub fn container_id(&self) -> Option<&str> {
        match self {
            Self::Sandbox(_) => None,
            Self::Container(id) => Some(id.as_str()),
        }
    }
}

/// Which pod an item belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// UID.
    pub uid: PodUid,
    /// Name.
    pub name: Arc<str>,
    /// Namespace.
    pub namespace: Arc<str>,
}

impl Owner {
    /// The owner that a pod object names.
    pub fn of(pod: &Pod) -> Self {
        Self {
            uid: pod.uid(),
            name: pod.name().into(),
            namespace: pod.namespace().into(),
        }
    }

    /// The owner of a runtime status.
    pub fn of_status(status: &PodStatus) -> Self {
        Self {
            uid: status.uid.clone(),
            name: status.name.clone(),
            namespace: status.namespace.clone(),
        }
    }

    /// `<namespace>/<name>`, for the log.
    pub fn log_name(&self) -> PodLogName<'_> {
        PodLogName {
            namespace: &self.namespace,
            name: &self.name,
        }
    }
}

/// What a targeted read found.
#[derive(Clone, Debug, PartialEq)]
pub enum InspectedItem {
    /// A sandbox as it is.
    Sandbox(SandboxStatus),
    /// A container as it is.
    Container(ContainerStatus),
    /// The runtime does not know the item.
    Gone,
}

/// Proof that a complete list of the runtime has been applied at least once in this process. Clean-up
/// takes it, so that it never acts on an empty cache.
#[derive(Clone, Copy, Debug)]
pub struct Complete(());

#[derive(Debug, Default)]
struct PodCacheInner {
    snapshot: Mutex<PodSnapshot>,
    waiters: Mutex<HashMap<PodUid, Arc<Notify>>>,
    watchers: Mutex<HashMap<PodUid, Arc<Notify>>>,
    seq: AtomicU64,
    changed: DirtySet<PodUid>,
    inspect: DirtySet<ItemId>,
    listed: Notify,
    creations: Arc<creations::Creations>,
    strings: Strings,
    address_order: AddressOrder,
}

/// The reading end, which also marks what its holder has just changed; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodCache {
    shared: Arc<PodCacheInner>,
}

/// The writing end, for the PLEG only.
#[derive(Debug)]
pub struct PodCacheWriter {
    shared: Arc<PodCacheInner>,
}

/// A new, empty cache.
pub fn pod_cache() -> (PodCacheWriter, PodCache) {
    pod_cache_with(AddressOrder::IPV4_FIRST)
}

/// A new, empty cache on a node whose pods' addresses have this order.
pub fn pod_cache_with(address_order: AddressOrder) -> (PodCacheWriter, PodCache) {
    let shared = Arc::new(PodCacheInner {
        address_order,
        ..PodCacheInner::default()
    });
    (
        PodCacheWriter {
            shared: shared.clone(),
        },
        PodCache { shared },
    )
}

impl PodCache {
    /// The latest status of a pod, settled or not; empty for a pod the runtime has nothing of.
    pub fn latest(&self, uid: &PodUid) -> Arc<PodStatus> {
        self.shared.snapshot.lock().status(uid)
    }

    /// The status of a pod if nothing of it has to be read again.
    pub fn try_settled(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.shared.snapshot.lock().settled(uid)
    }

    /// The status of a pod once every touched item has been read again. Waits as long as that takes; the
    /// caller may drop the future.
    pub async fn settled(&self, uid: &PodUid) -> Arc<PodStatus> {
        loop {
            if let Some(status) = self.try_settled(uid) {
                return status;
            }
            let notify = self
                .shared
                .waiters
                .lock()
                .entry(uid.clone())
                .or_default()
                .clone();
            let woken = notify.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if self.shared.will_be_woken(uid, &notify) {
                woken.await;
            }
        }
    }

    /// Waits until the status of a pod satisfies `condition`. The caller may drop the future.
    pub async fn wait_for(&self, uid: &PodUid, condition: impl Fn(&PodStatus) -> bool) {
        while !condition(&self.latest(uid)) {
            let changed = {
                let mut watchers = self.shared.watchers.lock();
                let notify = watchers.entry(uid.clone()).or_default().clone();
                notify.notified_owned()
            };
            // It may have changed before the watch began.
            if condition(&self.latest(uid)) {
                self.shared.wake_watchers(std::slice::from_ref(uid));
                return;
            }
            changed.await;
        }
    }

    /// Marks an item of a pod as just created or changed: the pod is unsettled until the
    /// item was read again. For a container, `sandbox` is where it lives.
    pub fn touch(&self, owner: &Owner, item: ItemId, sandbox: Option<SandboxId>) {
        let seq = self.next_seq();
        self.shared
            .snapshot
            .lock()
            .touch(owner, &item, sandbox, seq);
        self.shared.inspect.mark(item);
    }

    /// Records a read that the caller made itself, begun at `seq`.
    pub fn observed(&self, owner: &Owner, item: &ItemId, seq: Seq, read: InspectedItem) {
        self.shared.apply(owner, item, seq, read);
    }

    /// A place in the order of reads; take it *before* the read begins.
    pub fn next_seq(&self) -> Seq {
        self.shared.next_seq()
    }

    /// The strings that the statuses share.
    pub fn strings(&self) -> &Strings {
        &self.shared.strings
    }

    /// The order of a pod's addresses.
    pub fn address_order(&self) -> AddressOrder {
        self.shared.address_order
    }

    /// All pods the runtime has something of.
    pub fn pods(&self) -> Vec<Arc<PodStatus>> {
        self.shared.snapshot.lock().pods()
    }

    /// Numbers of entries, by what they are.
    pub fn sizes(&self) -> [(&'static str, usize); 4] {
        let (pods, items, tombstones) = self.shared.snapshot.lock().sizes();
        let (waiters, watchers) = (&self.shared.waiters, &self.shared.watchers);
        let waiting = waiters.lock().len() + watchers.lock().len();
        [
            ("pod_statuses", pods),
            ("runtime_items", items),
            ("removed_items", tombstones),
            ("status_waiters", waiting),
        ]
    }

    /// Waits for pods whose status changed and takes them. For the sync loop only.
    pub async fn changed(&self) -> HashSet<PodUid> {
        self.shared.changed.take().await
    }

    /// Waits until a complete list has been applied.
    pub async fn complete(&self) -> Complete {
        loop {
            let listed = self.shared.listed.notified();
            tokio::pin!(listed);
            listed.as_mut().enable();
            if let Some(proof) = self.is_complete() {
                return proof;
            }
            listed.await;
        }
    }

    /// Proof of a complete list, if there was one.
    pub fn is_complete(&self) -> Option<Complete> {
        self.shared
            .snapshot
            .lock()
            .was_listed()
            .then_some(Complete(()))
    }
}

impl PodCacheWriter {
    /// A reading end.
    pub fn reader(&self) -> PodCache {
        PodCache {
            shared: self.shared.clone(),
        }
    }

    /// The strings that the statuses share.
    pub fn strings(&self) -> &Strings {
        &self.shared.strings
    }

    /// The order of a pod's addresses.
    pub fn address_order(&self) -> AddressOrder {
        self.shared.address_order
    }

    /// Items to inspect; waits for some.
    pub async fn to_inspect(&self) -> HashSet<ItemId> {
        self.shared.inspect.take().await
    }

    /// Queues an item for inspection.
    pub fn inspect(&self, item: ItemId) {
        self.shared.inspect.mark(item);
    }

    /// The pod an item belongs to, and the sandbox of a container.
    pub fn locate(&self, item: &ItemId) -> Option<(Owner, Option<SandboxId>)> {
        let snapshot = self.shared.snapshot.lock();
        Some((snapshot.owner(item)?, snapshot.sandbox_of(item)))
    }

    /// Whether a read of the item that began after `seq` has been applied.
    pub fn was_read_since(&self, item: &ItemId, seq: Seq) -> bool {
        self.shared.snapshot.lock().was_read_since(item, seq)
    }

    /// Whether the item was read as gone since the last list that changed anything. Ids are never used
    /// again.
    pub fn is_gone(&self, item: &ItemId) -> bool {
        self.shared.snapshot.lock().is_gone(item)
    }

    /// A place in the order of reads; take it *before* the read begins.
    pub fn next_seq(&self) -> Seq {
        self.shared.next_seq()
    }

    /// Applies one read, begun at `seq`.
    pub fn apply(&self, owner: &Owner, item: &ItemId, seq: Seq, read: InspectedItem) {
        self.shared.apply(owner, item, seq, read);
    }

    /// Applies a complete list, begun at `seq`: new and changed items are queued for inspection,
    /// items that are gone are dropped.
    pub fn apply_list(
        &self,
        seq: Seq,
        sandboxes: Vec<ListEntry<SandboxStatus>>,
        containers: Vec<ListEntry<ContainerStatus>>,
    ) {
        let outcome = self
            .shared
            .snapshot
            .lock()
            .apply_list(seq, sandboxes, containers);
        self.shared.inspect.mark_all(outcome.inspect);
        self.shared.wake(&outcome.settled);
        self.shared.mark_changed(outcome.changed);
        self.shared.listed.notify_waiters();
    }

    /// A list equal to the last one was read at `seq`. Returns false when something was read since: then
    /// the list has to be applied in full.
    pub fn confirm_list(&self, seq: Seq) -> bool {
        self.shared.snapshot.lock().confirm_list(seq)
    }
}

impl PodCacheInner {
    fn next_seq(&self) -> Seq {
        Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn apply(&self, owner: &Owner, item: &ItemId, seq: Seq, read: InspectedItem) {
        let applied = self.snapshot.lock().apply(owner, item, seq, read);
        if applied.settled {
            self.wake(std::slice::from_ref(&owner.uid));
        }
        if applied.changed {
            self.mark_changed(vec![owner.uid.clone()]);
        }
    }

    fn mark_changed(&self, uids: Vec<PodUid>) {
        self.wake_watchers(&uids);
        self.changed.mark_all(uids);
    }

    fn wake_watchers(&self, uids: &[PodUid]) {
        let mut watchers = self.watchers.lock();
        if !watchers.is_empty() {
            for notify in uids.iter().filter_map(|uid| watchers.remove(uid)) {
                notify.notify_waiters();
            }
        }
    }

    /// Whether a waiter on `notify` may sleep: the pod is unsettled, and the read that settles it finds this
    /// `notify`. Otherwise all waiters on it have to check again.
    fn will_be_woken(&self, uid: &PodUid, notify: &Arc<Notify>) -> bool {
        let mut waiters = self.waiters.lock();
        let listed = waiters
            .get(uid)
            .is_some_and(|known| Arc::ptr_eq(known, notify));
        if listed && self.snapshot.lock().settled(uid).is_none() {
            return true;
        }
        if listed && let Some(notify) = waiters.remove(uid) {
            notify.notify_waiters();
        }
        false
    }

    fn wake(&self, settled: &[PodUid]) {
        let mut waiters = self.waiters.lock();
        for uid in settled {
            if let Some(notify) = waiters.remove(uid) {
                notify.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests;
