//! From method, path and query to what is being asked for.

use super::{
    query::{BadQuery, decode_path, pairs},
    table::{ENTRIES, Entry, Port},
};
use crate::{
    cri::StdStreams,
    server::{
        auth::{PROXY, Subresources},
        container_logs::{LogQuery, params::log_query},
        legacy_stats::{InfoQuery, InfoTarget},
        streaming::{ContainerName, PodName, params},
    },
};
use hyper::Method;

/// How long a profile is made where nobody says.
const PROFILE_SECONDS: u64 = 30;
/// How long at most.
const MAX_PROFILE_SECONDS: u64 = 300;

/// What is being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/pods`: every known pod with its status.
    Pods,
    /// `/runningpods/`: what the runtime runs.
    RunningPods,
    /// `/explain`: every known pod in a line.
    Overview(OverviewQuery),
    /// `/explain/<namespace>/<pod>`: why one pod is as it is.
    Explain(ExplainQuery),
    /// `/`: the pods, for a browser.
    NodePage(OverviewQuery),
    /// `/pod/<namespace>/<pod>`: one pod, for a browser.
    PodPage(ExplainQuery, OverviewQuery),
    /// `/events`: recent events.
    Events(EventsQuery),
    /// `/metrics`.
    Metrics,
    /// `/metrics/slis`: the results of health checks.
    SliMetrics,
    /// `/metrics/cadvisor`: what containers use.
    CadvisorMetrics,
    /// `/metrics/resource`: CPU and memory, for metrics-server.
    ResourceMetrics,
    /// `/metrics/probes`: how probes went.
    ProbeMetrics,
    /// `/stats/summary`: what the node and its pods use; whether only CPU and memory are wanted.
    Summary(bool),
    /// `/stats/` and below it: what the first kubelets told of the machine, a cgroup or a container.
    ContainerInfo(InfoTarget, InfoQuery),
    /// `/healthz`: all checks.
    Health(HealthQuery),
    /// `/healthz/<name>`: one check.
    HealthCheck(String),
    /// `/configz`: the configuration in force.
    Configz,
    /// `/flagz`: the flags in force.
    Flagz,
    /// `/statusz`: the process.
    Statusz,
    /// `PUT /debug/flags/v`: how much is logged.
    PutVerbosity,
    /// `/debug/pprof/profile`: what the CPU is used for during so many seconds.
    Profile(u64),
    /// `POST /container` and `/containers`: pods to run.
    PostPods(Post),
    /// `/checkpoint/…`: an archive of a container, made within so many seconds.
    Checkpoint(ContainerName, Option<u64>),
    /// `/podInfo`: the status of one pod.
    PodInfo(PodName),
    /// `/spec/`: the machine.
    Machine,
    /// `/logs/<path>`: the node's logs.
    NodeLogs(String),
    /// `/exec/…`: a command in a container, with these streams.
    Exec(ContainerName, Vec<String>, StdStreams),
    /// `/attach/…`: the first process of a container.
    Attach(ContainerName, StdStreams),
    /// `/portForward/…`: ports of a pod.
    PortForward(PodName, Vec<u16>),
    /// `/run/…`: a command in a container, to its end. Without a command here, the body has it.
    Run(ContainerName, Option<Vec<String>>),
    /// `/containerLogs/…`: what a container wrote.
    ContainerLogs(ContainerName, LogQuery),
}

impl Route {
    /// Whether the answer is in Prometheus' exposition format.
    pub(in crate::server) fn is_for_prometheus(&self) -> bool {
        matches!(
            self,
            Self::Metrics
                | Self::SliMetrics
                | Self::CadvisorMetrics
                | Self::ResourceMetrics
                | Self::ProbeMetrics
        )
    }
}

/// What becomes of pods that were posted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// They stay, but those of the same names.
    Add,
    /// They go.
    Replace,
}

