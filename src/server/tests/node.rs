//! Routes about the node and the process.

use super::*;
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use serde_json::Value;

async fn fetch(
    handler: &PortHandler,
    method: &str,
    target: &str,
    body: &str,
) -> (StatusCode, String) {
    let request = hyper::Request::builder().method(method).uri(target);
    let request = request.body(Full::new(bytes::Bytes::from(body.to_owned()))).unwrap();
    let response = answer(handler, request, &CancellationToken::new()).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn local(views: RouteHandlers, disabled: Vec<RouteGroup>) -> PortHandler {
    PortHandler::read_only(HealthChecks::ping(), views, disabled).local()
}

#[tokio::test]
async fn the_configuration_comes_in_its_envelope() {
    let (status, body) = fetch(&local(views(vec![]), vec![]), "GET", "/configz", "").await;
    assert_eq!(status, StatusCode::OK);
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shown["kubeletconfig"]["kind"], "KubeletConfiguration");
}

#[tokio::test]
async fn flags_and_status_are_for_people() {
    let handler = local(views(vec![]), vec![]);
    let (_, flags) = fetch(&handler, "GET", "/flagz", "").await;
    assert!(
        flags.starts_with("\nkubelet flagz\nWarning: ") && flags.ends_with("\nv=0\n"),
        "{flags}"
    );
    let (_, status) = fetch(&handler, "GET", "/statusz", "").await;
    for line in [
        "\nStarted: Thu Jan  1 00:00:00 UTC 1970\n",
        "\nBinary version: 1.2.3\n",
        "\nEmulation version: v1.36\n",
    ] {
        assert!(status.contains(line), "{status}");
    }
    assert!(status.contains(" /configz ") && !status.contains('{'), "{status}");
}

#[tokio::test]
async fn the_verbosity_is_set_by_a_number_and_by_nothing_else() {
    let views = views(vec![]);
    let verbosity = views.process.verbosity.clone();
    let handler = local(views, vec![]);
    let (status, body) = fetch(&handler, "PUT", "/debug/flags/v", "4\n").await;
    assert_eq!(
        (status, body.as_str()),
        (StatusCode::OK, "successfully set klog.logging.verbosity to 4")
    );
    assert_eq!(verbosity(), 4);
    for wrong in ["", "-1", "many", "99999999999"] {
        let (status, body) = fetch(&handler, "PUT", "/debug/flags/v", wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong:?}: {body}");
    }
    let (status, _) = fetch(&handler, "PUT", "/debug/flags/v", &"4".repeat(100)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, _) = fetch(&handler, "GET", "/debug/flags/v", "").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(verbosity(), 4);
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let views = views(vec![]);
    let verbosity = views.process.verbosity.clone();
    let handler = local(views, vec![]);
    let request = hyper::Request::put("/debug/flags/v").header("sec-fetch-site", "cross-site");
    let request = request.body(Full::new(bytes::Bytes::from_static(b"9"))).unwrap();
    let response = answer(&handler, request, &CancellationToken::new()).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(verbosity(), 0);
}

#[tokio::test]
async fn switched_off_routes_are_refused_or_gone_as_upstream() {
    let debugging = Some("Debug endpoints are disabled.\n");
    let rows: &[(_, &[(_, _, Option<&str>)])] = &[
        (
            RouteGroup::Debugging,
            &[
                ("GET", "/runningpods/", debugging),
                ("GET", "/exec/a/b/c?command=x&output=1", debugging),
                ("GET", "/attach/a/b/c?output=1", debugging),
                ("GET", "/portForward/a/b", debugging),
                ("POST", "/run/a/b/c?cmd=x", debugging),
                ("GET", "/containerLogs/a/b/c", debugging),
                ("GET", "/logs/", debugging),
                ("GET", "/debug/pprof/profile", debugging),
                ("GET", "/configz", None),
                ("GET", "/flagz", None),
                ("GET", "/statusz", None),
                ("PUT", "/debug/flags/v", None),
                ("POST", "/checkpoint/a/b/c", None),
            ],
        ),
        (RouteGroup::SystemLogs, &[("GET", "/logs/", Some("logs endpoint is disabled.\n"))]),
        (
            RouteGroup::Profiling,
            &[("GET", "/debug/pprof/profile", Some("profiling endpoint is disabled.\n"))],
        ),
        (
            RouteGroup::DebugFlags,
            &[("PUT", "/debug/flags/v", Some("flags endpoint is disabled.\n"))],
        ),
    ];
    for (group, requests) in rows {
        let handler = local(views(vec![]), vec![*group]);
        for (method, target, text) in *requests {
            let (status, body) = fetch(&handler, method, target, "").await;
            let expected = match text {
                Some(text) => (StatusCode::METHOD_NOT_ALLOWED, *text),
                None => (StatusCode::NOT_FOUND, "404 page not found\n"),
            };
            assert_eq!((status, body.as_str()), expected, "{group:?} {target}");
        }
        let (status, _) = fetch(&handler, "GET", "/pods", "").await;
        assert_eq!(status, StatusCode::OK);
    }
}

