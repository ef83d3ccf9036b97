//! The route table. Paths are parsed in `route.rs`, the authorization uses the subresources, and `docs/routes.md` is
//! generated from it.

use super::route::{self, Parse};
use crate::model::validation::MAX_MANIFEST_BYTES;
use crate::server::{legacy_stats, posted::PostMode};
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

/// Maximum size of a manifest, in bytes.
const MAX_MANIFEST_BODY: Option<usize> = Some(MAX_MANIFEST_BYTES);

const GET: &[&str] = &["GET"];
const GET_OR_POST: &[&str] = &["GET", "POST"];

/// Maximum size of a form, in bytes.
const MAX_FORM_BODY: usize = 64 * 1024;

/// Template of routes that read and cannot be disabled.
const READ_ROUTE: RouteEntry = RouteEntry {
    pattern: "",
    methods: GET,
    ports: READ_PORTS,
    subresources: &["proxy"],
    max_body: None,
    group: None,
    about: "",
    parse: route::not_found,
};

/// Template of the statistics routes that upstream has removed.
const LEGACY_STATS_ROUTE: RouteEntry = RouteEntry {
    methods: GET_OR_POST,
    ports: RESTRICTED_PORTS,
    subresources: &["stats"],
    max_body: Some(legacy_stats::MAX_BODY),
    group: Some(RouteGroup::Debugging),
    ..READ_ROUTE
};

