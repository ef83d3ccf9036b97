//! `/stats/`, `/stats/container` and `/stats/…/{container}`, which upstream has removed: their parameters, in the
//! query or the body, and responses.

use super::stats::{StatsReaders, unreadable};
use crate::base::GO_ZERO_TIME;
use crate::model::PodExt;
use crate::node::stats::{ContainerInfo, ContainerInfoSelector};
use crate::pods::pod_sync::PodWithStatus;
use crate::server::http::params::{RequestParams, RouteError};
use crate::server::http::query::BadQuery;
use crate::server::http::response::{
    Body, Request, bad_request, json_object, not_found, read_body,
};
use crate::server::streaming::lookup::MissingContainer;
use crate::server::streaming::{ContainerName, lookup};
use hyper::Response;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Maximum size of the body, in bytes.
pub(in crate::server) const MAX_BODY: usize = 16 * 1024;

/// The target of a statistics request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LegacyStatsTarget {
    /// `/stats/`: the machine.
    Machine,
    /// `/stats/container`: any cgroup.
    Cgroup,
    /// `/stats/…/{container}`.
    Container(ContainerName),
}

impl LegacyStatsTarget {
    /// The default namespace is `default`.
    pub(in crate::server) fn container(params: &RequestParams) -> Result<Self, RouteError> {
        let mut name = ContainerName::parse(params)?;
        if name.pod.namespace.is_empty() {
            name.pod.namespace.push_str("default");
        }
        Ok(Self::Container(name))
    }
}

/// Parameters of a request. The number of samples, which clients also send, is ignored, because there is only one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyStatsQuery {
    /// `containerName`: the cgroup's path.
    pub cgroup: String,
    /// `start`: no samples before this time.
    pub start: Option<Timestamp>,
    /// `end`: no samples after this time.
    pub end: Option<Timestamp>,
    /// `subcontainers`: include the cgroup's descendants.
    pub subcontainers: bool,
}

impl LegacyStatsQuery {
    /// Parses the query.
    ///
    /// # Errors
    /// A parameter is invalid.
    pub(in crate::server) fn of_pairs(pairs: &[(String, String)]) -> Result<Self, BadQuery> {
        let mut query = Self::default();
        for (key, value) in pairs {
            match key.as_str() {
                "containerName" => query.cgroup.clone_from(value),
                "num_stats" => number(key, value.parse().ok())?,
                "start" => query.start = parse_time(key, value)?,
                "end" => query.end = parse_time(key, value)?,
                "subcontainers" => {
                    let flag = value.parse().ok();
                    query.subcontainers =
                        flag.ok_or_else(|| bad(key, "is neither true nor false"))?;
                }
                _ => {}
            }
        }
        Ok(query)
    }

