//! Items whose status has to be read, with the error of the last attempt.

use super::{InspectedItem, ItemId, PodCache, PodCacheWriter};
use crate::model::{PodStatus, PodUid, Seq};
use std::fmt;
use std::sync::Arc;

/// An item that has to be read before its pod is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleItem {
    /// The item.
    pub item: ItemId,
    /// The error of the last read; `None` before the first failure.
    pub failure: Option<Arc<str>>,
}

impl fmt::Display for StaleItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.failure.as_deref().unwrap_or("not read yet");
        let (kind, id) = match &self.item {
            ItemId::Sandbox(id) => ("sandbox", id.as_str()),
            ItemId::Container(id) => ("container", id.as_str()),
        };
        write!(f, "{kind} {}: {failure}", id.get(..13).unwrap_or(id))
    }
}

impl PodCache {
    /// The items that have to be read before the pod is settled.
    pub fn stale(&self, uid: &PodUid) -> Vec<StaleItem> {
        self.shared.state.lock().stale(uid)
    }

    /// Whether a pod cannot be read: a read of every item that has to be read has failed. A read that hangs fails after
    /// its timeout.
    pub fn is_unreadable(&self, uid: &PodUid) -> bool {
        self.shared.state.lock().is_unreadable(uid)
    }

    /// Waits until the pod is settled and returns its status, or `None` once a read of every stale item has failed. The
    /// caller may drop the future.
    pub async fn settled_or_failed(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        let check = || {
            // Under one lock: a read in between would make a settled pod one of which every read failed.
            let state = self.shared.state.lock();
            let settled = state.settled(uid);
            (settled.is_some() || state.is_unreadable(uid)).then_some(settled)
        };
        self.shared.settled_waiters.until(uid, check).await
    }
}

impl PodCacheWriter {
    /// Records that a read of an item, begun at `seq`, failed. `listed` is the item in a list.
    pub fn record_failed_read(
        &self,
        item: &ItemId,
        seq: Seq,
        failure: Arc<str>,
        listed: Option<InspectedItem>,
    ) {
        let mut state = self.shared.state.lock();
        let Some(pod_ref) = state.pod_ref(item) else {
            return;
        };
        let effects = state.record_failed_read(item, seq, failure, listed);
        drop(state);
        // Also those that wait for the failure.
        self.shared.settled_waiters.wake([&pod_ref.uid]);
        self.shared.publish(&pod_ref.uid, effects);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ListEntry, PodRef, pod_cache};
    use super::*;
    use crate::model::{ContainerState, ContainerStatus, PodSource, SandboxStatus};

    fn instance(id: &str, restart_count: u32, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: id.into(),
            name: "c".into(),
            restart_count,
            state,
            ..ContainerStatus::default()
        }
    }

    fn listed(instances: &[&ContainerStatus]) -> (PodCacheWriter, PodCache, PodRef) {
        let pod_ref = PodRef { uid: "u".into(), name: "p".into(), namespace: "ns".into() };
        let (writer, cache) = pod_cache();
        let listed = instances
            .iter()
            .map(|&status| ListEntry { pod_ref: pod_ref.clone(), status: status.clone() });
        writer.apply_list(writer.next_seq(), Vec::new(), listed.collect());
        (writer, cache, pod_ref)
    }

    fn item(id: &str) -> ItemId {
        ItemId::Container(id.into())
    }

    #[tokio::test]
    async fn an_item_that_was_never_read_is_named_with_its_last_failure() {
        let running = instance("0123456789abcdef", 0, ContainerState::Running);
        let (writer, cache, pod_ref) = listed(&[&running]);
        let item = item(running.id.as_str());
        let stale = |cache: &PodCache| {
            cache.stale(&pod_ref.uid).iter().map(StaleItem::to_string).collect::<Vec<_>>()
        };
        assert_eq!(stale(&cache), ["container 0123456789abc: not read yet"]);
        let seq = writer.next_seq();
        assert!(!cache.is_unreadable(&pod_ref.uid), "it may still be read");
        let in_list = Some(InspectedItem::Container(running.clone()));
        writer.record_failed_read(&item, seq, "broken".into(), in_list);
        assert!(cache.is_unreadable(&pod_ref.uid));
        assert_eq!(stale(&cache), ["container 0123456789abc: broken"]);
        assert_eq!(cache.settled_or_failed(&pod_ref.uid).await, None);
        let seq = writer.next_seq();
        writer.apply(&pod_ref, &item, seq, InspectedItem::Container(running));
        assert!(cache.stale(&pod_ref.uid).is_empty());
        assert!(!cache.is_unreadable(&pod_ref.uid));
        assert!(cache.settled_or_failed(&pod_ref.uid).await.is_some());
        assert_eq!(cache.sizes()[3].1, 0, "nothing waits");
    }

    #[tokio::test]
    async fn an_exited_instance_that_cannot_be_read_counts_as_read_once_it_is_superseded() {
        let dead = |id, count| instance(id, count, ContainerState::Exited);
        for (old, new, settles) in [
            (dead("old", 0), instance("new", 1, ContainerState::Running), true),
            (dead("old", 0), dead("new", 1), true),
            (dead("old", 1), instance("new", 0, ContainerState::Running), false),
            (
                instance("old", 0, ContainerState::Unknown),
                instance("new", 1, ContainerState::Running),
                false,
            ),
        ] {
            let (writer, cache, pod_ref) = listed(&[&old, &new]);
            let seq = writer.next_seq();
            writer.apply(&pod_ref, &item("new"), seq, InspectedItem::Container(new.clone()));
            let seq = writer.next_seq();
            let in_list = Some(InspectedItem::Container(old.clone()));
            writer.record_failed_read(&item("old"), seq, "broken".into(), in_list);
            let settled = cache.try_settled(&pod_ref.uid);
            assert_eq!(settled.is_some(), settles, "{old:?} {new:?}");
            if let Some(status) = settled {
                let old = status.container(&"old".into()).unwrap();
                assert_eq!((old.exit_code, &*old.reason), (137, "ContainerStatusUnknown"));
            }
        }
    }

    #[tokio::test]
    async fn a_sandbox_that_cannot_be_read_tells_the_source_of_its_pod() {
        let (writer, cache) = pod_cache();
        let pod_ref = PodRef { uid: "u".into(), name: "p".into(), namespace: "ns".into() };
        let listed = SandboxStatus {
            id: "s".into(),
            ready: true,
            source: Some(PodSource::File),
            ..SandboxStatus::default()
        };
        let entry = ListEntry { pod_ref: pod_ref.clone(), status: listed.clone() };
        writer.apply_list(writer.next_seq(), vec![entry], Vec::new());
        let item = ItemId::Sandbox(listed.id.clone());
        let in_list = Some(InspectedItem::Sandbox(listed));
        writer.record_failed_read(&item, writer.next_seq(), "broken".into(), in_list);
        assert_eq!(cache.latest(&pod_ref.uid).source(), PodSource::File);
        assert!(cache.try_settled(&pod_ref.uid).is_none(), "it was not read");
        assert!(cache.is_unreadable(&pod_ref.uid));
    }
}