/// Parameters of `/healthz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthQuery {
    /// `verbose`, with any value: list the checks also when all is well.
    pub verbose: bool,
    /// `exclude=<name>`, any number of times: checks to leave out.
    pub exclude: Vec<String>,
}

/// Parameters of `/explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverviewQuery {
    /// `after=<version>`: answer once the version is another one, or after a while.
    pub after: Option<String>,
}

/// Which pod is to be explained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainQuery {
    /// Namespace.
    pub namespace: String,
    /// Name, with the node's suffix.
    pub name: String,
    /// `uid=<uid>`: this one of several of the name.
    pub uid: Option<String>,
}

/// Parameters of `/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsQuery {
    /// `namespace=<namespace>`: only about objects of this namespace.
    pub namespace: Option<String>,
    /// `name=<name>`: only about objects of this name.
    pub name: Option<String>,
    /// `limit=<n>`: only the newest n.
    pub limit: Option<usize>,
}

/// Why a request has no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No such path on this port: 404.
    #[error("404 page not found")]
    NotFound,
    /// The path is there, but only for these methods: 405.
    #[error("405 method not allowed")]
    MethodNotAllowed(&'static [&'static str]),
    /// A parameter cannot be read: 400.
    #[error("400 bad request: {0}")]
    BadQuery(BadQuery),
}

impl From<BadQuery> for RouteError {
    fn from(bad: BadQuery) -> Self {
        Self::BadQuery(bad)
    }
}

/// Finds the row of the table and what exactly is asked for by it. HEAD is answered wherever GET is; one
/// slash at the end of a list's path does not matter, and parameters that nobody reads do not either.
///
/// # Errors
/// Nothing on this port has that path; it does not take that method; a parameter cannot be read.
pub fn route(
    port: Port,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<(&'static Entry, Route), RouteError> {
    let on_port = ENTRIES.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter_map(|entry| Some((entry, captures(entry.pattern, path)?)));
    let Some((entry, captures)) = found.next() else {
        return Err(RouteError::NotFound);
    };
    if !entry.allows(method.as_str()) {
        return Err(RouteError::MethodNotAllowed(entry.methods));
    }
    let query = query.unwrap_or_default();
    let route = (entry.parse)(&Parts { captures, query })?;
    Ok((entry, route))
}

/// The rights to the node that are asked for at this path, whatever the method: one of these subresources.
/// What is not there takes the right to everything, so that nobody else learns what is.
pub fn subresources(port: Port, path: &str) -> Subresources {
    let on_port = ENTRIES.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter(|entry| captures(entry.pattern, path).is_some());
    found.next().map_or(PROXY, |entry| entry.subresources)
}

/// How a row's parts become a route.
pub(super) type Parse = fn(&Parts) -> Result<Route, RouteError>;

/// The variable parts of a request's target.
pub(super) struct Parts<'a> {
    captures: Vec<(&'static str, String)>,
    /// Not decoded: a route that reads no parameters does not mind what they are.
    query: &'a str,
}

impl Parts<'_> {
    /// What stands for `{name}` in the path.
    fn path(&self, name: &str) -> String {
        let mut named = self.captures.iter().filter(|(known, _)| *known == name);
        named
            .next()
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    }

    /// The same as a namespace's, a pod's or a container's name, none of which needs an escape. What is no
    /// such name names nothing.
    fn name(&self, name: &str) -> Result<String, RouteError> {
        let value = self.path(name);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        if value.chars().all(plain) {
            return Ok(value);
        }
        Err(RouteError::NotFound)
    }

    /// The value of a parameter; the last one where it is there more than once.
    fn last(&self, parameter: &str) -> Result<Option<String>, BadQuery> {
        Ok(self.all(parameter)?.pop())
    }

    /// All values of a parameter.
    fn all(&self, parameter: &str) -> Result<Vec<String>, BadQuery> {
        let of_it = self
            .pairs()?
            .into_iter()
            .filter(|(key, _)| key == parameter);
        Ok(of_it.map(|(_, value)| value).collect())
    }

    /// Every parameter, decoded.
    fn pairs(&self) -> Result<Vec<(String, String)>, BadQuery> {
        pairs(self.query)
    }
}