/// All routes, in the order of the documentation. Patterns do not overlap.
pub static ROUTE_TABLE: &[RouteEntry] = &[
    RouteEntry {
        pattern: "/healthz",
        ports: ALL_PORTS,
        subresources: &["healthz", "proxy"],
        about: "Health: `ok`, or 500 with the checks that fail. `verbose` lists all checks, `exclude=NAME` leaves one out.",
        parse: route::health,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/healthz/{check}",
        ports: ALL_PORTS,
        subresources: &["healthz", "proxy"],
        about: "One check, with its reason when it fails.",
        parse: route::health_check,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/pods/",
        subresources: &["pods", "proxy"],
        about: "Every known pod with its status, as a `v1` PodList.",
        parse: |_| Ok(route::Route::Pods),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/runningpods/",
        subresources: &["pods", "proxy"],
        group: Some(RouteGroup::Debugging),
        about: "Pods that the runtime runs, as a `v1` PodList of names and images.",
        parse: |_| Ok(route::Route::RunningPods),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/events/",
        subresources: &["pods", "proxy"],
        about: "Recent events, newest last, as a `v1` EventList; `namespace`, `name`, `limit`.",
        parse: route::events,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/explain/",
        subresources: &["pods", "proxy"],
        about: "Every known pod, a row each. With `after=VERSION` the response waits for another version.",
        parse: route::overview,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/explain/{namespace}/{pod}",
        subresources: &["pods", "proxy"],
        about: "Why a pod is in its state; `uid` selects one of several pods with this name.",
        parse: route::explain,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/",
        ports: RESTRICTED_PORTS,
        subresources: &["pods", "proxy"],
        about: "The node's pods, as a page for a browser; with `after=VERSION`, once the version is another one.",
        parse: route::node_page,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/pod/{namespace}/{pod}",
        ports: RESTRICTED_PORTS,
        subresources: &["pods", "proxy"],
        about: "One pod with its timeline, as a page for a browser; `uid` and `after` as above.",
        parse: route::pod_page,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/metrics",
        subresources: &["metrics"],
        about: "The kubelet's own metrics, for Prometheus.",
        parse: |_| Ok(route::Route::Metrics),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/metrics/slis",
        subresources: &["metrics"],
        about: "The results of health checks, for service level indicators.",
        parse: |_| Ok(route::Route::SliMetrics),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/metrics/cadvisor",
        subresources: &["metrics"],
        about: "Usage of containers, pods and the machine: cAdvisor's series, read from cgroups.",
        parse: |_| Ok(route::Route::CadvisorMetrics),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/metrics/resource",
        subresources: &["metrics"],
        about: "CPU, memory and swap of containers, pods and the node, for metrics-server.",
        parse: |_| Ok(route::Route::ResourceMetrics),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/metrics/probes",
        subresources: &["metrics"],
        about: "Probe results and durations.",
        parse: |_| Ok(route::Route::ProbeMetrics),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/stats/summary",
        subresources: &["stats"],
        about: "Usage of the node, its pods and their volumes (`stats.k8s.io/v1alpha1`); `only_cpu_and_memory=true` leaves out the rest.",
        parse: route::summary,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/stats/",
        about: "Usage of the machine, as in early kubelets: cAdvisor's container information with one sample; `start`, `end`, in the query or in a JSON body.",
        parse: route::machine_info,
        ..LEGACY_STATS_ROUTE
    },
    RouteEntry {
        pattern: "/stats/container",
        about: "As `/stats/`, for the cgroup `containerName`, and with `subcontainers` of those below it, by path.",
        parse: route::cgroup_info,
        ..LEGACY_STATS_ROUTE
    },
    RouteEntry {
        pattern: "/stats/{pod}/{container}",
        about: "As `/stats/`, for a container of a pod in the namespace `default`.",
        parse: route::container_info,
        ..LEGACY_STATS_ROUTE
    },
    RouteEntry {
        pattern: "/stats/{namespace}/{pod}/{uid}/{container}",
        about: "As `/stats/`, for a container of the pod with this UID.",
        parse: route::container_info,
        ..LEGACY_STATS_ROUTE
    },
    RouteEntry {
        pattern: "/configz",
        ports: RESTRICTED_PORTS,
        subresources: &["configz", "proxy"],
        group: Some(RouteGroup::DebuggingNotFound),
        about: "The configuration in force, without secrets.",
        parse: |_| Ok(route::Route::Configz),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/flagz",
        ports: RESTRICTED_PORTS,
        subresources: &["configz"],
        group: Some(RouteGroup::DebuggingNotFound),
        about: "Every flag with its value, without secrets; human-readable.",
        parse: |_| Ok(route::Route::Flagz),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/statusz",
        ports: RESTRICTED_PORTS,
        subresources: &["statusz"],
        group: Some(RouteGroup::DebuggingNotFound),
        about: "Version, start and age of the process; human-readable.",
        parse: |_| Ok(route::Route::Statusz),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/debug/flags/v",
        methods: &["PUT"],
        ports: RESTRICTED_PORTS,
        max_body: Some(64),
        group: Some(RouteGroup::DebugFlags),
        about: "Sets the log verbosity to the number in the body.",
        parse: |_| Ok(route::Route::PutVerbosity),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/debug/pprof/profile",
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Profiling),
        about: "A CPU profile of `seconds` (30 by default, at most 300), for `go tool pprof`; one at a time.",
        parse: route::profile,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/container",
        methods: &["POST"],
        ports: RESTRICTED_PORTS,
        max_body: MAX_MANIFEST_BODY,
        group: Some(RouteGroup::PostedPods),
        about: "Posts one or several pods, each replacing the one of its name; the response lists them with names and UIDs.",
        parse: |_| Ok(route::Route::PostPods(PostMode::Add)),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/containers",
        methods: &["POST"],
        ports: RESTRICTED_PORTS,
        max_body: MAX_MANIFEST_BODY,
        group: Some(RouteGroup::PostedPods),
        about: "Replaces all posted pods by a list.",
        parse: |_| Ok(route::Route::PostPods(PostMode::Replace)),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/checkpoint/{namespace}/{pod}/{container}",
        methods: &["POST"],
        ports: RESTRICTED_PORTS,
        subresources: &["checkpoint"],
        group: Some(RouteGroup::DebuggingNotFound),
        about: "Checkpoints a running container to an archive under the root directory; `timeout` in seconds.",
        parse: route::checkpoint,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/podInfo",
        subresources: &["pods", "proxy"],
        about: "The status of the pod `podID` in `podNamespace`, optionally with the UID `UUID`, as in early kubelets.",
        parse: route::pod_info,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/spec/",
        subresources: &["spec", "proxy"],
        about: "Processors, memory and boot of the machine.",
        parse: |_| Ok(route::Route::Machine),
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/logs/{path...}",
        ports: RESTRICTED_PORTS,
        subresources: &["log"],
        group: Some(RouteGroup::SystemLogs),
        about: "The node's logs: files and directory listings below `/var/log`; `Range` and `If-Modified-Since` are honoured.",
        parse: route::node_logs,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/containerLogs/{namespace}/{pod}/{container}",
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "The log of a container: `follow`, `previous`, `tailLines`, `limitBytes`, `sinceSeconds`, `sinceTime`, `timestamps`.",
        parse: route::container_logs,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/exec/{namespace}/{pod}/{container}",
        methods: GET_OR_POST,
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "A command in a container, over SPDY or WebSocket: `command` for each argument; `input`, `output`, `error`, `tty`.",
        parse: route::exec,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/exec/{namespace}/{pod}/{uid}/{container}",
        methods: GET_OR_POST,
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "As above, for the pod with this UID.",
        parse: route::exec,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/attach/{namespace}/{pod}/{container}",
        methods: GET_OR_POST,
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "Attaches to a container, over SPDY or WebSocket: `input`, `output`, `error`, `tty`.",
        parse: route::attach,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/attach/{namespace}/{pod}/{uid}/{container}",
        methods: GET_OR_POST,
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "As above, for the pod with this UID.",
        parse: route::attach,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/portForward/{namespace}/{pod}",
        methods: GET_OR_POST,
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "Ports of a pod, over SPDY or WebSocket; over the latter, `port` names them.",
        parse: route::port_forward,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/portForward/{namespace}/{pod}/{uid}",
        methods: GET_OR_POST,
        ports: RESTRICTED_PORTS,
        group: Some(RouteGroup::Debugging),
        about: "As above, for the pod with this UID.",
        parse: route::port_forward,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/run/{namespace}/{pod}/{container}",
        methods: &["POST"],
        ports: RESTRICTED_PORTS,
        max_body: Some(MAX_FORM_BODY),
        group: Some(RouteGroup::Debugging),
        about: "Runs a command, `cmd` split at spaces, in a container and responds with its output; `cmd` may be in a form.",
        parse: route::run,
        ..READ_ROUTE
    },
    RouteEntry {
        pattern: "/run/{namespace}/{pod}/{uid}/{container}",
        methods: &["POST"],
        ports: RESTRICTED_PORTS,
        max_body: Some(MAX_FORM_BODY),
        group: Some(RouteGroup::Debugging),
        about: "As above, for the pod with this UID.",
        parse: route::run,
        ..READ_ROUTE
    },
];

/// Generates the table as Markdown.
pub fn document() -> String {
    let mut text = String::from(
        "# Routes\n\nWritten from the table in `src/server/routes/table.rs`; a test compares them.\n\n\
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
        let group = entry
            .group
            .map_or(String::new(), |group| format!("`{}`", group.field()));
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
