//! From method, path and query to what is being asked for.

use super::query::{BadQuery, pairs};
use hyper::Method;

/// Which port a request came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// `healthzPort`: health and nothing else.
    Health,
    /// `readOnlyPort`.
    ReadOnly,
}

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
    /// `/events`: recent events.
    Events(EventsQuery),
    /// `/metrics`.
    Metrics,
    /// `/healthz`: all checks.
    Health(HealthQuery),
    /// `/healthz/<name>`: one check.
    HealthCheck(String),
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
    /// The path is there, but not for this method: 405.
    #[error("405 method not allowed")]
    MethodNotAllowed,
    /// A parameter cannot be read: 400.
    #[error("400 bad request: {0}")]
    BadQuery(BadQuery),
}

impl From<BadQuery> for RouteError {
    fn from(bad: BadQuery) -> Self {
        Self::BadQuery(bad)
    }
}

/// Finds the route. HEAD is answered wherever GET is; one slash at the end of a list's path does not
/// matter, and parameters that nobody reads do not either.
pub fn route(
    port: Port,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<Route, RouteError> {
    let query = query.unwrap_or_default();
    let found = match (port, path) {
        (_, "/healthz") => Route::Health(HealthQuery::default()),
        (_, path) if health_check(path).is_some() => {
            Route::HealthCheck(health_check(path).unwrap_or_default().to_owned())
        }
        (Port::ReadOnly, "/pods" | "/pods/") => Route::Pods,
        (Port::ReadOnly, "/runningpods" | "/runningpods/") => Route::RunningPods,
        (Port::ReadOnly, "/events" | "/events/") => Route::Events(EventsQuery::default()),
        (Port::ReadOnly, "/metrics") => Route::Metrics,
        (Port::ReadOnly, "/explain" | "/explain/") => Route::Overview(OverviewQuery::default()),
        (Port::ReadOnly, path) => Route::Explain(explained(path).ok_or(RouteError::NotFound)?),
        _ => return Err(RouteError::NotFound),
    };
    if method != Method::GET && method != Method::HEAD {
        return Err(RouteError::MethodNotAllowed);
    }
    let pairs = pairs(query)?;
    Ok(match found {
        Route::Health(_) => Route::Health(health_query(pairs)),
        Route::Events(_) => Route::Events(events_query(pairs)?),
        Route::Overview(_) => Route::Overview(OverviewQuery {
            after: last(pairs, "after"),
        }),
        Route::Explain(query) => Route::Explain(ExplainQuery {
            uid: last(pairs, "uid"),
            ..query
        }),
        other => other,
    })
}

/// The check's name in `/healthz/<name>`.
fn health_check(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/healthz/")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The pod in `/explain/<namespace>/<name>`. Such names need no escapes.
fn explained(path: &str) -> Option<ExplainQuery> {
    let (namespace, name) = path.strip_prefix("/explain/")?.split_once('/')?;
    let part = |text: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        (!text.is_empty() && text.chars().all(plain)).then(|| text.to_owned())
    };
    Some(ExplainQuery {
        namespace: part(namespace)?,
        name: part(name)?,
        uid: None,
    })
}

/// The value of a parameter; the last one where it is there more than once.
fn last(pairs: Vec<(String, String)>, parameter: &str) -> Option<String> {
    let mut of_it = pairs.into_iter().filter(|(key, _)| key == parameter);
    let (_, value) = of_it.next_back()?;
    Some(value)
}

fn health_query(pairs: Vec<(String, String)>) -> HealthQuery {
    let mut query = HealthQuery::default();
    for (key, value) in pairs {
        match key.as_str() {
            "verbose" => query.verbose = true,
            "exclude" if !value.is_empty() => query.exclude.push(value),
            _ => {}
        }
    }
    query
}

fn events_query(pairs: Vec<(String, String)>) -> Result<EventsQuery, BadQuery> {
    let mut query = EventsQuery::default();
    for (key, value) in pairs {
        match key.as_str() {
            "namespace" => query.namespace = Some(value),
            "name" => query.name = Some(value),
            "limit" => query.limit = Some(number(&key, &value)?),
            _ => {}
        }
    }
    Ok(query)
}

fn number(parameter: &str, value: &str) -> Result<usize, BadQuery> {
    value.parse().map_err(|_| BadQuery {
        parameter: parameter.to_owned(),
        detail: format!("{value:?} is not a whole number from 0"),
    })
}
