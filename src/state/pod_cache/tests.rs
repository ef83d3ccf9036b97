use super::*;
use crate::model::ContainerState;
use futures::FutureExt as _;
use std::time::Duration;

fn pod_ref(uid: &str) -> PodRef {
    PodRef { uid: uid.into(), name: "p".into(), namespace: "ns".into() }
}

fn container(id: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        id: id.into(),
        name: "c".into(),
        sandbox: "s".into(),
        state,
        ..ContainerStatus::default()
    }
}

fn item(id: &str) -> ItemId {
    ItemId::Container(id.into())
}

fn listed(uid: &str, id: &str, state: ContainerState) -> ListEntry<ContainerStatus> {
    ListEntry { pod_ref: pod_ref(uid), status: container(id, state) }
}

fn is_settled(cache: &PodCache, uid: &str) -> bool {
    cache.shared.state.lock().settled(&uid.into()).is_some()
}

#[tokio::test]
async fn a_touched_item_unsettles_its_pod_until_it_was_read_again() {
    let (writer, cache) = pod_cache();
    cache.touch(&pod_ref("u"), item("a"), Some("s".into()));
    assert!(!is_settled(&cache, "u"));
    assert_eq!(writer.to_inspect().await, HashSet::from([item("a")]));
    let seq = writer.next_seq();
    writer.apply(
        &pod_ref("u"),
        &item("a"),
        seq,
        InspectedItem::Container(container("a", ContainerState::Running)),
    );
    let status = cache.settled(&"u".into()).await;
    assert_eq!(status.newest("c").unwrap().state, ContainerState::Running);
    assert_eq!(cache.changed().await, HashSet::from([PodUid::from("u")]));
}

#[tokio::test]
async fn a_pod_that_settles_with_nothing_changed_is_published_once_and_not_as_changed() {
    let (writer, cache) = pod_cache();
    let read = |id: &str| {
        let read = InspectedItem::Container(container(id, ContainerState::Running));
        writer.apply(&pod_ref("u"), &item(id), writer.next_seq(), read);
    };
    let settled = || cache.settled_unchanged().now_or_never();
    read("a");
    read("b");
    assert_eq!(cache.changed().await.len(), 1);
    assert_eq!(settled(), None, "it never was unsettled");
    for id in ["a", "b"] {
        cache.touch(&pod_ref("u"), item(id), Some("s".into()));
    }
    read("a");
    assert_eq!(settled(), None, "one item has to be read still");
    read("b");
    assert_eq!(settled(), Some(HashSet::from([PodUid::from("u")])));
    assert_eq!(settled(), None);
    assert_eq!(cache.changed().now_or_never(), None);
}

#[tokio::test]
async fn a_read_that_began_before_the_touch_does_not_settle() {
    let (writer, cache) = pod_cache();
    let early = writer.next_seq();
    cache.touch(&pod_ref("u"), item("a"), None);
    writer.apply(
        &pod_ref("u"),
        &item("a"),
        early,
        InspectedItem::Container(container("a", ContainerState::Created)),
    );
    assert!(!is_settled(&cache, "u"));
}

#[tokio::test]
async fn an_older_read_never_overwrites_a_newer_one() {
    let (writer, cache) = pod_cache();
    let (old, new) = (writer.next_seq(), writer.next_seq());
    writer.apply(
        &pod_ref("u"),
        &item("a"),
        new,
        InspectedItem::Container(container("a", ContainerState::Exited)),
    );
    writer.apply(
        &pod_ref("u"),
        &item("a"),
        old,
        InspectedItem::Container(container("a", ContainerState::Running)),
    );
    assert_eq!(cache.latest(&"u".into()).newest("c").unwrap().state, ContainerState::Exited);
}

#[tokio::test]
async fn a_cancelled_start_that_lists_show_as_an_exit_is_not_read_again() {
    for start_cancelled in [true, false] {
        let (writer, cache) = pod_cache();
        let status = ContainerStatus { start_cancelled, ..container("a", ContainerState::Created) };
        let seq = writer.next_seq();
        let read = InspectedItem::Container(status);
        writer.apply(&pod_ref("u"), &item("a"), seq, read);
        let exited = vec![listed("u", "a", ContainerState::Exited)];
        writer.apply_list(writer.next_seq(), vec![], exited);
        assert_eq!(cache.stale(&"u".into()).is_empty(), start_cancelled);
    }
}

#[tokio::test]
async fn a_list_does_not_drop_what_was_created_after_it_began() {
    let (writer, cache) = pod_cache();
    let list = writer.next_seq();
    cache.touch(&pod_ref("u"), item("a"), None);
    writer.apply_list(list, vec![], vec![]);
    let seq = writer.next_seq();
    writer.apply(
        &pod_ref("u"),
        &item("a"),
        seq,
        InspectedItem::Container(container("a", ContainerState::Running)),
    );
    assert_eq!(cache.latest(&"u".into()).containers.len(), 1);
}

#[tokio::test]
async fn a_list_drops_absent_items_and_does_not_restore_removed_ones() {
    let (writer, cache) = pod_cache();
    let seq = writer.next_seq();
    writer.apply(
        &pod_ref("u"),
        &item("a"),
        seq,
        InspectedItem::Container(container("a", ContainerState::Exited)),
    );
    let before_removal = writer.next_seq();
    let removal = writer.next_seq();
    writer.apply(&pod_ref("u"), &item("a"), removal, InspectedItem::Gone);
    writer.apply_list(before_removal, vec![], vec![listed("u", "a", ContainerState::Exited)]);
    assert!(cache.latest(&"u".into()).is_empty());
    let seq = writer.next_seq();
    writer.apply(
        &pod_ref("v"),
        &item("b"),
        seq,
        InspectedItem::Container(container("b", ContainerState::Exited)),
    );
    let list = writer.next_seq();
    writer.apply_list(list, vec![], vec![]);
    assert!(cache.pods().is_empty());
    assert!(cache.changed().await.contains("v"));
}

