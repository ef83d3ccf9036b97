//! The route table. Paths are parsed in `route.rs`, the authorization uses the subresources, and `docs/routes.md` is
//! generated from it.

use super::route::{self, Parse, Route};
use crate::model::validation::MAX_MANIFEST_BYTES;
use crate::server::handlers::legacy_stats;
use crate::server::handlers::posted::PostMode;
use std::fmt::Write as _;

/// The port of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// `healthzPort`: health checks only, unauthenticated.
    Health,
    /// `readOnlyPort`: read-only routes, unauthenticated; disabled by default.
    ReadOnly,
    /// `port`: all routes, with authentication and authorization.
    Main,
    /// The socket in the root directory: all routes, for root only.
    Local,
}

/// A group of routes that a setting enables or disables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteGroup {
    /// `enableDebuggingHandlers`.
    Debugging,
    /// `enableDebuggingHandlers`; when off, 404 as in upstream, which does not install them ([`Self::Debugging`]: 405).
    DebuggingNotFound,
    /// `enableSystemLogHandler`.
    SystemLogs,
    /// `enableProfilingHandler`.
    Profiling,
    /// `enableDebugFlagsHandler`.
    DebugFlags,
    /// `--allow-posted-pods`; disabled by default.
    PostedPods,
}

pub(in crate::server) const POSTED_PODS_DISABLED: &str =
    "Posted pods are disabled: --allow-posted-pods is not set.";

impl RouteGroup {
    /// The name of the configuration field or the flag that enables it.
    pub fn field(self) -> &'static str {
        match self {
            Self::Debugging | Self::DebuggingNotFound => "enableDebuggingHandlers",
            Self::SystemLogs => "enableSystemLogHandler",
            Self::Profiling => "enableProfilingHandler",
            Self::DebugFlags => "enableDebugFlagsHandler",
            Self::PostedPods => "--allow-posted-pods",
        }
    }

    /// How a route of this group responds, given all disabled groups. The texts are upstream's.
    pub(in crate::server) fn state(self, disabled: &[Self]) -> RouteGroupState {
        if self != Self::PostedPods && disabled.contains(&Self::Debugging) {
            return match self {
                Self::DebuggingNotFound | Self::DebugFlags => RouteGroupState::NotFound,
                _ => RouteGroupState::MethodNotAllowed("Debug endpoints are disabled."),
            };
        }
        let refused = RouteGroupState::MethodNotAllowed;
        match self {
            Self::Debugging | Self::DebuggingNotFound => RouteGroupState::Enabled,
            _ if !disabled.contains(&self) => RouteGroupState::Enabled,
            Self::SystemLogs => refused("logs endpoint is disabled."),
            Self::Profiling => refused("profiling endpoint is disabled."),
            Self::DebugFlags => refused("flags endpoint is disabled."),
            Self::PostedPods => refused(POSTED_PODS_DISABLED),
        }
    }
}

/// How a route of a [`RouteGroup`] responds.
pub(in crate::server) enum RouteGroupState {
    Enabled,
    /// 405 with this text.
    MethodNotAllowed(&'static str),
    NotFound,
}

/// An entry of the route table.
#[derive(Debug)]
pub struct RouteEntry {
    /// The path pattern. `{name}` matches one segment, `{name...}` the rest. A trailing slash in the pattern is
    /// optional in a request; without one, a request must have none.
    pub pattern: &'static str,
    /// The methods. GET includes HEAD.
    pub methods: &'static [&'static str],
    /// The ports that serve it.
    pub ports: &'static [Port],
    /// On [`Port::Main`]: subresources of `nodes`, of which the user needs access to one; checked in this order, the
    /// most specific first.
    pub subresources: &'static [&'static str],
    /// Maximum size of the body in bytes; `None` if no body is expected.
    pub max_body: Option<usize>,
    /// The group by which the route can be disabled; `None` if it cannot.
    pub group: Option<RouteGroup>,
    /// The description in `docs/routes.md`.
    pub about: &'static str,
    pub(super) parse: Parse,
}

