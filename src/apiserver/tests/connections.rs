//! What the connections do: watches spread over several, and dead ones are noticed.

use super::scripted::{Pushed, Reply};
use super::watches::{pod, watched};
use super::*;
use crate::base::clock;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::timeout;

#[tokio::test]
async fn more_watches_than_one_connection_holds_get_a_second() {
    let open: Arc<Mutex<Vec<Pushed>>> = Arc::default();
    let kept = open.clone();
    let server = Scripted::serve(move |request| {
        if request.parameter("watch").is_none() {
            return Reply::Json(200, json!({"metadata": {"resourceVersion": "1"}, "items": []}));
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
    first.line(&json!({"type": "ADDED", "object": pod("a", "5")})).await;
    assert!(matches!(watch.next().await, WatchEvent::Applied(_)));
    server.freeze();
    // Nothing comes from the network any more, so the clock runs on to the next timer.
    tokio::time::pause();
    let started_at = clock::instant();
    let event = watch.next().await;
    assert!(
        matches!(&event, WatchEvent::Failed(error) if matches!(**error, ApiError::Unreachable(_))),
        "{event:?}"
    );
    let took = clock::since(started_at);
    assert!(took <= Duration::from_secs(26), "{took:?}");
    tokio::time::resume();
    let resumed = tokio::spawn(async move {
        let second = server.next_watch().await;
        second.line(&json!({"type": "DELETED", "object": pod("a", "6")})).await;
        assert_eq!(server.versions(), ["1", "5"]);
        assert_eq!(server.connections(), 2);
        server
    });
    let event = watch.next().await;
    assert!(matches!(event, WatchEvent::Deleted(_)), "{event:?}");
    resumed.await.unwrap();
    drop(api);
}

#[tokio::test]
async fn the_lease_does_not_wait_for_a_stream_however_many_requests_hang() {
    let server = Scripted::serve(|request| match request.parameter("watch") {
        None if request.path.ends_with("/n1") => Reply::Json(200, json!({"metadata": {}})),
        _ => Reply::Silence,
    })
    .await;
    let api = client(&server).await;
    api.get::<Node>(ResourcePath::cluster("n1")).await.unwrap();
    // More than the server allows on one connection.
    let hanging: Vec<_> = (0..130)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(
                async move { api.get::<Node>(ResourcePath::cluster("hangs")).await.map(drop) },
            )
        })
        .collect();
    let full = async {
        while server.received().len() < 101 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), full).await.unwrap();
    let urgent = api.unlimited();
    let got = timeout(Duration::from_secs(5), urgent.get::<Node>(ResourcePath::cluster("n1")));
    got.await.expect("it does not wait").unwrap();
    assert_eq!(server.connections(), 2);
    for task in hanging {
        task.abort();
    }
}

#[tokio::test]
async fn no_more_than_sixteen_pages_of_lists_are_requested_at_once() {
    let server = Scripted::serve(|request| match request.parameter("watch") {
        None if request.path.ends_with("/n1") => Reply::Json(200, json!({"metadata": {}})),
        None if request.path.ends_with("s") && !request.path.ends_with("/secrets") => {
            Reply::Json(200, json!({"metadata": {"resourceVersion": "1"}, "items": []}))
        }
        _ => Reply::Silence,
    })
    .await;
    let api = client(&server).await;
    let lists: Vec<_> = (0..40)
        .map(|_| {
            let mut watch = api.list_watch::<Secret>(Selection::default());
            tokio::spawn(async move { drop(watch.next().await) })
        })
        .collect();
    let started_at = async {
        while server.received().len() < 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), started_at).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.received().len(), 16);
    // Other requests and the lists of pods and nodes do not wait for them, and one that is given up makes room.
    api.get::<Node>(ResourcePath::cluster("n1")).await.unwrap();
    let mut pods = api.list_watch::<Pod>(Selection::default());
    let mut nodes = api.unlimited().list_watch::<Node>(Selection::default());
    let listed = timeout(Duration::from_secs(5), async { (pods.next().await, nodes.next().await) });
    let (pods, nodes) = listed.await.expect("they do not wait");
    assert!(matches!(pods, WatchEvent::Listed(_)), "{pods:?}");
    assert!(matches!(nodes, WatchEvent::Listed(_)), "{nodes:?}");
    for task in lists.iter().take(20) {
        task.abort();
    }
    let next = async {
        while server.received().len() <= 19 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), next).await.unwrap();
    for task in lists {
        task.abort();
    }
}

/// Whether the kernel checks idle connections to a port: their timer in `/proc/net/tcp` is that of keepalive.
fn has_keepalive(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!("0100007F:{port:04X}");
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.get(2) == Some(&remote.as_str())
            && fields.get(5).is_some_and(|timer| timer.starts_with("02:"))
    })
}

#[tokio::test]
async fn the_kernel_checks_connections_for_servers_without_pings() {
    let (server, _api, _watch) = watched().await;
    let waiting = async {
        while !has_keepalive(server.port) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = timeout(Duration::from_secs(10), waiting).await;
    assert!(found.is_ok(), "no keepalive");
}