    /// Overrides the parameters by those of the JSON object in the body; an empty body changes nothing.
    ///
    /// # Errors
    /// The body is not an object, or a field is invalid.
    fn overridden_by(mut self, body: &[u8]) -> Result<Self, String> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(self);
        }
        let fields: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| format!("the body: {error}"))?;
        let field = |error: BadQuery| format!("field {:?}: {}", error.parameter, error.detail);
        for (key, value) in &fields {
            let text = || {
                let text = value.as_str();
                text.ok_or_else(|| field(bad(key, "is not a string")))
            };
            match key.as_str() {
                _ if value.is_null() => {}
                "containerName" => text()?.clone_into(&mut self.cgroup),
                "num_stats" => number(key, value.as_i64()).map_err(field)?,
                "start" => self.start = parse_time(key, text()?).map_err(field)?,
                "end" => self.end = parse_time(key, text()?).map_err(field)?,
                "subcontainers" => {
                    let flag = value.as_bool();
                    let flag = flag.ok_or_else(|| bad(key, "is neither true nor false"));
                    self.subcontainers = flag.map_err(field)?;
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// The absolute path of the cgroup.
    fn path(&self) -> String {
        let mut parts: Vec<&str> = Vec::new();
        for part in self.cgroup.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }
}

/// Any number of samples is valid, because it is ignored.
fn number(key: &str, value: Option<i64>) -> Result<(), BadQuery> {
    value.map_or_else(|| Err(bad(key, "is not a whole number")), |_| Ok(()))
}

fn parse_time(key: &str, value: &str) -> Result<Option<Timestamp>, BadQuery> {
    if value.is_empty() || value == GO_ZERO_TIME {
        return Ok(None);
    }
    let time = value.parse().ok();
    time.map_or_else(|| Err(bad(key, "is not an RFC 3339 time")), |at| Ok(Some(at)))
}

fn bad(parameter: &str, detail: &str) -> BadQuery {
    BadQuery::new(parameter, detail)
}

/// The response; `pods` are the known pods.
pub(in crate::server) async fn serve(
    stats: &StatsReaders,
    pods: impl Future<Output = Vec<PodWithStatus>>,
    request: Request,
    target: &LegacyStatsTarget,
    query: LegacyStatsQuery,
) -> Response<Body> {
    let body = match read_body(request, MAX_BODY).await {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    let pods = pods.await;
    let query = match query.overridden_by(&body) {
        Ok(query) => query,
        Err(why) => return bad_request(&why),
    };
    let of = match target {
        LegacyStatsTarget::Machine => {
            ContainerInfoSelector::Cgroup { path: "/".to_owned(), subcontainers: false }
        }
        LegacyStatsTarget::Cgroup => {
            ContainerInfoSelector::Cgroup { path: query.path(), subcontainers: query.subcontainers }
        }
        LegacyStatsTarget::Container(name) => match container(pods, name) {
            Ok(of) => of,
            Err(missing) => return not_found(&missing.to_string()),
        },
    };
    let Some(found) = (stats.infos)(of).await else {
        return unreadable();
    };
    let reported =
        |info: ContainerInfo| (info.path.clone(), info.into_json(query.start, query.end));
    let mut reported = found.into_iter().map(reported);
    match target {
        LegacyStatsTarget::Cgroup => {
            let reported: Map<String, Value> = reported.collect();
            if reported.is_empty() {
                not_found(&format!("cgroup {:?} not found", query.path()))
            } else {
                json_object(&reported)
            }
        }
        LegacyStatsTarget::Machine => match reported.next() {
            Some((_, info)) => json_object(&info),
            None => unreadable(),
        },
        LegacyStatsTarget::Container(name) => match reported.next() {
            Some((_, info)) => json_object(&info),
            None => {
                let missing = MissingContainer::NotRunning {
                    name: name.container.clone(),
                    why: "no running process in a cgroup of this node".to_owned(),
                };
                not_found(&missing.to_string())
            }
        },
    }
}

fn container(
    pods: Vec<PodWithStatus>,
    name: &ContainerName,
) -> Result<ContainerInfoSelector, MissingContainer> {
    let (pod, _) = lookup::pod(pods, &name.pod)?;
    if !lookup::has_container(&pod, &name.container) {
        return Err(MissingContainer::Container(name.container.clone()));
    }
    Ok(ContainerInfoSelector::Container { pod: pod.uid(), name: name.container.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Result<LegacyStatsQuery, BadQuery> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        LegacyStatsQuery::of_pairs(&pairs.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn query_and_body_have_the_same_parameters_and_the_body_wins() {
        let at = |text: &str| text.parse::<Timestamp>().ok();
        let body = br#"{"containerName": "/a/../b//c/", "num_stats": 3, "subcontainers": true,
            "start": "2020-01-01T00:00:00Z", "end": "0001-01-01T00:00:00Z", "other": 1}"#;
        let by_body = LegacyStatsQuery::default().overridden_by(body).unwrap();
        assert_eq!((by_body.path().as_str(), by_body.subcontainers), ("/b/c", true));
        assert_eq!((by_body.start, by_body.end), (at("2020-01-01T00:00:00Z"), None));
        let by_query = query(&[
            ("containerName", "/a/../b//c/"),
            ("num_stats", "-1"),
            ("subcontainers", "true"),
            ("start", "2020-01-01T00:00:00Z"),
            ("end", ""),
            ("other", "1"),
        ]);
        let by_query = by_query.unwrap();
        assert_eq!(by_query, by_body);
        let both = by_query.overridden_by(br#"{"containerName": "/d"}"#).unwrap();
        assert_eq!((both.path().as_str(), both.subcontainers), ("/d", true));
        assert_eq!(LegacyStatsQuery::default().overridden_by(b" \n").unwrap().path(), "/");
    }

    #[test]
    fn unreadable_values_are_named() {
        for (key, value) in [
            ("num_stats", "many"),
            ("start", "yesterday"),
            ("end", "1"),
            ("subcontainers", "perhaps"),
        ] {
            assert_eq!(query(&[(key, value)]).unwrap_err().parameter, key);
            let body = format!("{{{key:?}: {value:?}}}");
            let why = LegacyStatsQuery::default().overridden_by(body.as_bytes()).unwrap_err();
            assert!(why.contains(key), "{why}");
        }
        for body in ["[]", "{", "{\"containerName\": 1}", "{\"start\": 1}"] {
            assert!(LegacyStatsQuery::default().overridden_by(body.as_bytes()).is_err(), "{body}");
        }
    }
}