#[tokio::test]
async fn node_logs_are_those_below_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("syslog"), "a line\n").unwrap();
    let views = RouteHandlers { node_logs: NodeLogs::of(dir.path()), ..views(vec![]) };
    let handler = local(views, vec![]);
    let (status, body) = fetch(&handler, "GET", "/logs/syslog", "").await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "a line\n"));
    for outside in ["/logs/../syslog", "/logs/..%2f..%2fetc/passwd", "/logs//etc/passwd"] {
        let (status, _) = fetch(&handler, "GET", outside, "").await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{outside}");
    }
}

#[tokio::test]
async fn logs_of_services_come_from_the_journal_or_from_their_files() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("plain.log"), "of a file\n").unwrap();
    std::fs::write(dir.path().join("secret"), "nothing\n").unwrap();
    let program = dir.path().join("journalctl");
    let script = "#!/bin/sh\n[ \"$1\" = --field ] && echo web.service && exit\necho \"$@\"\n";
    std::fs::write(&program, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    let logs = NodeLogs::of(dir.path());
    let with = |node_logs| RouteHandlers { node_logs, ..views(vec![]) };
    let handler = local(with(logs.clone().with_journal(&program)), vec![]);
    let journal = "--utc --no-pager --output=short-precise";
    for (target, expected) in [
        ("/logs/?query=web", (200, format!("{journal} --unit=web\n"))),
        (
            "/logs/?query=web&tailLines=3",
            (200, format!("{journal} --pager-end --lines=3 --unit=web\n")),
        ),
        ("/logs/?query=plain", (200, "of a file\n".to_owned())),
        ("/logs/?query=none", (200, "\nlog not found for none\n".to_owned())),
        ("/logs/?query=/plain.log", (200, "of a file\n".to_owned())),
        ("/logs/?query=/../etc/passwd", (404, String::new())),
        ("/logs/plain.log?query=web", (406, "path not allowed in query mode\n".to_owned())),
        ("/logs/?query=web&boot=1", (406, "boot: must be less than 1\n".to_owned())),
        ("/logs/?query=web&boot=x", (400, String::new())),
    ] {
        let (status, body) = fetch(&handler, "GET", target, "").await;
        let body = if expected.1.is_empty() { String::new() } else { body };
        assert_eq!((status.as_u16(), body), expected, "{target}");
    }
    // Where the logs of services are turned off, the query has no meaning.
    let handler = local(with(logs), vec![]);
    let (status, body) = fetch(&handler, "GET", "/logs/plain.log?query=web&boot=x", "").await;
    assert_eq!((status.as_u16(), body.as_str()), (200, "of a file\n"));
}

#[tokio::test]
async fn usage_is_summed_and_broken_down() {
    let handler = local(views(vec![]), vec![]);
    let (status, body) = fetch(&handler, "GET", "/stats/summary", "").await;
    let reported: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(reported["node"]["nodeName"], "n1");
    assert_eq!(reported["pods"][0]["podRef"]["name"], "web");
    assert!(reported["node"].get("rlimit").is_some());
    let only = "/stats/summary?only_cpu_and_memory=true";
    let (_, body) = fetch(&handler, "GET", only, "").await;
    let reported: Value = serde_json::from_str(&body).unwrap();
    assert!(reported["node"].get("rlimit").is_none());
    for (target, text) in [
        ("/metrics/cadvisor", "a 1\nb 2\n"),
        ("/metrics/resource", "r 1\n"),
        ("/metrics/probes", "p 1\n"),
    ] {
        let (status, body) = fetch(&handler, "GET", target, "").await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, text));
    }
}

