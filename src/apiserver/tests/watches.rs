//! Lists and watches.

use super::scripted::{Pushed, Received, Reply};
use super::*;
use crate::base::clock;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::VecDeque;
use std::ops::Deref;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};

/// A server that lists what it is set to, and hands the writers of its watches to the test.
pub(super) struct Watched {
    server: Scripted,
    watches: tokio::sync::Mutex<mpsc::Receiver<Pushed>>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl Deref for Watched {
    type Target = Scripted;

    fn deref(&self) -> &Scripted {
        &self.server
    }
}

impl Watched {
    /// Replies in this order, then streams to watches and empty lists of version 1 to lists.
    async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies: VecDeque<_> = replies.into_iter().collect();
        let replies = Arc::new(Mutex::new(replies));
        let (sender, receiver) = mpsc::channel(64);
        let scripted = replies.clone();
        let server = Scripted::serve(move |request| {
            if let Some(reply) = scripted.lock().pop_front() {
                return reply;
            }
            if request.parameter("watch").is_none() {
                return list("1", &[], None);
            }
            let (pushed, reply) = Reply::stream();
            sender.try_send(pushed).expect("room");
            reply
        })
        .await;
        Self { server, watches: tokio::sync::Mutex::new(receiver), replies }
    }

    /// The writer of the next watch that is opened.
    pub(super) async fn next_watch(&self) -> Pushed {
        self.watches.lock().await.recv().await.expect("a watch")
    }

    /// The versions that the watches began at.
    pub(super) fn versions(&self) -> Vec<String> {
        let received = self.received();
        let versions = received.iter().filter(|one| one.parameter("watch").is_some());
        versions.map(|one| one.parameter("resourceVersion").unwrap()).collect()
    }

    fn lists(&self) -> usize {
        let received = self.received();
        let lists = received.iter().filter(|one| one.parameter("watch").is_none());
        lists.count()
    }
}

/// A server, its client, and a watch of pods that has listed and begun.
pub(super) async fn watched() -> (Watched, ApiServer, ListWatch<Pod>) {
    let server = Watched::start([]).await;
    let api = client(&server).await;
    let mut watch = api.list_watch(Selection::default());
    assert!(matches!(watch.next().await, WatchEvent::Listed(items) if items.is_empty()));
    begin(&mut watch).await;
    (server, api, watch)
}

/// Lets the watch send its request.
async fn begin(watch: &mut ListWatch<Pod>) {
    let nothing = timeout(Duration::from_millis(100), watch.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

pub(super) fn pod(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version}})
}

fn list(version: &str, items: &[Value], next: Option<&str>) -> Reply {
    let metadata = json!({"resourceVersion": version, "continue": next});
    Reply::Json(200, json!({"kind": "PodList", "metadata": metadata, "items": items}))
}

fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

/// Short for an event: its kind and the names in it.
fn shown(event: WatchEvent<Pod>) -> String {
    let name = |item: ApiItem<Pod>| match item {
        Ok(pod) => pod.metadata.name.unwrap_or_default(),
        Err(bad) => format!("!{}", bad.metadata.name.unwrap_or_default()),
    };
    match event {
        WatchEvent::Listed(items) => {
            let names: Vec<_> = items.into_iter().map(name).collect();
            format!("listed {}", names.join(" "))
        }
        WatchEvent::Applied(item) => format!("applied {}", name(item)),
        WatchEvent::Deleted(item) => format!("deleted {}", name(item)),
        WatchEvent::Failed(error) => match &*error {
            ApiError::Status { status, .. } => format!("refused {status}"),
            ApiError::Unreachable(_) => "unreachable".to_owned(),
            ApiError::Unreadable(_) => "unreadable".to_owned(),
            ApiError::Timeout(_) => "late".to_owned(),
        },
    }
}

#[tokio::test]
async fn a_watch_that_nobody_waits_for_stops_no_other_request() {
    let server = Watched::start([]).await;
    let api = client(&server).await.limited(4, 1);
    let lease = async || {
        let request = api.get::<Lease>(ResourcePath::namespaced("n", "l"));
        // A list, which is no lease; only that there is an answer counts.
        let _ = timeout(Duration::from_secs(5), request).await.expect("an answer");
    };
    lease().await;
    let mut watch = api.list_watch::<Pod>(Selection::default());
    let mut next = Box::pin(watch.next());
    // Until the list waits for its place in the rate limit, which it then has.
    let begun = timeout(Duration::from_millis(100), &mut next).await;
    assert!(begun.is_err());
    lease().await;
    assert!(matches!(next.await, WatchEvent::Listed(_)));
}

