use super::*;
use crate::base::clock;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode, header};
use serde_json::Value;

struct Answer {
    status: StatusCode,
    content_type: String,
    body: String,
}

async fn fetch(handler: &PortHandler, target: &str) -> Answer {
    let body = Empty::<bytes::Bytes>::new();
    let request = Request::builder().uri(target).body(body).unwrap();
    let response = answer(handler, request, &CancellationToken::new()).await;
    let content_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    Answer {
        status: response.status(),
        content_type,
        body: String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into())
            .unwrap(),
    }
}

async fn json(target: &str) -> Value {
    let answer = fetch(&read_only(), target).await;
    assert_eq!((answer.status, answer.content_type.as_str()), (StatusCode::OK, "application/json"));
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn pods_are_a_v1_list_with_current_statuses() {
    let list = json("/pods").await;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"PodList".into(), &"v1".into()));
    let items = list["items"].as_array().unwrap();
    let mut items = items.iter().collect::<Vec<_>>();
    items.sort_by_key(|pod| pod["metadata"]["name"].as_str());
    let shown: Vec<_> = items
        .iter()
        .map(|pod| {
            (pod["metadata"]["name"].as_str().unwrap(), pod["status"]["phase"].as_str().unwrap())
        })
        .collect();
    assert_eq!(shown, [("a", "Running"), ("b", "Pending")], "its own where the store has none");
    assert_eq!(items[0]["spec"]["containers"][0]["name"], "c");
    assert!(items[0].get("kind").is_none(), "items carry no type of their own");
}

#[tokio::test]
async fn one_pod_is_explained_and_an_unknown_one_is_not_found() {
    assert_eq!(json("/explain").await["node"], "n1");
    assert_eq!(json("/explain/shop/web").await["summary"], "all about shop/web");
    for unknown in ["/explain/shop/other", "/explain/shop/web?uid=other"] {
        let answer = fetch(&read_only(), unknown).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{unknown}");
        assert!(answer.body.starts_with("404 pod shop/"), "{}", answer.body);
    }
}

/// The version is the value of the channel.
fn handler_with_news(version: &tokio::sync::watch::Sender<u64>) -> PortHandler {
    let version = version.clone();
    let mut views = views(vec![]);
    views.explanations.overview_version = Arc::new(move || {
        let mut changes = version.subscribe();
        let now = changes.borrow_and_update().to_string();
        let changed = async move {
            let _ = changes.changed().await;
        };
        (now, Box::pin(changed))
    });
    PortHandler::read_only(HealthChecks::ping(), views, Vec::new())
}

#[tokio::test(start_paused = true)]
async fn a_client_with_the_current_version_waits_for_the_next_one() {
    let version = tokio::sync::watch::Sender::new(7);
    let handler = handler_with_news(&version);
    let wait = async |target: &str| {
        let begun = clock::instant();
        fetch(&handler, target).await;
        clock::since(begun)
    };
    for target in ["/explain", "/explain?after=6", "/explain/a/b?after=7", "/pods?after=7"] {
        assert_eq!(wait(target).await, Duration::ZERO, "{target}");
    }
    assert_eq!(wait("/explain?after=7").await, Duration::from_secs(25));
    let later = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        version.send_replace(8);
    };
    let (waited, ()) = tokio::join!(wait("/explain?after=7"), later);
    assert_eq!(waited, Duration::from_secs(3));
}

#[tokio::test]
async fn a_list_of_a_thousand_pods_is_whole_and_comes_in_chunks() {
    let pods: Vec<_> = (0..1000).map(|i| (pod(&format!("p{i}")), None)).collect();
    let handler = PortHandler::read_only(HealthChecks::ping(), views(pods), Vec::new());
    let request = Request::builder().uri("/pods").body(Empty::<bytes::Bytes>::new()).unwrap();
    let mut body = answer(&handler, request, &CancellationToken::new()).await.into_body();
    let (mut text, mut chunks, mut largest) = (Vec::new(), 0, 0);
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        chunks += 1;
        largest = largest.max(data.len());
        text.extend_from_slice(&data);
    }
    let list: k8s_openapi::List<Pod> = serde_json::from_slice(&text).unwrap();
    assert_eq!(list.items.len(), 1000);
    assert!(chunks > 3 && largest < 32 * 1024, "{chunks} chunks, largest {largest}");
}

#[tokio::test]
async fn a_response_of_known_length_keeps_its_size_hint_with_metrics() {
    let metrics = crate::base::metrics::Metrics::new();
    let views =
        RouteHandlers { http_metrics: Some(HttpMetrics::register(&metrics)), ..views(vec![]) };
    let handler = PortHandler::read_only(HealthChecks::ping(), views, Vec::new());
    let request = Request::get("/healthz").body(Empty::<bytes::Bytes>::new());
    let answer = super::answer(&handler, request.unwrap(), &CancellationToken::new()).await;
    let body = answer.into_body();
    assert_eq!(hyper::body::Body::size_hint(&body).exact(), Some(2));
}

