//! The pages as they are sent, and in a browser.

use super::*;
use crate::base::clock;
use crate::server::explain::{EventReport, PastEvent, PodRow, Wait};
use http_body_util::{BodyExt, Empty};
use hyper::{Method, Request, Response, StatusCode, header};
use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::process::Command;

const HOSTILE: &str = "</main><script>document.body.dataset.owned=1</script>\
    <img src=x onerror=\"document.body.dataset.owned=2\">\u{202e}";

async fn get(handler: &PortHandler, target: &str) -> Response<http::response::Body> {
    let body = Empty::<bytes::Bytes>::new();
    let request = Request::builder().uri(target).body(body).unwrap();
    answer(handler, request, &CancellationToken::new()).await
}

fn row(name: &str, status: &str) -> PodRow {
    PodRow {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        containers: 1,
        status: status.into(),
        phase: "Running".into(),
        ip: "10.88.0.7".into(),
        since: Some(clock::timestamp()),
        ..PodRow::default()
    }
}

fn local(views: RouteHandlers) -> PortHandler {
    PortHandler::read_only(HealthChecks::ping(), views, Vec::new()).local()
}

#[test]
fn pages_are_for_those_with_credentials() {
    for path in ["/", "/pod/shop/web"] {
        for port in [Port::Main, Port::Local] {
            let found = route(port, &Method::GET, path, None);
            assert!(found.is_ok(), "{path} {port:?}: {found:?}");
            assert_eq!(subresources(port, path), ["pods", "proxy"]);
        }
        for port in [Port::ReadOnly, Port::Health] {
            let found = route(port, &Method::GET, path, None).unwrap_err();
            assert_eq!(found, RouteError::NotFound, "{path} {port:?}");
        }
        let posted = route(Port::Main, &Method::POST, path, None).unwrap_err();
        assert_eq!(posted, RouteError::MethodNotAllowed(&["GET"]));
    }
    for path in ["/pod", "/pod/", "/pod/shop", "/pod/shop/a/b", "/pod/shop/a%3Cb", "//"] {
        let found = route(Port::Local, &Method::GET, path, None);
        assert_eq!(found.unwrap_err(), RouteError::NotFound, "{path}");
    }
}

#[tokio::test]
async fn each_page_forbids_a_browser_whatever_it_does_not_need() {
    let rows = [
        ("/", StatusCode::OK),
        ("/pod/shop/web", StatusCode::OK),
        ("/pod/shop/other?after=0", StatusCode::NOT_FOUND),
    ];
    for (target, status) in rows {
        let answer = get(&local(views(vec![])), target).await;
        assert_eq!(answer.status(), status, "{target}");
        let header = |name| answer.headers()[name].to_str().unwrap();
        assert_eq!(header(header::CONTENT_TYPE), "text/html; charset=utf-8");
        assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(header(header::REFERRER_POLICY), "no-referrer");
        assert_eq!(header(header::CACHE_CONTROL), "no-store");
        let policy = header(header::CONTENT_SECURITY_POLICY);
        let names: Vec<_> = policy.split("; ").map(|rule| rule.split_once(' ').unwrap()).collect();
        assert_eq!(names[0], ("default-src", "'none'"));
        assert!(names[1].0 == "style-src" && names[1].1.starts_with("'sha256-"));
        assert!(names[2].0 == "script-src" && names[2].1.starts_with("'sha256-"));
        let rest = [
            ("connect-src", "'self'"),
            ("base-uri", "'none'"),
            ("form-action", "'none'"),
            ("frame-ancestors", "'none'"),
        ];
        assert_eq!(names[3..], rest);
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}

#[tokio::test]
async fn a_page_of_five_hundred_pods_comes_in_chunks_and_explains_only_pods_that_need_attention() {
    let requested = Arc::new(AtomicU64::new(0));
    let counted = requested.clone();
    let pods = |ready| move |i: usize| PodRow { ready, ..row(&format!("p{i}"), "Pending") };
    let pods: Vec<_> = (0..400).map(pods(1)).chain((400..500).map(pods(0))).collect();
    let mut views = views(vec![]);
    views.explanations.overview =
        Arc::new(move || Overview { pods: pods.clone(), ..Overview::default() });
    views.explanations.explain = Arc::new(move |query| {
        assert_eq!(query.uid, Some(format!("uid-{}", query.name)));
        counted.fetch_add(1, Ordering::Relaxed);
        None
    });
    let mut body = get(&local(views), "/").await.into_body();
    let (mut text, mut chunks) = (String::new(), 0);
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() < 64 * 1024, "{}", data.len());
        if chunks == 0 {
            assert_eq!(requested.load(Ordering::Relaxed), 0, "rows are made as they are sent");
        }
        chunks += 1;
        text += std::str::from_utf8(&data).unwrap();
    }
    assert!(chunks > 5, "{chunks}");
    assert_eq!(text.matches("<th scope=\"row\"").count(), 500);
    assert_eq!(requested.load(Ordering::Relaxed), 100);
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"));
}