#[tokio::test]
async fn new_and_changed_entries_of_a_list_are_inspected_others_are_not() {
    let (writer, _cache) = pod_cache();
    let seq = writer.next_seq();
    for id in ["same", "died"] {
        let read = InspectedItem::Container(container(id, ContainerState::Running));
        writer.apply(&pod_ref("u"), &item(id), seq, read);
    }
    let list = writer.next_seq();
    writer.apply_list(
        list,
        vec![],
        vec![
            listed("u", "same", ContainerState::Running),
            listed("u", "died", ContainerState::Exited),
            listed("u", "new", ContainerState::Running),
        ],
    );
    assert_eq!(writer.to_inspect().await, HashSet::from([item("died"), item("new")]));
}

#[tokio::test]
async fn an_equal_list_is_enough_only_when_nothing_was_read_since() {
    let (writer, cache) = pod_cache();
    assert!(!writer.confirm_list(writer.next_seq()));
    writer.apply_list(writer.next_seq(), vec![], vec![]);
    assert!(writer.confirm_list(writer.next_seq()));
    cache.touch(&pod_ref("u"), item("a"), None);
    assert!(!writer.confirm_list(writer.next_seq()));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_one_pod_does_not_wait_for_another() {
    let (writer, cache) = pod_cache();
    cache.touch(&pod_ref("stuck"), item("x"), None);
    cache.touch(&pod_ref("u"), item("a"), None);
    let waiting = tokio::spawn({
        let cache = cache.clone();
        async move { cache.settled(&"u".into()).await }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!waiting.is_finished());
    writer.apply(&pod_ref("u"), &item("a"), writer.next_seq(), InspectedItem::Gone);
    assert!(waiting.await.unwrap().is_empty());
    // A pod that was deferred until its state is known has no waiter.
    assert!(cache.changed().await.contains("u"));
    let stuck = PodUid::from("stuck");
    assert!(tokio::time::timeout(Duration::from_secs(60), cache.settled(&stuck)).await.is_err());
}

#[tokio::test]
async fn runtime_listed_is_set_by_the_first_complete_list() {
    let (writer, cache) = pod_cache();
    assert!(cache.runtime_listed().is_none());
    let waiting = tokio::spawn({
        let cache = cache.clone();
        async move { cache.wait_runtime_listed().await }
    });
    tokio::task::yield_now().await;
    writer.apply_list(writer.next_seq(), vec![], vec![]);
    waiting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_waiter_misses_a_pod_that_settles_and_is_touched_again_at_once() {
    let (writer, cache) = pod_cache();
    let (pod_ref, item) = (pod_ref("u"), item("c"));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (cache, stop) = (cache.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    cache.settled(&"u".into()).await;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..20_000 {
        cache.touch(&pod_ref, item.clone(), None);
        let read = InspectedItem::Container(container("c", ContainerState::Running));
        writer.apply(&pod_ref, &item, writer.next_seq(), read);
    }
    stop.store(true, Ordering::Relaxed);
    for waiter in waiters {
        tokio::time::timeout(std::time::Duration::from_secs(60), waiter)
            .await
            .expect("a waiter was never woken")
            .unwrap();
    }
    assert_eq!(cache.shared.settled_waiters.len(), 0, "waiters stay behind");
}

#[tokio::test]
async fn a_waiter_for_a_status_is_woken_by_it_and_leaves_no_entry() {
    let (writer, cache) = pod_cache();
    let exited = |status: &PodStatus| {
        let container = status.newest("c");
        container.is_some_and(|c| c.state == ContainerState::Exited)
    };
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.wait_for(&"u".into(), exited).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let runtime_status = |state| listed("u", "a", state);
    for state in [ContainerState::Created, ContainerState::Running] {
        let seq = writer.next_seq();
        let read = InspectedItem::Container(runtime_status(state).status);
        writer.apply(&pod_ref("u"), &item("a"), seq, read);
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    }
    let seq = writer.next_seq();
    let read = InspectedItem::Container(runtime_status(ContainerState::Exited).status);
    writer.apply(&pod_ref("u"), &item("a"), seq, read);
    for waiting in waiting {
        waiting.await.unwrap();
    }
    cache.wait_for(&"u".into(), exited).await;
    assert_eq!(cache.shared.change_waiters.len(), 0);
}

#[tokio::test]
async fn a_waiter_for_the_end_of_a_pod_is_woken_by_the_list_without_it() {
    let (writer, cache) = pod_cache();
    let seq = writer.next_seq();
    let status = container("a", ContainerState::Running);
    writer.apply(&pod_ref("u"), &item("a"), seq, InspectedItem::Container(status));
    let gone = tokio::spawn({
        let cache = cache.clone();
        async move { cache.wait_for(&"u".into(), PodStatus::is_empty).await }
    });
    tokio::task::yield_now().await;
    writer.apply_list(writer.next_seq(), vec![], vec![]);
    gone.await.unwrap();
}

#[tokio::test]
async fn items_that_could_not_be_read_are_inspected_when_the_runtime_responds_again() {
    let (writer, cache) = pod_cache();
    cache.touch(&pod_ref("u"), item("a"), Some("s".into()));
    cache.touch(&pod_ref("u"), item("b"), Some("s".into()));
    assert_eq!(writer.to_inspect().await.len(), 2);
    let seq = writer.next_seq();
    writer.record_failed_read(&item("a"), seq, "timed out".into(), None);
    writer.inspect_failed_items();
    let items = writer.to_inspect().now_or_never();
    assert_eq!(items, Some(HashSet::from([item("a")])));
}
