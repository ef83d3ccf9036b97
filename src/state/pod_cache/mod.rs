//! The runtime status of every pod.
//!
//! * Owns: one [`PodStatus`] per pod, when each of its items (sandboxes and containers) was last read, and which items
//!   have to be read again.
//! * Woken by: reads of the PLEG, and workers that changed an item (`touch`).
//! * Publishes: immutable runtime statuses; the set of pods whose status changed, and that of pods that settled with
//!   the status that they had; items to inspect.
//! * Must never apply a failed list, which is not an empty list. A failed read of one item changes nothing, except that a
//!   superseded exited container counts as read, with an unknown exit code.
//! * Upstream: `pkg/kubelet/container/cache.go`. There, a worker waits for a status that is newer than a wall-clock
//!   time (`GetNewerThan`). Here every read takes a number of one sequence *before* it begins. A worker that changed an
//!   item *touches* it, which makes it *stale*, as does a list that shows it new or changed; until a read with a larger
//!   number is applied, the pod is *unsettled*, and the next sync waits for the *settled* status.

mod creations;
mod state;
mod stale;
mod waiters;

use crate::base::{DirtySet, StringInterner};
use crate::model::{
    AddressOrder, ContainerId, ContainerStatus, Pod, PodExt, PodLogName, PodStatus, PodUid,
    SandboxId, SandboxStatus, Seq,
};
use parking_lot::Mutex;
use state::{PodCacheState, ReadEffects};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;
use waiters::PodWaiters;

pub use creations::PodCreationGuard;
pub use stale::StaleItem;
pub use state::ListEntry;

/// A sandbox or a container of the runtime.
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

/// The pod of an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// UID.
    pub uid: PodUid,
    /// Name.
    pub name: Arc<str>,
    /// Namespace.
    pub namespace: Arc<str>,
}

impl PodRef {
    /// The reference to a pod object.
    pub fn of(pod: &Pod) -> Self {
        Self { uid: pod.uid(), name: pod.name().into(), namespace: pod.namespace().into() }
    }

    /// The reference to the pod of a runtime status.
    pub fn of_status(status: &PodStatus) -> Self {
        Self {
            uid: status.uid.clone(),
            name: status.name.clone(),
            namespace: status.namespace.clone(),
        }
    }

    /// `<namespace>/<name>`, for the log.
    pub fn log_name(&self) -> PodLogName<'_> {
        PodLogName { namespace: &self.namespace, name: &self.name }
    }
}

/// The result of reading one item.
#[derive(Clone, Debug, PartialEq)]
pub enum InspectedItem {
    /// The status of a sandbox.
    Sandbox(SandboxStatus),
    /// The status of a container.
    Container(ContainerStatus),
    /// The runtime has no such item, or it is not a kubelet's.
    Gone,
}

/// Proof that a complete list of the runtime has been applied at least once in this process. Clean-up
/// takes it, so that it never acts on an empty cache.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeListed(());

#[derive(Debug, Default)]
struct PodCacheInner {
    state: Mutex<PodCacheState>,
    settled_waiters: PodWaiters,
    change_waiters: PodWaiters,
    seq: AtomicU64,
    changed: DirtySet<PodUid>,
    settled_unchanged: DirtySet<PodUid>,
    inspect: DirtySet<ItemId>,
    listed: Notify,
    creations: Arc<creations::Creations>,
    strings: StringInterner,
    address_order: AddressOrder,
}

/// The reading end, with which workers also report items that they changed or read themselves; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodCache {
    shared: Arc<PodCacheInner>,
}

/// The writing end, for the PLEG only.
#[derive(Debug)]
pub struct PodCacheWriter {
    shared: Arc<PodCacheInner>,
}

/// Builds an empty cache.
pub fn pod_cache() -> (PodCacheWriter, PodCache) {
    pod_cache_with(AddressOrder::IPV4_FIRST)
}

/// Like [`pod_cache`], with an order for the addresses of pods.
pub fn pod_cache_with(address_order: AddressOrder) -> (PodCacheWriter, PodCache) {
    let shared = Arc::new(PodCacheInner { address_order, ..PodCacheInner::default() });
    (PodCacheWriter { shared: shared.clone() }, PodCache { shared })
}

