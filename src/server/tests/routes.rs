use super::*;
use hyper::Method;

fn get(port: Port, target: &str) -> Result<Route, RouteError> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    route(port, &Method::GET, path, query).map(|(_, route)| route)
}

fn explained(uid: Option<&str>) -> Route {
    Route::Explain(PodName {
        namespace: "shop".into(),
        name: "web-n1.example".into(),
        uid: uid.map(Into::into),
    })
}

#[test]
fn each_path_has_its_route() {
    let plain_health = Route::Health(HealthQuery::default());
    let all_events = Route::Events(EventsQuery::default());
    let rows = [
        ("/pods", Route::Pods),
        ("/pods/", Route::Pods),
        ("/pods?whatever=1", Route::Pods),
        ("/runningpods/", Route::RunningPods),
        ("/runningpods", Route::RunningPods),
        ("/events", all_events),
        ("/pods?x=%ff", Route::Pods),
        ("/metrics", Route::Metrics),
        ("/metrics/slis", Route::SliMetrics),
        ("/metrics/cadvisor", Route::CadvisorMetrics),
        ("/metrics/resource", Route::ResourceMetrics),
        ("/metrics/probes", Route::ProbeMetrics),
        ("/stats/summary", Route::Summary(false)),
        ("/stats/summary?only_cpu_and_memory=true", Route::Summary(true)),
        ("/stats/summary?only_cpu_and_memory=1", Route::Summary(false)),
        ("/explain", Route::Overview(OverviewQuery::default())),
        (
            "/explain/?after=a&after=1-2",
            Route::Overview(OverviewQuery { after: Some("1-2".into()) }),
        ),
        ("/explain/shop/web-n1.example", explained(None)),
        ("/explain/shop/web-n1.example?uid=u", explained(Some("u"))),
        ("/healthz", plain_health),
        ("/healthz/ping", Route::HealthCheck("ping".into())),
        ("/healthz/syncloop", Route::HealthCheck("syncloop".into())),
    ];
    for (target, expected) in rows {
        assert_eq!(get(Port::ReadOnly, target), Ok(expected), "{target}");
    }
}

#[test]
fn unknown_paths_are_not_found() {
    let paths = [
        "",
        "/",
        "*",
        "/pod",
        "/pods//",
        "/PODS",
        "/healthz/",
        "/healthz/a/b",
        "/exec",
        "//pods",
        "/%70ods",
        "/explain/shop",
        "/explain/shop/",
        "/explain//web",
        "/explain/shop/web/",
        "/explain/shop/web/main",
        "/explain/shop/..%2fweb",
        "/explain/shop/a_b",
    ];
    for path in paths {
        assert_eq!(get(Port::ReadOnly, path), Err(RouteError::NotFound), "{path:?}");
    }
}

#[test]
fn the_health_port_serves_health_alone() {
    for path in ["/pods", "/runningpods/", "/events", "/metrics", "/explain", "/explain/a/b"] {
        assert_eq!(get(Port::Health, path), Err(RouteError::NotFound), "{path}");
    }
    assert!(get(Port::Health, "/healthz").is_ok());
}

#[test]
fn only_get_and_head_are_allowed() {
    let with =
        |method: Method, path| route(Port::ReadOnly, &method, path, None).map(|(_, route)| route);
    for path in ["/pods", "/healthz", "/healthz/ping", "/metrics", "/events"] {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::CONNECT]
        {
            assert_eq!(with(method, path), Err(RouteError::MethodNotAllowed(&["GET"])), "{path}");
        }
        assert!(with(Method::HEAD, path).is_ok(), "{path}");
    }
    assert_eq!(with(Method::POST, "/nowhere"), Err(RouteError::NotFound));
}

#[test]
fn health_parameters_are_read() {
    let query = |verbose, exclude: &[&str]| {
        Ok(Route::Health(HealthQuery {
            verbose,
            exclude: exclude.iter().map(ToString::to_string).collect(),
        }))
    };
    assert_eq!(get(Port::Health, "/healthz?verbose"), query(true, &[]));
    assert_eq!(get(Port::Health, "/healthz?verbose=false"), query(true, &[]));
    assert_eq!(get(Port::Health, "/healthz?exclude=a&exclude=b"), query(false, &["a", "b"]));
}