impl RouteEntry {
    /// Whether the port serves it.
    pub fn is_on(&self, port: Port) -> bool {
        self.ports.contains(&port)
    }

    /// Whether it has this method.
    pub fn allows(&self, method: &str) -> bool {
        let requested = if method == "HEAD" { "GET" } else { method };
        self.methods.contains(&requested)
    }
}

const ALL_PORTS: &[Port] = &[Port::Health, Port::ReadOnly, Port::Main, Port::Local];
const RESTRICTED_PORTS: &[Port] = &[Port::Main, Port::Local];
const READ_PORTS: &[Port] = &[Port::ReadOnly, Port::Main, Port::Local];

const GET: &[&str] = &["GET"];
const GET_OR_POST: &[&str] = &["GET", "POST"];
const POST: &[&str] = &["POST"];
const PUT: &[&str] = &["PUT"];

/// Maximum size of a form, in bytes.
const MAX_FORM_BODY: usize = 64 * 1024;

/// A route that reads, and cannot be disabled.
const fn read(
    pattern: &'static str,
    subresources: &'static [&'static str],
    parse: Parse,
) -> RouteEntry {
    RouteEntry {
        pattern,
        methods: GET,
        ports: READ_PORTS,
        subresources,
        max_body: None,
        group: None,
        about: "",
        parse,
    }
}

/// A route on the restricted ports that a group disables.
const fn restricted(
    pattern: &'static str,
    subresources: &'static [&'static str],
    parse: Parse,
    group: RouteGroup,
) -> RouteEntry {
    let entry = read(pattern, subresources, parse);
    entry.ports(RESTRICTED_PORTS).group(group)
}

impl RouteEntry {
    const fn ports(self, ports: &'static [Port]) -> Self {
        Self { ports, ..self }
    }

    const fn group(self, group: RouteGroup) -> Self {
        let group = Some(group);
        Self { group, ..self }
    }

    const fn methods(self, methods: &'static [&'static str]) -> Self {
        Self { methods, ..self }
    }

    const fn max_body(self, bytes: usize) -> Self {
        let max_body = Some(bytes);
        Self { max_body, ..self }
    }

    const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }
}