impl PodCache {
    /// The latest status of a pod, settled or not; empty for a pod the runtime has nothing of.
    pub fn latest(&self, uid: &PodUid) -> Arc<PodStatus> {
        self.shared.state.lock().status(uid)
    }

    /// The status of a pod, if it is settled.
    pub fn try_settled(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.shared.state.lock().settled(uid)
    }

    /// Waits until every stale item of a pod was read again, whether a worker touched it or a list showed it changed,
    /// and returns the status of the pod. No timeout; the caller may drop the future.
    pub async fn settled(&self, uid: &PodUid) -> Arc<PodStatus> {
        let waiters = &self.shared.settled_waiters;
        waiters.until(uid, || self.try_settled(uid)).await
    }

    /// Waits until the status of a pod satisfies `condition`. The caller may drop the future.
    pub async fn wait_for(&self, uid: &PodUid, condition: impl Fn(&PodStatus) -> bool) {
        let check = move || condition(&self.latest(uid)).then_some(());
        self.shared.change_waiters.until(uid, check).await;
    }

    /// Reports an item as created or changed: the pod is unsettled until the item was read again. `sandbox` is that of
    /// a container.
    pub fn touch(&self, pod_ref: &PodRef, item: ItemId, sandbox: Option<SandboxId>) {
        let seq = self.next_seq();
        self.shared.state.lock().touch(pod_ref, &item, sandbox, seq);
        self.shared.inspect.mark(item);
    }

    /// Applies a read that the caller made; `seq` is the number it took before the read began.
    pub fn apply_read(&self, pod_ref: &PodRef, item: &ItemId, seq: Seq, read: InspectedItem) {
        self.shared.apply(pod_ref, item, seq, read);
    }

    /// Applies that the caller has removed an item. The number is taken after the removal, so that no earlier read adds
    /// the item again.
    pub fn apply_removal(&self, pod_ref: &PodRef, item: &ItemId) {
        self.apply_read(pod_ref, item, self.next_seq(), InspectedItem::Gone);
    }

    /// Returns the next number in the order of reads; take it *before* the read begins.
    pub fn next_seq(&self) -> Seq {
        self.shared.next_seq()
    }

    /// The interned strings that statuses share, to save memory.
    pub fn strings(&self) -> &StringInterner {
        &self.shared.strings
    }

    /// The order of IPv4 and IPv6 among a pod's addresses.
    pub fn address_order(&self) -> AddressOrder {
        self.shared.address_order
    }

    /// All pods of which the runtime has a sandbox or container.
    pub fn pods(&self) -> Vec<Arc<PodStatus>> {
        self.shared.state.lock().pods()
    }

    /// Whether a container was not read yet, and reading it has not failed.
    pub fn has_unread_containers(&self) -> bool {
        self.shared.state.lock().has_unread_containers()
    }

    /// Numbers of entries by kind, for metrics.
    pub fn sizes(&self) -> [(&'static str, usize); 4] {
        let (pods, items, tombstones) = self.shared.state.lock().sizes();
        let settled_waiters = self.shared.settled_waiters.len();
        let change_waiters = self.shared.change_waiters.len();
        [
            ("pod_statuses", pods),
            ("runtime_items", items),
            ("removed_items", tombstones),
            ("status_waiters", settled_waiters + change_waiters),
        ]
    }

    /// Marks a pod as changed although its runtime status is the same, because a recorded fact that its API status
    /// depends on has changed (the end of a postStart hook).
    pub fn mark_changed(&self, uid: PodUid) {
        self.shared.mark_changed(vec![uid]);
    }

    /// Waits for pods whose status changed and takes them. For the sync loop only.
    pub async fn changed(&self) -> HashSet<PodUid> {
        self.shared.changed.take().await
    }

    /// Waits for pods that settled by a read which changed nothing, and takes them: what was not done because they were
    /// not settled has to be done now. For the sync loop only.
    pub async fn settled_unchanged(&self) -> HashSet<PodUid> {
        self.shared.settled_unchanged.take().await
    }

    /// Waits until a complete list of the runtime was applied.
    pub async fn wait_runtime_listed(&self) -> RuntimeListed {
        loop {
            let listed = self.shared.listed.notified();
            tokio::pin!(listed);
            listed.as_mut().enable();
            if let Some(proof) = self.runtime_listed() {
                return proof;
            }
            listed.await;
        }
    }

    /// The proof that a complete list was applied; `None` before the first.
    pub fn runtime_listed(&self) -> Option<RuntimeListed> {
        self.shared.state.lock().was_listed().then_some(RuntimeListed(()))
    }
}

impl PodCacheWriter {
    /// The interned strings that statuses share, to save memory.
    pub fn strings(&self) -> &StringInterner {
        &self.shared.strings
    }