#[tokio::test]
async fn no_pods_are_an_empty_list() {
    let handler = PortHandler::read_only(HealthChecks::ping(), views(vec![]), Vec::new());
    let answer = fetch(&handler, "/pods").await;
    let list: k8s_openapi::List<Pod> = serde_json::from_str(&answer.body).unwrap();
    assert!(list.items.is_empty());
}

#[tokio::test]
async fn running_pods_show_running_containers_alone() {
    let list = json("/runningpods/").await;
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0]["metadata"]["uid"], "uid-up");
    let containers = items[0]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!((&containers[0]["name"], &containers[0]["image"]), (&"web".into(), &"img:1".into()));
}

#[tokio::test]
async fn events_are_a_v1_list_that_can_be_narrowed() {
    let reasons = |list: Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(reasons(json("/events").await), ["BackOff", "Killing", "Starting"]);
    assert_eq!(reasons(json("/events?limit=1").await), ["Starting"]);
    assert_eq!(reasons(json("/events?limit=0").await), [""; 0]);
    assert_eq!(reasons(json("/events?namespace=default&name=a").await), ["BackOff"]);
    let list = json("/events?name=a").await;
    let event = &list["items"][0];
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["count"], 1);
    assert_eq!(event["message"], "first");
    assert_eq!(event["source"]["host"], "n1");
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{c}");
    assert_eq!(event["metadata"]["namespace"], "default");
    let parsed: k8s_openapi::List<v1::Event> = serde_json::from_value(list).unwrap();
    assert_eq!(parsed.items.len(), 1);
}

#[tokio::test]
async fn different_events_have_different_names() {
    let list = json("/events").await;
    let items = list["items"].as_array().unwrap();
    let names: std::collections::HashSet<_> =
        items.iter().map(|event| event["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), items.len());
}

#[tokio::test]
async fn metrics_are_text_of_prometheus() {
    let answer = fetch(&read_only(), "/metrics").await;
    assert_eq!(answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(answer.body, "up 1\n");
}

#[tokio::test]
async fn health_reads_as_upstreams_does() {
    let failing = read_only();
    let well = PortHandler::health(HealthChecks::ping().with("log", || Ok(())));
    let noting = HealthChecks::ping().noting(|| vec!["a path is missing".to_owned()]);
    let noting = PortHandler::health(noting);
    let rows = [
        (&noting, "/healthz", 200, "ok"),
        (
            &noting,
            "/healthz?verbose",
            200,
            "[+]ping ok\nwarn: a path is missing\nhealthz check passed\n",
        ),
        (&well, "/healthz", 200, "ok"),
        (&well, "/healthz?verbose", 200, "[+]ping ok\n[+]log ok\nhealthz check passed\n"),
        (&well, "/healthz/ping", 200, "ok"),
        (&well, "/healthz/syncloop", 404, "404 page not found\n"),
        (
            &failing,
            "/healthz",
            500,
            "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
        ),
        (&failing, "/healthz/log", 200, "ok"),
        (&failing, "/healthz/syncloop", 500, "internal server error: no sync for 5 minutes\n"),
        (&failing, "/healthz?exclude=syncloop", 200, "ok"),
        (
            &failing,
            "/healthz?verbose&exclude=syncloop&exclude=x",
            200,
            "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\n\
             warn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n",
        ),
    ];
    for (handler, target, status, body) in rows {
        let answer = fetch(handler, target).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body), "{target}");
        assert_eq!(answer.content_type, "text/plain; charset=utf-8");
    }
}

#[tokio::test]
async fn a_check_runs_at_each_request() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let well = Arc::new(AtomicBool::new(true));
    let seen = well.clone();
    let check = move || {
        if seen.load(Ordering::Relaxed) { Ok(()) } else { Err("no".to_owned()) }
    };
    let handler = PortHandler::health(HealthChecks::new().with("flag", check));
    assert_eq!(fetch(&handler, "/healthz").await.status, StatusCode::OK);
    well.store(false, Ordering::Relaxed);
    assert_eq!(fetch(&handler, "/healthz").await.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn only_metrics_are_compressed_and_only_for_clients_that_accept_it() {
    use std::io::Read as _;
    let handler = read_only();
    let rows = [
        ("/metrics", Some("up 1\n")),
        ("/metrics/slis", Some("kubernetes_healthcheck 1\n")),
        ("/metrics/cadvisor", Some("a 1\nb 2\n")),
        ("/metrics/resource", Some("r 1\n")),
        ("/metrics/probes", Some("p 1\n")),
        ("/pods", None),
    ];
    for (target, expected) in rows {
        let request = Request::get(target).header(header::ACCEPT_ENCODING, "gzip");
        let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        let response = answer(&handler, request, &CancellationToken::new()).await;
        assert_eq!(response.status(), StatusCode::OK, "{target}");
        let encoding = response.headers().get(header::CONTENT_ENCODING).cloned();
        assert_eq!(encoding.is_some(), expected.is_some(), "{target}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        if let Some(expected) = expected {
            let mut text = String::new();
            let mut decoder = flate2::read::GzDecoder::new(&body[..]);
            decoder.read_to_string(&mut text).unwrap();
            assert_eq!(text, expected, "{target}");
            assert_eq!(fetch(&handler, target).await.body, expected, "{target}");
        }
    }
}
