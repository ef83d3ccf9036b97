//! What the connections do: watches spread over several, and dead ones are noticed.

use super::{
    scripted::{Pushed, Reply},
    watches::{pod, watched},
    *,
};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn more_watches_than_one_connection_holds_get_a_second() {
    let open: Arc<Mutex<Vec<Pushed>>> = Arc::default();
    let kept = open.clone();
    let server = Scripted::serve(move |request| {
        if request.parameter("watch").is_none() {
            return Reply::Json(
                200,
                json!({"metadata": {"resourceVersion": "1"}, "items": []}),
            );
        }
        let (pushed, reply) = Reply::stream();
        kept.lock().push(pushed);
        reply
    })
    .await;
    let api = client(&server).await;
    let mut watches = Vec::new();
    for count in 1..=65 {
        let mut watch = api.list_watch::<Pod>(Selection::default());
        assert!(matches!(watch.next().await, WatchEvent::Listed(_)));
        let opening = async {
            while open.lock().len() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            event = watch.next() => panic!("{event:?}"),
            () = opening => {}
        }
        watches.push(watch);
        assert_eq!(server.connections(), if count <= 64 { 1 } else { 2 });
    }
    // A place that was given back is used again.
    watches.truncate(10);
    let mut watch = api.list_watch::<Pod>(Selection::default());
    assert!(matches!(watch.next().await, WatchEvent::Listed(_)));
    let event = timeout(Duration::from_millis(100), watch.next()).await;
    assert!(event.is_err());
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_connection_that_is_silently_dead_is_noticed_and_the_watch_resumes() {
    let (server, api, mut watch) = watched().await;
    let first = server.next_watch().await;
    first
        .line(&json!({"type": "ADDED", "object": pod("a", "5")}))
        .await;
    assert!(matches!(watch.next().await, WatchEvent::Applied(_)));
    server.freeze();
    // Nothing comes from the network any more, so the clock runs on to the next timer.
    tokio::time::pause();
    let begun = Instant::now();
    let event = watch.next().await;
    assert!(
        matches!(&event, WatchEvent::Failed(error) if matches!(**error, ApiError::Unreachable(_))),
        "{event:?}"
    );
    let took = begun.elapsed();
    assert!(took <= Duration::from_secs(26), "{took:?}");
    tokio::time::resume();
    let resumed = tokio::spawn(async move {
        let second = server.next_watch().await;
        second
            .line(&json!({"type": "DELETED", "object": pod("a", "6")}))
            .await;
        assert_eq!(server.versions(), ["1", "5"]);
        assert_eq!(server.connections(), 2);
        server
    });
    let event = watch.next().await;
    assert!(matches!(event, WatchEvent::Deleted(_)), "{event:?}");
    resumed.await.unwrap();
    drop(api);
}