/// What of the path stands for the variable segments of the pattern; `None` where they do not match.
fn captures(pattern: &'static str, path: &str) -> Option<Vec<(&'static str, String)>> {
    let mut captured = Vec::new();
    let (mut pattern, mut path) = (pattern.strip_prefix('/')?, path.strip_prefix('/')?);
    loop {
        let (segment, more) = match pattern.split_once('/') {
            Some((segment, more)) => (segment, Some(more)),
            None => (pattern, None),
        };
        let variable = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}'));
        if let Some(rest) = variable.and_then(|name| name.strip_suffix("...")) {
            captured.push((rest, decode_path(path).ok()?));
            return Some(captured);
        }
        let (given, left) = match path.split_once('/') {
            Some((given, left)) => (given, Some(left)),
            None => (path, None),
        };
        match variable {
            Some(name) => {
                let value = decode_path(given).ok()?;
                if value.is_empty() || value.contains('/') {
                    return None;
                }
                captured.push((name, value));
            }
            None if segment == given => {}
            None => return None,
        }
        match (more, left) {
            (None, None) | (Some(""), None | Some("")) => return Some(captured),
            (Some(more), Some(left)) => (pattern, path) = (more, left),
            _ => return None,
        }
    }
}

pub(super) fn nothing(_: &Parts) -> Result<Route, RouteError> {
    Err(RouteError::NotFound)
}

pub(super) fn health(parts: &Parts) -> Result<Route, RouteError> {
    let mut exclude = parts.all("exclude")?;
    exclude.retain(|name| !name.is_empty());
    Ok(Route::Health(HealthQuery {
        verbose: parts.last("verbose")?.is_some(),
        exclude,
    }))
}

pub(super) fn health_check(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::HealthCheck(parts.path("check")))
}

pub(super) fn node_logs(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::NodeLogs(parts.path("path")))
}

fn after(parts: &Parts) -> Result<OverviewQuery, BadQuery> {
    Ok(OverviewQuery {
        after: parts.last("after")?,
    })
}

fn named(parts: &Parts) -> Result<ExplainQuery, RouteError> {
    Ok(ExplainQuery {
        namespace: parts.name("namespace")?,
        name: parts.name("pod")?,
        uid: parts.last("uid")?,
    })
}

pub(super) fn overview(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::Overview(after(parts)?))
}

pub(super) fn explain(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::Explain(named(parts)?))
}

pub(super) fn node_page(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::NodePage(after(parts)?))
}

pub(super) fn pod_page(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::PodPage(named(parts)?, after(parts)?))
}

/// As upstream, where anything but exactly one `true` means everything.
pub(super) fn summary(parts: &Parts) -> Result<Route, RouteError> {
    Ok(Route::Summary(
        parts.all("only_cpu_and_memory")? == ["true"],
    ))
}

pub(super) fn machine_info(parts: &Parts) -> Result<Route, RouteError> {
    info(parts, InfoTarget::Machine)
}

pub(super) fn cgroup_info(parts: &Parts) -> Result<Route, RouteError> {
    info(parts, InfoTarget::Cgroup)
}

/// Without a namespace it is `default`.
pub(super) fn container_info(parts: &Parts) -> Result<Route, RouteError> {
    let mut name = container_name(parts)?;
    if name.pod.namespace.is_empty() {
        name.pod.namespace.push_str("default");
    }
    info(parts, InfoTarget::Container(name))
}

fn info(parts: &Parts, target: InfoTarget) -> Result<Route, RouteError> {
    let query = InfoQuery::of_pairs(&parts.pairs()?)?;
    Ok(Route::ContainerInfo(target, query))
}

