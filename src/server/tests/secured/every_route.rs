//! Every row of the table of routes, requested with all kinds of credentials. A new row fails here until it has
//! an entry.

use super::*;
use crate::server::router::{Port, ROUTE_TABLE, RouteEntry};

/// A request for a route, its response for an authorized client, and its response to a malformed query.
struct Row {
    pattern: &'static str,
    target: &'static str,
    status: u16,
    malformed: &'static str,
    refusal: (u16, &'static str),
}

/// A parameter that is not read may be anything.
const NOT_READ: (u16, &str) = (200, "");
const BAD_ESCAPE: (u16, &str) = (400, "\"x\": % must be followed by two hexadecimal digits");

const fn row(
    pattern: &'static str,
    target: &'static str,
    status: u16,
    malformed: &'static str,
    refusal: (u16, &'static str),
) -> Row {
    Row { pattern, target, status, malformed, refusal }
}

/// Of the pods here, only `/explain` knows `web`, and only `/pods` knows `a` and `b`.
const ROWS: &[Row] = &[
    row("/healthz", "/healthz", 500, "/healthz?x=%zz", BAD_ESCAPE),
    row("/healthz/{check}", "/healthz/ping", 200, "/healthz/nothing", (404, "404 page not found")),
    row("/pods/", "/pods", 200, "/pods?x=%zz", NOT_READ),
    row("/runningpods/", "/runningpods/", 200, "/runningpods/?x=%zz", NOT_READ),
    row("/events/", "/events", 200, "/events?limit=many", (400, "\"limit\"")),
    row("/explain/", "/explain", 200, "/explain?x=%zz", BAD_ESCAPE),
    row(
        "/explain/{namespace}/{pod}",
        "/explain/default/web",
        200,
        "/explain/default/none",
        (404, "pod default/none not found"),
    ),
    row("/", "/", 200, "/?x=%zz", BAD_ESCAPE),
    row(
        "/pod/{namespace}/{pod}",
        "/pod/default/web",
        200,
        "/pod/default/none",
        (404, "<h1>No such pod</h1>"),
    ),
    row("/metrics", "/metrics", 200, "/metrics?x=%zz", NOT_READ),
    row("/metrics/slis", "/metrics/slis", 200, "/metrics/slis?x=%zz", NOT_READ),
    row("/metrics/cadvisor", "/metrics/cadvisor", 200, "/metrics/cadvisor?x=%zz", NOT_READ),
    row("/metrics/resource", "/metrics/resource", 200, "/metrics/resource?x=%zz", NOT_READ),
    row("/metrics/probes", "/metrics/probes", 200, "/metrics/probes?x=%zz", NOT_READ),
    row("/stats/summary", "/stats/summary", 200, "/stats/summary?x=%zz", BAD_ESCAPE),
    row("/stats/", "/stats/", 200, "/stats/?start=soon", (400, "\"start\"")),
    row(
        "/stats/container",
        "/stats/container?containerName=/a",
        200,
        "/stats/container?num_stats=many",
        (400, "\"num_stats\""),
    ),
    row(
        "/stats/{pod}/{container}",
        "/stats/a/c",
        200,
        "/stats/a/none",
        (404, "container not found (\"none\")"),
    ),
    row(
        "/stats/{namespace}/{pod}/{uid}/{container}",
        "/stats/default/a/uid-a/c",
        200,
        "/stats/default/a/other/c",
        (404, "the pod of that name has another UID"),
    ),
    row("/configz", "/configz", 200, "/configz?x=%zz", NOT_READ),
    row("/flagz", "/flagz", 200, "/flagz?x=%zz", NOT_READ),
    row("/statusz", "/statusz", 200, "/statusz?x=%zz", NOT_READ),
    row("/debug/flags/v", "/debug/flags/v", 400, "/debug/flags/v?x=%zz", (400, "failed to set")),
    row(
        "/debug/pprof/profile",
        "/debug/pprof/profile?seconds=1",
        200,
        "/debug/pprof/profile?seconds=301",
        (400, "\"seconds\": \"301\""),
    ),
    row("/container", "/container", 405, "/container?x=%zz", (405, "Posted pods are disabled")),
    row("/containers", "/containers", 405, "/containers?x=%zz", (405, "Posted pods are disabled")),
    row(
        "/checkpoint/{namespace}/{pod}/{container}",
        "/checkpoint/default/a/c",
        404,
        "/checkpoint/default/a/c?timeout=soon",
        (400, "\"timeout\""),
    ),
    row("/podInfo", "/podInfo?podID=a&podNamespace=default", 200, "/podInfo", (400, "\"podID\"")),
    row("/spec/", "/spec/", 200, "/spec/?x=%zz", NOT_READ),
    row("/logs/{path...}", "/logs/", 404, "/logs/?x=%zz", (404, "there is no such file")),
    row(
        "/containerLogs/{namespace}/{pod}/{container}",
        "/containerLogs/default/a/c",
        404,
        "/containerLogs/default/a/c?tailLines=all",
        (400, "\"tailLines\""),
    ),
    row(
        "/exec/{namespace}/{pod}/{container}",
        "/exec/default/a/c?command=ls&output=1",
        404,
        "/exec/default/a/c?command=ls",
        (400, ""),
    ),
    row(
        "/exec/{namespace}/{pod}/{uid}/{container}",
        "/exec/default/a/uid-a/c?command=ls&output=1",
        404,
        "/exec/default/a/uid-a/c?output=1",
        (400, "\"command\""),
    ),
    row(
        "/attach/{namespace}/{pod}/{container}",
        "/attach/default/a/c?output=1",
        404,
        "/attach/default/a/c",
        (400, ""),
    ),
    row(
        "/attach/{namespace}/{pod}/{uid}/{container}",
        "/attach/default/a/uid-a/c?output=1",
        404,
        "/attach/default/a/uid-a/c",
        (400, ""),
    ),
    row(
        "/portForward/{namespace}/{pod}",
        "/portForward/default/a?port=80",
        404,
        "/portForward/default/a?port=http",
        (400, "\"port\""),
    ),
    row(
        "/portForward/{namespace}/{pod}/{uid}",
        "/portForward/default/a/uid-a?port=80",
        404,
        "/portForward/default/a/uid-a?port=0",
        (400, "\"port\""),
    ),
    row(
        "/run/{namespace}/{pod}/{container}",
        "/run/default/a/c?cmd=ls",
        404,
        "/run/default/a/c?cmd=%zz",
        (400, "\"cmd\""),
    ),
    row(
        "/run/{namespace}/{pod}/{uid}/{container}",
        "/run/default/a/uid-a/c?cmd=ls",
        404,
        "/run/default/a/uid-a/c?cmd=%zz",
        (400, "\"cmd\""),
    ),
];

fn row_of(entry: &RouteEntry) -> &'static Row {
    let mut of_it = ROWS.iter().filter(|row| row.pattern == entry.pattern);
    let row = of_it.next();
    row.unwrap_or_else(|| panic!("{} is not in this table", entry.pattern))
}

/// The user `only:NAME` has the right to that subresource alone.
fn by_name(kind: &str, spec: &Value) -> Answer {
    if kind == "tokenreviews" {
        let user = json!({"username": spec["token"]});
        return Answer::Json(201, json!({"authenticated": true, "user": user}));
    }
    let requested = spec["resourceAttributes"]["subresource"].as_str().unwrap();
    let user = spec["user"].as_str().unwrap();
    Answer::Json(201, json!({"allowed": user == format!("only:{requested}")}))
}

/// Sends each request on a connection of its own.
struct Clients {
    served: Served,
    plain: ClientConfig,
}

impl Clients {
    async fn fetch(&self, method: &str, target: &str, token: Option<&str>) -> (u16, String) {
        let credentials = token.map(bearer).unwrap_or_default();
        let request = format!("{method} {target} HTTP/1.0\r\n{credentials}\r\n");
        answer(&send(&self.served, &self.plain, &request).await)
    }
}

/// Errors in the responses of one row of the table.
async fn faults(clients: &Clients, entry: &RouteEntry) -> Vec<String> {
    let row = row_of(entry);
    let mut faults = Vec::new();
    let mut check = |what: String, (status, text): (u16, String), (wanted, named): (u16, &str)| {
        if status != wanted || !text.contains(named) {
            let text = text.get(..200).unwrap_or(&text);
            faults.push(format!("{what}: {status} {text:?}, not {wanted} {named:?}"));
        }
    };
    let forbidden = format!("subresource(s)=[{}]", entry.subresources.join(" "));
    for method in entry.methods.iter().chain(&["DELETE"]) {
        let what = |who: &str| format!("{who}: {method} {}", row.target);
        let answer = clients.fetch(method, row.target, None).await;
        check(what("nobody"), answer, (401, "Unauthorized"));
        let answer = clients.fetch(method, row.target, Some("only:sand")).await;
        check(what("stranger"), answer, (403, &forbidden));
    }
    for subresource in entry.subresources {
        let token = format!("only:{subresource}");
        for method in entry.methods {
            let answer = clients.fetch(method, row.target, Some(&token)).await;
            let what = format!("{token}: {method} {}", row.target);
            check(what, answer, (row.status, ""));
        }
        let answer = clients.fetch("DELETE", row.target, Some(&token)).await;
        let what = format!("{token}: DELETE {}", row.target);
        check(what, answer, (405, "405 method not allowed"));
        let method = entry.methods[0];
        let answer = clients.fetch(method, row.malformed, Some(&token)).await;
        let what = format!("{token}: {method} {}", row.malformed);
        check(what, answer, row.refusal);
    }
    faults
}

#[tokio::test]
async fn each_route_refuses_unauthenticated_forbidden_and_malformed_requests() {
    let _turn = crate::host::profile::ONE_PROFILE.lock().await;
    let api = Scripted::start(by_name).await;
    let setting = Setting::with_reviews(&api).await;
    let clients = Clients { plain: setting.client(None), served: setting.serve().await };
    let mut found = Vec::new();
    for entry in ROUTE_TABLE.iter().filter(|entry| entry.is_on(Port::Main)) {
        found.extend(faults(&clients, entry).await);
    }
    assert_eq!(found, [""; 0], "{found:#?}");
    clients.served.stop().await;
}