#[tokio::test]
async fn legacy_stats_are_served_for_machine_cgroups_and_containers() {
    let pods = vec![(pod("a"), None), (pod("b"), None)];
    let handler = local(views(pods), vec![]);
    let table: &[(&str, &str, &str, u16, &str)] = &[
        ("GET", "/stats/", "", 200, "{\"name\":\"/\",\"stats\":[{\"cpu\":{}}]}"),
        ("GET", "/stats", "", 200, "\"name\":\"/\""),
        ("POST", "/stats/", "{\"num_stats\": 1}", 200, "\"stats\""),
        ("POST", "/stats/", "{\"num_stats\": \"x\"}", 400, "\"num_stats\""),
        ("GET", "/stats/?end=2001-01-01T00:00:00Z", "", 200, "{\"name\":\"/\"}"),
        ("GET", "/stats/container", "", 200, "{\"/\":{\"name\":\"/\""),
        ("POST", "/stats/container", "{\"containerName\":\"a/\"}", 200, "{\"/a\":{"),
        ("GET", "/stats/container?containerName=b", "", 404, "cgroup \"/b\" not found"),
        ("GET", "/stats/container?subcontainers=some", "", 400, "\"subcontainers\""),
        ("GET", "/stats/a/c", "", 200, "\"name\":\"/uid-a/c\""),
        ("GET", "/stats/default/a/uid-a/c", "", 200, "\"name\":\"/uid-a/c\""),
        ("GET", "/stats/default/a/uid-x/c", "", 404, "another UID"),
        ("GET", "/stats/none/c", "", 404, "pod does not exist"),
        ("GET", "/stats/a/none", "", 404, "container not found (\"none\")"),
        (
            "GET",
            "/stats/b/c",
            "",
            404,
            "container not found (\"c\"): no running process in a cgroup",
        ),
        ("GET", "/stats/a/c/d", "", 404, "404 page not found"),
        ("PUT", "/stats/a/c", "", 405, "405"),
    ];
    for (method, target, body, status, text) in table {
        let (reported, answer) = fetch(&handler, method, target, body).await;
        assert_eq!(reported.as_u16(), *status, "{method} {target}: {answer}");
        assert!(answer.contains(text), "{method} {target}: {answer}");
    }
    let long = " ".repeat(crate::server::handlers::legacy_stats::MAX_BODY + 1);
    let (reported, _) = fetch(&handler, "POST", "/stats/", &long).await;
    assert_eq!(reported, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn usage_that_cannot_be_read_is_an_error_and_not_nothing() {
    let mut views = views(vec![]);
    views.stats.summary = Arc::new(|_| Box::pin(std::future::ready(None)));
    views.stats.cadvisor = Arc::new(|| Box::pin(std::future::ready(None)));
    views.stats.infos = Arc::new(|_| Box::pin(std::future::ready(None)));
    let handler = local(views, vec![]);
    for target in ["/stats/summary", "/metrics/cadvisor", "/stats/"] {
        let (status, body) = fetch(&handler, "GET", target, "").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(body.starts_with("Internal Error: "), "{body}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_paths_of_the_table_until_the_response_is_sent() {
    let metrics = crate::base::metrics::Metrics::new();
    let views =
        RouteHandlers { http_metrics: Some(HttpMetrics::register(&metrics)), ..views(vec![]) };
    let handler = local(views, vec![]);
    let request = hyper::Request::builder().uri("/metrics/cadvisor");
    let request = request.body(Full::new(bytes::Bytes::new())).unwrap();
    let response = answer(&handler, request, &CancellationToken::new()).await;
    let labels =
        r#"{method="GET",path="metrics/cadvisor",server_type="readwrite",long_running="false"}"#;
    let shows = |line: String| {
        let text = metrics.text();
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    };
    shows(format!("kubelet_http_requests_total{labels} 1"));
    shows(format!("kubelet_http_inflight_requests{labels} 1"));
    response.into_body().collect().await.unwrap();
    shows(format!("kubelet_http_inflight_requests{labels} 0"));
    shows(format!("kubelet_http_requests_duration_seconds_count{labels} 1"));
    for odd in ["/nothing/here", "/exec/../../x"] {
        fetch(&handler, "GET", odd, "").await;
    }
    shows(format!("kubelet_http_requests_total{} 2", labels.replace("metrics/cadvisor", "other")));
}