pub(super) fn events(parts: &Parts) -> Result<Route, RouteError> {
    let limit = parts.last("limit")?.map(|value| number("limit", &value));
    Ok(Route::Events(EventsQuery {
        namespace: parts.last("namespace")?,
        name: parts.last("name")?,
        limit: limit.transpose()?,
    }))
}

fn pod_name(parts: &Parts) -> Result<PodName, RouteError> {
    let uid = parts.name("uid")?;
    Ok(PodName {
        namespace: parts.name("namespace")?,
        name: parts.name("pod")?,
        uid: (!uid.is_empty()).then_some(uid),
    })
}

fn container_name(parts: &Parts) -> Result<ContainerName, RouteError> {
    Ok(ContainerName {
        pod: pod_name(parts)?,
        container: parts.name("container")?,
    })
}

pub(super) fn checkpoint(parts: &Parts) -> Result<Route, RouteError> {
    let seconds = parts.last("timeout")?;
    let seconds = seconds.map(|value| number("timeout", &value));
    let seconds = seconds.transpose()?.map(|seconds| seconds as u64);
    Ok(Route::Checkpoint(container_name(parts)?, seconds))
}

/// The parameters of the first kubelets.
pub(super) fn pod_info(parts: &Parts) -> Result<Route, RouteError> {
    let needed = |parameter: &str| {
        let value = parts.last(parameter)?.filter(|value| !value.is_empty());
        value.ok_or_else(|| BadQuery {
            parameter: parameter.to_owned(),
            detail: "is missing".to_owned(),
        })
    };
    Ok(Route::PodInfo(PodName {
        name: needed("podID")?,
        namespace: needed("podNamespace")?,
        uid: parts.last("UUID")?.filter(|uid| !uid.is_empty()),
    }))
}

pub(super) fn exec(parts: &Parts) -> Result<Route, RouteError> {
    let query = parts.pairs()?;
    let command = params::command(&query)?;
    let streams = params::std_streams(&query)?;
    Ok(Route::Exec(container_name(parts)?, command, streams))
}

pub(super) fn attach(parts: &Parts) -> Result<Route, RouteError> {
    let streams = params::std_streams(&parts.pairs()?)?;
    Ok(Route::Attach(container_name(parts)?, streams))
}

pub(super) fn port_forward(parts: &Parts) -> Result<Route, RouteError> {
    let ports = params::ports(&parts.pairs()?)?;
    Ok(Route::PortForward(pod_name(parts)?, ports))
}

pub(super) fn run(parts: &Parts) -> Result<Route, RouteError> {
    let command = params::cmd(&parts.pairs()?)?;
    Ok(Route::Run(container_name(parts)?, command))
}

pub(super) fn container_logs(parts: &Parts) -> Result<Route, RouteError> {
    let query = log_query(&parts.pairs()?)?;
    Ok(Route::ContainerLogs(container_name(parts)?, query))
}

/// As long as upstream where it is not said; not for ever, because there is one at a time.
pub(super) fn profile(parts: &Parts) -> Result<Route, RouteError> {
    let Some(value) = parts.last("seconds")? else {
        return Ok(Route::Profile(PROFILE_SECONDS));
    };
    let seconds = value.parse().ok();
    let seconds = seconds.filter(|seconds| (1..=MAX_PROFILE_SECONDS).contains(seconds));
    let bad = || BadQuery {
        parameter: "seconds".to_owned(),
        detail: format!("{value:?} is not a whole number from 1 to {MAX_PROFILE_SECONDS}"),
    };
    Ok(Route::Profile(seconds.ok_or_else(bad)?))
}

fn number(parameter: &str, value: &str) -> Result<usize, BadQuery> {
    value.parse().map_err(|_| BadQuery {
        parameter: parameter.to_owned(),
        detail: format!("{value:?} is not a whole number from 0"),
    })
}