#[tokio::test]
async fn a_list_of_several_pages_is_one_event() {
    let replies = [
        list("7", &[pod("a", "1"), pod("b", "2")], Some("to ken=")),
        list("7", &[json!({"metadata": {"name": "odd"}, "spec": 1}), pod("c", "3")], Some("")),
    ];
    let server = Watched::start(replies).await;
    let selection = Selection {
        namespace: Some("default".into()),
        field_selector: Some("spec.nodeName=n 1".into()),
    };
    let mut watch = client(&server).await.list_watch(selection);
    assert_eq!(shown(watch.next().await), "listed a b !odd c");
    begin(&mut watch).await;
    let received = server.received();
    let lines: Vec<_> = received.iter().map(Received::line).collect();
    assert_eq!(lines, ["GET /api/v1/namespaces/default/pods"; 3]);
    let parameters =
        ["limit", "continue", "fieldSelector", "resourceVersion", "allowWatchBookmarks"];
    let of = |at: usize| parameters.map(|name| received[at].parameter(name).unwrap_or_default());
    assert_eq!(of(0), ["500", "", "spec.nodeName=n 1", "", ""]);
    assert_eq!(of(1), ["500", "to ken=", "spec.nodeName=n 1", "", ""]);
    assert_eq!(of(2), ["", "", "spec.nodeName=n 1", "7", "true"]);
    let seconds: u64 = received[2].parameter("timeoutSeconds").unwrap().parse().unwrap();
    assert!((300..=600).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn events_are_reported_in_order_and_a_cut_watch_resumes_after_the_last() {
    let (server, _api, mut watch) = watched().await;
    let first = server.next_watch().await;
    first.line(&event("ADDED", pod("a", "2"))).await;
    first
        .line(&event(
            "MODIFIED",
            json!({"metadata": {"name": "odd", "resourceVersion": "3"}, "spec": 1}),
        ))
        .await;
    first.line(&event("DELETED", pod("a", "4"))).await;
    for expected in ["applied a", "applied !odd", "deleted a"] {
        assert_eq!(shown(watch.next().await), expected);
    }
    first.cut().await;
    assert_eq!(shown(watch.next().await), "unreachable");
    begin_within_a_second(&mut watch, &server).await;
    assert_eq!((server.versions(), server.lists()), (vec!["1".into(), "4".into()], 1));
}

/// Polls the watch until the server has another one.
async fn begin_within_a_second(watch: &mut ListWatch<Pod>, server: &Watched) -> Pushed {
    tokio::select! {
        event = watch.next() => panic!("{event:?}"),
        pushed = server.next_watch() => pushed,
        () = tokio::time::sleep(Duration::from_secs(5)) => panic!("no watch"),
    }
}

#[tokio::test]
async fn a_bookmark_moves_the_version_and_is_not_reported() {
    let (server, _api, mut watch) = watched().await;
    let first = server.next_watch().await;
    first.line(&event("BOOKMARK", pod("", "90"))).await;
    first.line(&event("NOVEL", pod("", "91"))).await;
    begin(&mut watch).await;
    // It ended at its time, so nothing failed.
    drop(first);
    let second = begin_within_a_second(&mut watch, &server).await;
    assert_eq!(server.versions(), ["1", "90"]);
    second.line(&event("ADDED", pod("a", "92"))).await;
    assert_eq!(shown(watch.next().await), "applied a");
}

#[tokio::test]
async fn after_an_error_in_a_watch_objects_are_listed_again_unless_requests_are_too_many() {
    let (server, _api, mut watch) = watched().await;
    let first = server.next_watch().await;
    let status = |code: u16| json!({"kind": "Status", "code": code, "reason": "Expired"});
    first.line(&event("ERROR", status(410))).await;
    server.replies.lock().push_back(list("20", &[pod("b", "15")], None));
    assert_eq!(shown(watch.next().await), "refused 410 Gone");
    assert_eq!(shown(watch.next().await), "listed b");
    let second = begin_within_a_second(&mut watch, &server).await;
    second.line(&event("ERROR", status(500))).await;
    server.replies.lock().push_back(list("30", &[pod("c", "25")], None));
    assert_eq!(shown(watch.next().await), "refused 500 Internal Server Error");
    assert_eq!(shown(watch.next().await), "listed c");
    let third = begin_within_a_second(&mut watch, &server).await;
    third.line(&event("ERROR", status(429))).await;
    server.replies.lock().push_back(Reply::status(410, "Gone"));
    assert_eq!(shown(watch.next().await), "refused 429 Too Many Requests");
    assert_eq!(shown(watch.next().await), "refused 410 Gone");
    assert_eq!(shown(watch.next().await), "listed ");
    assert_eq!(server.versions(), ["1", "20", "30", "30"]);
}

#[tokio::test]
async fn a_page_that_is_gone_begins_the_list_again() {
    let replies = [
        list("7", &[pod("a", "1")], Some("next")),
        Reply::status(410, "Expired"),
        list("9", &[pod("b", "8")], None),
    ];
    let server = Watched::start(replies).await;
    let mut watch = client(&server).await.list_watch(Selection::default());
    assert_eq!(shown(watch.next().await), "refused 410 Gone");
    assert_eq!(shown(watch.next().await), "listed b");
    assert_eq!(server.received()[2].parameter("continue"), None);
}

#[tokio::test]
async fn an_event_may_come_in_pieces_and_an_unreadable_one_is_listed_instead() {
    let (server, _api, mut watch) = watched().await;
    let first = server.next_watch().await;
    let line = format!("{}\n{}\n", event("ADDED", pod("a", "2")), event("ADDED", pod("b", "3")));
    for piece in line.as_bytes().chunks(7) {
        first.bytes(piece.to_vec()).await;
    }
    assert_eq!(shown(watch.next().await), "applied a");
    assert_eq!(shown(watch.next().await), "applied b");
    first.bytes("<html>\n").await;
    assert_eq!(shown(watch.next().await), "unreadable");
    assert_eq!(shown(watch.next().await), "listed ");
    let second = begin_within_a_second(&mut watch, &server).await;
    // An end in the middle of an event is a lost connection.
    second.bytes("{\"type\": \"ADDED\"").await;
    drop(second);
    assert_eq!(shown(watch.next().await), "unreachable");
    assert_eq!(server.lists(), 2);
}

#[tokio::test]
async fn an_event_that_is_too_long_is_not_kept() {
    let (server, _api, mut watch) = watched().await;
    let first = server.next_watch().await;
    tokio::spawn(async move {
        first.bytes("{\"type\": \"ADDED\", \"object\": \"").await;
        for _ in 0..40 {
            first.bytes(vec![b'a'; 1024 * 1024]).await;
        }
    });
    assert_eq!(shown(watch.next().await), "unreadable");
    assert_eq!(shown(watch.next().await), "listed ");
}

#[tokio::test]
async fn a_server_that_was_away_is_used_again() {
    let (server, _api, mut watch) = watched().await;
    let _first = server.next_watch().await;
    server.set_away(true);
    for _ in 0..3 {
        assert_eq!(shown(watch.next().await), "unreachable");
    }
    server.set_away(false);
    let second = begin_within_a_second(&mut watch, &server).await;
    second.line(&event("ADDED", pod("a", "2"))).await;
    assert_eq!(shown(watch.next().await), "applied a");
    assert_eq!(server.lists(), 1);
}

#[tokio::test]
async fn a_list_whose_page_is_too_large_is_requested_in_smaller_pages() {
    let server = Watched::start([]).await;
    let huge = || Reply::Bytes(200, vec![b' '; 65 * 1024 * 1024]);
    server.replies.lock().extend([
        list("7", &[pod("a", "1")], Some("more")),
        huge(),
        huge(),
        list("7", &[pod("b", "2")], None),
    ]);
    let mut watch = client(&server).await.list_watch(Selection::default());
    assert_eq!(shown(watch.next().await), "listed a b");
    let received = server.received();
    let pages = received.iter().map(|one| {
        let of = |name| one.parameter(name).unwrap_or_default();
        [of("limit"), of("continue")].join(" ")
    });
    let pages: Vec<_> = pages.collect();
    assert_eq!(pages, ["500 ", "500 more", "250 more", "125 more"]);
}

#[tokio::test]
async fn a_list_that_was_too_much_for_the_storage_is_read_from_the_cache_not_older_than_was_known()
{
    let busy = || Reply::status(429, "TooManyRequests");
    let server = Watched::start([busy(), list("5", &[], None)]).await;
    let mut watch = client(&server).await.list_watch(Selection::default());
    assert_eq!(shown(watch.next().await), "refused 429 Too Many Requests");
    assert_eq!(shown(watch.next().await), "listed ");
    begin(&mut watch).await;
    let first = server.next_watch().await;
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired"});
    let lists = [busy(), busy(), busy(), list("7", &[pod("a", "6")], None)];
    server.replies.lock().extend(lists);
    first.line(&event("ERROR", expired)).await;
    assert_eq!(shown(watch.next().await), "refused 410 Gone");
    for _ in 0..3 {
        assert_eq!(shown(watch.next().await), "refused 429 Too Many Requests");
    }
    assert_eq!(shown(watch.next().await), "listed a");
    let received = server.received();
    let lists = received.iter().filter(|one| one.parameter("watch").is_none());
    let queries = lists.map(|one| {
        let of = |name| one.parameter(name).unwrap_or_default();
        [of("resourceVersion"), of("resourceVersionMatch"), of("limit")].join(" ")
    });
    let queries: Vec<_> = queries.collect();
    let (storage, cache) = ("  500", "NotOlderThan ");
    let expected = [
        storage.to_owned(),
        format!("0 {cache}"),
        storage.to_owned(),
        format!("5 {cache}"),
        storage.to_owned(),
        format!("5 {cache}"),
    ];
    assert_eq!(queries, expected);
}

#[tokio::test]
async fn the_opening_of_a_watch_takes_no_place_in_the_rate() {
    let server = Watched::start([]).await;
    // One for each list; the watches would need half a minute.
    let api = client(&server).await.limited(1, 30);
    let mut watches = Vec::new();
    let started_at = clock::instant();
    for _ in 0..30 {
        let mut watch = api.list_watch::<Pod>(Selection::default());
        assert_eq!(shown(watch.next().await), "listed ");
        watches.push(tokio::spawn(async move { shown(watch.next().await) }));
    }
    for _ in 0..30 {
        server.next_watch().await;
    }
    let took = clock::since(started_at);
    assert!(took < Duration::from_secs(15), "{took:?}");
    watches.iter().for_each(tokio::task::JoinHandle::abort);
}

fn lease(version: &str) -> Value {
    json!({"metadata": {"name": "n1", "resourceVersion": version}})
}

async fn renew(api: &ApiServer) {
    let at = ResourcePath::namespaced("kube-node-lease", "n1");
    let renewed = api.unlimited().update(at, &Lease::default()).await;
    assert!(renewed.is_ok(), "{renewed:?}");
}

#[tokio::test]
async fn objects_are_listed_again_when_the_storage_goes_back_and_not_for_replies_out_of_order() {
    let (server, api, mut watch) = watched().await;
    let _first = server.next_watch().await;
    server.replies.lock().push_back(Reply::Json(200, lease("2000")));
    renew(&api).await;
    // The reply to this one comes after that to the next one.
    let (late, reply) = Reply::stream();
    server.replies.lock().push_back(reply);
    let before = server.received().len();
    let slow = tokio::spawn({
        let api = api.clone();
        async move { renew(&api).await }
    });
    while server.received().len() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.replies.lock().push_back(Reply::Json(200, lease("2002")));
    renew(&api).await;
    late.bytes(lease("2001").to_string()).await;
    drop(late);
    slow.await.unwrap();
    begin(&mut watch).await;
    let pages = || {
        let received = server.received();
        let pages = received.iter().filter(|one| one.parameter("limit").is_some());
        pages.count()
    };
    assert_eq!(pages(), 1);
    // A backup was restored.
    server
        .replies
        .lock()
        .extend([Reply::Json(200, lease("10")), list("11", &[pod("a", "11")], None)]);
    renew(&api).await;
    let listed = timeout(Duration::from_secs(20), watch.next()).await;
    assert_eq!(shown(listed.expect("a list")), "listed a");
    begin(&mut watch).await;
    server.next_watch().await;
    assert_eq!(server.versions(), ["1", "11"]);
}

#[tokio::test]
async fn a_suspicion_has_everything_listed_again_and_a_second_one_soon_after_has_not() {
    let (server, api, mut watch) = watched().await;
    let _first = server.next_watch().await;
    api.suspect_watches();
    let listed = timeout(Duration::from_secs(20), watch.next()).await;
    assert_eq!(shown(listed.expect("a list")), "listed ");
    api.suspect_watches();
    begin(&mut watch).await;
    assert_eq!(server.lists(), 2);
}

#[tokio::test]
async fn a_watch_of_pods_resumes_soon_after_any_request_found_the_server_back() {
    let watch = async |is_urgent: bool| resumes_soon(is_urgent).await;
    tokio::join!(watch(false), watch(true));
}

async fn resumes_soon(is_urgent: bool) {
    let server = Watched::start([]).await;
    let api = client(&server).await;
    let of = if is_urgent { api.unlimited() } else { api.clone() };
    let mut watch = of.list_watch::<Pod>(Selection::default());
    assert_eq!(shown(watch.next().await), "listed ");
    begin(&mut watch).await;
    let _first = server.next_watch().await;
    server.set_away(true);
    // The next try is then more than three seconds away.
    for _ in 0..6 {
        assert_eq!(shown(watch.next().await), "unreachable");
    }
    server.set_away(false);
    let found = Reply::Json(200, pod("a", "1"));
    server.replies.lock().push_back(found);
    let other = api.get::<Pod>(ResourcePath::namespaced("default", "a")).await;
    assert!(other.is_ok(), "{other:?}");
    let started_at = clock::instant();
    let _second = begin_within_a_second(&mut watch, &server).await;
    let took = clock::since(started_at);
    assert!(took < Duration::from_millis(1500), "{took:?}");
}

#[tokio::test]
async fn a_watch_that_the_server_ends_at_once_is_tried_ever_more_seldom() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let server = Scripted::serve(move |request| {
        if request.parameter("watch").is_none() {
            return list("1", &[], None);
        }
        count.fetch_add(1, Ordering::SeqCst);
        Reply::stream().1
    })
    .await;
    let mut watch = client(&server).await.list_watch::<Pod>(Selection::default());
    assert_eq!(shown(watch.next().await), "listed ");
    let nothing = timeout(Duration::from_secs(3), watch.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    // After 0.2, 0.4, 0.8 and 1.6 s at the earliest.
    let tries = ended.load(Ordering::SeqCst);
    assert!((3..=4).contains(&tries), "{tries}");
}

#[tokio::test]
async fn a_server_that_lists_well_and_fails_each_watch_is_tried_ever_more_seldom() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired"});
    for in_stream in [false, true] {
        let line = event("ERROR", gone.clone()).to_string() + "\n";
        let server = Scripted::serve(move |request| match request.parameter("watch") {
            None => list("1", &[], None),
            Some(_) if in_stream => Reply::Bytes(200, line.clone().into_bytes()),
            Some(_) => Reply::status(410, "Expired"),
        })
        .await;
        let mut watch = client(&server).await.list_watch::<Pod>(Selection::default());
        let started_at = clock::instant();
        let end = started_at + Duration::from_secs(3);
        while timeout_at(end, watch.next()).await.is_ok() {}
        // At once, and after 0.2, 0.4, 0.8 and 1.6 s at the earliest.
        let received = server.received();
        let lists = received.iter().filter(|one| one.parameter("watch").is_none());
        let lists = lists.count();
        assert!((3..=4).contains(&lists), "{in_stream}: {lists}");
    }
}

#[tokio::test]
async fn cancelling_loses_neither_an_event_nor_a_request() {
    let replies = (0..20).map(|page| {
        let next = (page < 19).then_some("more");
        list("5", &[pod(&page.to_string(), "1")], next)
    });
    let server = Watched::start(replies).await;
    let mut watch = client(&server).await.list_watch(Selection::default());
    let mut listed = None;
    while listed.is_none() {
        tokio::select! {
            biased;
            event = watch.next() => listed = Some(shown(event)),
            () = tokio::task::yield_now() => {}
        }
    }
    let all: Vec<_> = (0..20).map(|page| page.to_string()).collect();
    assert_eq!(listed, Some(format!("listed {}", all.join(" "))));
    assert_eq!(server.lists(), 20);
    let first = begin_within_a_second(&mut watch, &server).await;
    let writing = tokio::spawn(async move {
        for at in 0..100 {
            let line = format!("{}\n", event("ADDED", pod(&at.to_string(), "6")));
            let (one, other) = line.split_at(20);
            first.bytes(one.to_owned()).await;
            tokio::task::yield_now().await;
            first.bytes(other.to_owned()).await;
        }
        first
    });
    let mut seen = Vec::new();
    while seen.len() < 100 {
        tokio::select! {
            biased;
            event = watch.next() => seen.push(shown(event)),
            () = tokio::task::yield_now() => {}
        }
    }
    let expected: Vec<_> = (0..100).map(|at| format!("applied {at}")).collect();
    assert_eq!(seen, expected);
    assert_eq!(server.versions().len(), 1);
    drop(writing);
}