/// A node that changes twenty times a second, with pods of hostile names and texts.
fn changing() -> RouteHandlers {
    let state = Arc::new(AtomicU64::new(1));
    let (shown, reported) = (state.clone(), state.clone());
    let explanations = Explanations {
        overview: Arc::new(move || {
            let state = shown.load(Ordering::Relaxed);
            Overview {
                version: state.to_string(),
                node: HOSTILE.into(),
                warnings: vec![HOSTILE.into()],
                pods: vec![row(HOSTILE, HOSTILE), row("web", &format!("state-{state}"))],
            }
        }),
        explain: Arc::new(move |query| {
            let state = format!("state-{}", reported.load(Ordering::Relaxed));
            let hostile = || HOSTILE.to_owned();
            Some(Explanation {
                pod: row(&query.name, &state),
                summary: hostile(),
                waits: vec![Wait { container: hostile(), what: hostile(), until: None }],
                timeline: vec![PastEvent {
                    at: clock::timestamp(),
                    container: hostile(),
                    what: hostile(),
                    detail: hostile(),
                }],
                events: vec![EventReport {
                    kind: hostile(),
                    reason: hostile(),
                    container: hostile(),
                    message: HOSTILE.repeat(1000),
                    count: 1,
                    first: clock::timestamp(),
                    last: clock::timestamp(),
                }],
                ..Explanation::default()
            })
        }),
        overview_version: Arc::new(move || {
            let (state, version) = (state.clone(), state.load(Ordering::Relaxed));
            let changed = async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                state.fetch_add(1, Ordering::Relaxed);
            };
            (version.to_string(), Box::pin(changed))
        }),
        ..views(vec![]).explanations
    };
    RouteHandlers { explanations, ..views(vec![]) }
}

/// Whether there is a browser; in CI there must be one.
fn browser_is_here() -> bool {
    let here = std::process::Command::new("chromium")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let needed = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(here || !needed, "no chromium here; hack/install-deps.sh --browser installs it");
    if !here {
        // Not by a macro, whose output is hidden when the test passes.
        let _ = std::io::stderr()
            .write_all(b"SKIPPED: no chromium here, so no page is tried in a browser\n");
    }
    here
}

/// The document after ten seconds of the browser's virtual time, which stands still during a request.
async fn document(url: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let run = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-background-networking", "--no-proxy-server"])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .args(["--virtual-time-budget=10000", "--dump-dom", url])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(3 * TIMEOUT, run).await.unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn state(document: &str) -> u64 {
    let (_, rest) = document.split_once("state-").unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[tokio::test]
async fn a_browser_shows_hostile_text_as_text_and_follows_changes() {
    if !browser_is_here() {
        return;
    }
    let served = serve(local(changing()), ConnectionLimits::default()).await;
    for path in ["", "pod/shop/web?uid=uid-web"] {
        let first = served.get(&format!("/{path}")).await;
        let document = document(&format!("http://{}/{path}", served.address)).await;
        assert!(document.contains("&lt;script&gt;document.body.dataset.owned=1"), "{document}");
        // None of it became an element or ran.
        assert!(!document.contains("data-owned"), "{document}");
        assert!(!document.contains("<img"), "{document}");
        assert_eq!(document.matches("<script").count(), 1, "{document}");
        assert_eq!(document.matches("<main").count(), 1, "{document}");
        assert!(!document.contains('\u{202e}'), "{document}");
        assert!(state(&document) > state(&first) + 1, "{document}");
        assert!(document.contains("role=\"status\">Live</span>"), "{document}");
    }
    served.stop().await;
}