    /// The order of IPv4 and IPv6 among a pod's addresses.
    pub fn address_order(&self) -> AddressOrder {
        self.shared.address_order
    }

    /// Waits for items to inspect and takes them.
    pub async fn to_inspect(&self) -> HashSet<ItemId> {
        self.shared.inspect.take().await
    }

    /// Queues an item for inspection.
    pub fn inspect(&self, item: ItemId) {
        self.shared.inspect.mark(item);
    }

    /// Queues the items that could not be read, because the runtime responds again.
    pub fn inspect_failed_items(&self) {
        let failed = self.shared.state.lock().failed();
        failed.into_iter().for_each(|item| self.inspect(item));
    }

    /// The pod an item belongs to, and the sandbox of a container.
    pub fn locate(&self, item: &ItemId) -> Option<(PodRef, Option<SandboxId>)> {
        let state = self.shared.state.lock();
        Some((state.pod_ref(item)?, state.sandbox_of(item)))
    }

    /// Whether a read of the item that began after `seq` has been applied.
    pub fn was_read_since(&self, item: &ItemId, seq: Seq) -> bool {
        self.shared.state.lock().was_read_since(item, seq)
    }

    /// Whether the item was read as gone after the last applied list. Ids are never reused.
    pub fn is_gone(&self, item: &ItemId) -> bool {
        self.shared.state.lock().is_gone(item)
    }

    /// Returns the next number in the order of reads; take it *before* the read begins.
    pub fn next_seq(&self) -> Seq {
        self.shared.next_seq()
    }

    /// Applies one read that began at `seq`.
    pub fn apply(&self, pod_ref: &PodRef, item: &ItemId, seq: Seq, read: InspectedItem) {
        self.shared.apply(pod_ref, item, seq, read);
    }

    /// Applies a complete list that began at `seq`: new and changed items are queued for inspection, items missing from
    /// it are removed.
    pub fn apply_list(
        &self,
        seq: Seq,
        sandboxes: Vec<ListEntry<SandboxStatus>>,
        containers: Vec<ListEntry<ContainerStatus>>,
    ) {
        let outcome = self.shared.state.lock().apply_list(seq, sandboxes, containers);
        self.shared.inspect.mark_all(outcome.inspect);
        self.shared.settled_waiters.wake(&outcome.settled);
        self.shared.mark_changed(outcome.changed);
        self.shared.listed.notify_waiters();
    }

    /// Records that a list equal to the last one was read at `seq`. False if an item was read or touched since: then
    /// the list has to be decoded and applied.
    pub fn confirm_list(&self, seq: Seq) -> bool {
        self.shared.state.lock().confirm_list(seq)
    }
}

impl PodCacheInner {
    fn next_seq(&self) -> Seq {
        Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn apply(&self, pod_ref: &PodRef, item: &ItemId, seq: Seq, read: InspectedItem) {
        let effects = self.state.lock().apply(pod_ref, item, seq, read);
        if effects.settled {
            self.settled_waiters.wake([&pod_ref.uid]);
        }
        self.publish(&pod_ref.uid, effects);
    }

    fn publish(&self, uid: &PodUid, effects: ReadEffects) {
        if effects.changed {
            self.mark_changed(vec![uid.clone()]);
        } else if effects.settled {
            self.settled_unchanged.mark(uid.clone());
        }
    }

    fn mark_changed(&self, uids: Vec<PodUid>) {
        self.change_waiters.wake(&uids);
        self.changed.mark_all(uids);
    }
}

#[cfg(test)]
mod tests;