/// All routes, in the order of the documentation. Patterns do not overlap.
#[rustfmt::skip] // Two lines per route read best.
pub static ROUTE_TABLE: &[RouteEntry] = &[
    read("/healthz", &["healthz", "proxy"], route::health).ports(ALL_PORTS)
        .about("Health: `ok`, or 500 with the checks that fail. `verbose` lists all checks, `exclude=NAME` leaves one out."),
    read("/healthz/{check}", &["healthz", "proxy"], route::health_check).ports(ALL_PORTS)
        .about("One check, with its reason when it fails."),
    read("/pods/", &["pods", "proxy"], |_| Ok(Route::Pods))
        .about("Every known pod with its status, as a `v1` PodList."),
    read("/runningpods/", &["pods", "proxy"], |_| Ok(Route::RunningPods)).group(RouteGroup::Debugging)
        .about("Pods that the runtime runs, as a `v1` PodList of names and images."),
    read("/events/", &["pods", "proxy"], route::events)
        .about("Recent events, newest last, as a `v1` EventList; `namespace`, `name`, `limit`."),
    read("/explain/", &["pods", "proxy"], route::overview)
        .about("Every known pod, a row each. With `after=VERSION` the response waits for another version."),
    read("/explain/{namespace}/{pod}", &["pods", "proxy"], route::explain)
        .about("Why a pod is in its state; `uid` selects one of several pods with this name."),
    read("/", &["pods", "proxy"], route::node_page).ports(RESTRICTED_PORTS)
        .about("The node's pods, as a page for a browser; with `after=VERSION`, once the version is another one."),
    read("/pod/{namespace}/{pod}", &["pods", "proxy"], route::pod_page).ports(RESTRICTED_PORTS)
        .about("One pod with its timeline, as a page for a browser; `uid` and `after` as above."),
    read("/metrics", &["metrics"], |_| Ok(Route::Metrics))
        .about("The kubelet's own metrics, for Prometheus."),
    read("/metrics/slis", &["metrics"], |_| Ok(Route::SliMetrics))
        .about("The results of health checks, for service level indicators."),
    read("/metrics/cadvisor", &["metrics"], |_| Ok(Route::CadvisorMetrics))
        .about("Usage of containers, pods and the machine: cAdvisor's series, read from cgroups."),
    read("/metrics/resource", &["metrics"], |_| Ok(Route::ResourceMetrics))
        .about("CPU, memory and swap of containers, pods and the node, for metrics-server."),
    read("/metrics/probes", &["metrics"], |_| Ok(Route::ProbeMetrics))
        .about("Probe results and durations."),
    read("/stats/summary", &["stats"], route::summary)
        .about("Usage of the node, its pods and their volumes (`stats.k8s.io/v1alpha1`); `only_cpu_and_memory=true` leaves out the rest."),
    restricted("/stats/", &["stats"], route::machine_info, RouteGroup::Debugging).methods(GET_OR_POST).max_body(legacy_stats::MAX_BODY)
        .about("Usage of the machine, as in early kubelets: cAdvisor's container information with one sample; `start`, `end`, in the query or in a JSON body."),
    restricted("/stats/container", &["stats"], route::cgroup_info, RouteGroup::Debugging).methods(GET_OR_POST).max_body(legacy_stats::MAX_BODY)
        .about("As `/stats/`, for the cgroup `containerName`, and with `subcontainers` of those below it, by path."),
    restricted("/stats/{pod}/{container}", &["stats"], route::container_info, RouteGroup::Debugging).methods(GET_OR_POST).max_body(legacy_stats::MAX_BODY)
        .about("As `/stats/`, for a container of a pod in the namespace `default`."),
    restricted("/stats/{namespace}/{pod}/{uid}/{container}", &["stats"], route::container_info, RouteGroup::Debugging).methods(GET_OR_POST).max_body(legacy_stats::MAX_BODY)
        .about("As `/stats/`, for a container of the pod with this UID."),
    restricted("/configz", &["configz", "proxy"], |_| Ok(Route::Configz), RouteGroup::DebuggingNotFound)
        .about("The configuration in force, without secrets."),
    restricted("/flagz", &["configz"], |_| Ok(Route::Flagz), RouteGroup::DebuggingNotFound)
        .about("Every flag with its value, without secrets; human-readable."),
    restricted("/statusz", &["statusz"], |_| Ok(Route::Statusz), RouteGroup::DebuggingNotFound)
        .about("Version, start and age of the process; human-readable."),
    restricted("/debug/flags/v", &["proxy"], |_| Ok(Route::PutVerbosity), RouteGroup::DebugFlags).methods(PUT).max_body(64)
        .about("Sets the log verbosity to the number in the body."),
    restricted("/debug/pprof/profile", &["proxy"], route::profile, RouteGroup::Profiling)
        .about("A CPU profile of `seconds` (30 by default, at most 300), for `go tool pprof`; one at a time."),
    restricted("/container", &["proxy"], |_| Ok(Route::PostPods(PostMode::Add)), RouteGroup::PostedPods).methods(POST).max_body(MAX_MANIFEST_BYTES)
        .about("Posts one or several pods, each replacing the one of its name; the response lists them with names and UIDs."),
    restricted("/containers", &["proxy"], |_| Ok(Route::PostPods(PostMode::Replace)), RouteGroup::PostedPods).methods(POST).max_body(MAX_MANIFEST_BYTES)
        .about("Replaces all posted pods by a list."),
    restricted("/checkpoint/{namespace}/{pod}/{container}", &["checkpoint"], route::checkpoint, RouteGroup::DebuggingNotFound).methods(POST)
        .about("Checkpoints a running container to an archive under the root directory; `timeout` in seconds."),
    read("/podInfo", &["pods", "proxy"], route::pod_info)
        .about("The status of the pod `podID` in `podNamespace`, optionally with the UID `UUID`, as in early kubelets."),
    read("/spec/", &["spec", "proxy"], |_| Ok(Route::Machine))
        .about("Processors, memory and boot of the machine."),
    restricted("/logs/{path...}", &["log"], route::node_logs, RouteGroup::SystemLogs)
        .about("The node's logs: files and directory listings below `/var/log`; `Range` and `If-Modified-Since` are honoured."),
    restricted("/containerLogs/{namespace}/{pod}/{container}", &["proxy"], route::container_logs, RouteGroup::Debugging)
        .about("The log of a container: `follow`, `previous`, `tailLines`, `limitBytes`, `sinceSeconds`, `sinceTime`, `timestamps`."),
    restricted("/exec/{namespace}/{pod}/{container}", &["proxy"], route::exec, RouteGroup::Debugging).methods(GET_OR_POST)
        .about("A command in a container, over SPDY or WebSocket: `command` for each argument; `input`, `output`, `error`, `tty`."),
    restricted("/exec/{namespace}/{pod}/{uid}/{container}", &["proxy"], route::exec, RouteGroup::Debugging).methods(GET_OR_POST)
        .about("As above, for the pod with this UID."),
    restricted("/attach/{namespace}/{pod}/{container}", &["proxy"], route::attach, RouteGroup::Debugging).methods(GET_OR_POST)
        .about("Attaches to a container, over SPDY or WebSocket: `input`, `output`, `error`, `tty`."),
    restricted("/attach/{namespace}/{pod}/{uid}/{container}", &["proxy"], route::attach, RouteGroup::Debugging).methods(GET_OR_POST)
        .about("As above, for the pod with this UID."),
    restricted("/portForward/{namespace}/{pod}", &["proxy"], route::port_forward, RouteGroup::Debugging).methods(GET_OR_POST)
        .about("Ports of a pod, over SPDY or WebSocket; over the latter, `port` names them."),
    restricted("/portForward/{namespace}/{pod}/{uid}", &["proxy"], route::port_forward, RouteGroup::Debugging).methods(GET_OR_POST)
        .about("As above, for the pod with this UID."),
    restricted("/run/{namespace}/{pod}/{container}", &["proxy"], route::run, RouteGroup::Debugging).methods(POST).max_body(MAX_FORM_BODY)
        .about("Runs a command, `cmd` split at spaces, in a container and responds with its output; `cmd` may be in a form."),
    restricted("/run/{namespace}/{pod}/{uid}/{container}", &["proxy"], route::run, RouteGroup::Debugging).methods(POST).max_body(MAX_FORM_BODY)
        .about("As above, for the pod with this UID."),
];

/// Generates the table as Markdown.
pub fn document() -> String {
    let mut text = String::from(
        "# Routes\n\nWritten from the table in `src/server/router/table.rs`; a test compares them.\n\n\
         Ports: *health* is `healthzPort`, *read-only* is `readOnlyPort`, *main* is `port` (10250), *local* is the socket\n\
         `kubelet.sock` in the root directory, for root in the kubelet's own mount and pid namespaces. On the main port a client needs the right to one\n\
         of the named subresources of `nodes`; the verb follows from the method (GET: get, POST: create, PUT: update).\n\n\
         | path | methods | ports | subresources | enabled by | what |\n|---|---|---|---|---|---|\n",
    );
    for entry in ROUTE_TABLE {
        let ports = entry.ports.iter().map(|port| match port {
            Port::Health => "health",
            Port::ReadOnly => "read-only",
            Port::Main => "main",
            Port::Local => "local",
        });
        let group = entry.group.map_or(String::new(), |group| format!("`{}`", group.field()));
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {group} | {} |",
            entry.pattern,
            entry.methods.join(", "),
            ports.collect::<Vec<_>>().join(", "),
            entry.subresources.join(", "),
            entry.about
        );
    }
    text
}