#[test]
fn event_parameters_are_read() {
    let expected = EventsQuery {
        namespace: Some("kube-system".into()),
        name: Some("web 1".into()),
        limit: Some(5),
    };
    let read = get(Port::ReadOnly, "/events?namespace=kube-system&name=web%201&limit=5");
    assert_eq!(read, Ok(Route::Events(expected)));
}

#[test]
fn a_malformed_parameter_is_named() {
    let rows = [
        ("/events?limit=many", "limit"),
        ("/events?limit=-1", "limit"),
        ("/events?limit=", "limit"),
        ("/events?limit=99999999999999999999999", "limit"),
        ("/events?name=%zz", "name"),
        ("/healthz?verbose=%", "verbose"),
        ("/healthz?x=%ff", "x"),
    ];
    for (target, parameter) in rows {
        match get(Port::ReadOnly, target) {
            Err(RouteError::BadQuery(bad)) => assert_eq!(bad.parameter, parameter, "{target}"),
            other => panic!("{target}: {other:?}"),
        }
    }
}

#[test]
fn the_document_is_written_from_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/routes.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    if std::env::var_os("WRITE_DOCUMENTS").is_some() {
        std::fs::write(path, document()).unwrap();
    } else {
        let hint = "run it again with WRITE_DOCUMENTS=1 to write it";
        assert!(written == document(), "docs/routes.md is not what the table says; {hint}");
    }
}

/// A path that a pattern matches.
fn example(pattern: &str) -> String {
    let mut path = pattern.replace("{path...}", "a/b");
    while let (Some(start), Some(end)) = (path.find('{'), path.find('}')) {
        path.replace_range(start..=end, "x");
    }
    path
}

#[test]
fn each_row_of_the_table_is_found_by_its_own_path_and_by_no_other_row() {
    for entry in ROUTE_TABLE {
        for port in entry.ports {
            let method = Method::from_bytes(entry.methods[0].as_bytes()).unwrap();
            let found = match route(*port, &method, &example(entry.pattern), None) {
                Ok((found, _)) => found.pattern,
                // A row with required parameters.
                Err(RouteError::BadQuery(_)) => continue,
                Err(other) => panic!("{}: {other}", entry.pattern),
            };
            assert_eq!(found, entry.pattern);
        }
        assert!(entry.about.ends_with('.'), "{}", entry.pattern);
        assert!(!entry.subresources.is_empty(), "{}", entry.pattern);
    }
}

#[test]
fn routes_beyond_pods_and_metrics_need_credentials() {
    for target in ["/configz", "/flagz", "/statusz", "/logs/", "/logs/syslog"] {
        assert_eq!(get(Port::ReadOnly, target), Err(RouteError::NotFound), "{target}");
        assert_eq!(get(Port::Health, target), Err(RouteError::NotFound), "{target}");
        assert!(get(Port::Main, target).is_ok(), "{target}");
        assert!(get(Port::Local, target).is_ok(), "{target}");
    }
    for entry in ROUTE_TABLE.iter().filter(|entry| entry.methods != ["GET"]) {
        assert!(!entry.is_on(Port::ReadOnly) && !entry.is_on(Port::Health), "{}", entry.pattern);
    }
}

#[test]
fn the_rest_of_a_path_is_decoded_once() {
    let rows = [
        ("/logs/", ""),
        ("/logs/pods/", "pods/"),
        ("/logs/a%20b+c/d.log", "a b+c/d.log"),
        ("/logs/..%2f..%2fetc", "../../etc"),
        ("/logs/%252e", "%2e"),
    ];
    for (target, expected) in rows {
        assert_eq!(
            get(Port::Local, target),
            Ok(Route::NodeLogs(expected.into(), Ok(None))),
            "{target}"
        );
    }
    for target in ["/logs", "/logs/%zz", "/logs/%ff"] {
        assert_eq!(get(Port::Local, target), Err(RouteError::NotFound), "{target}");
    }
}
