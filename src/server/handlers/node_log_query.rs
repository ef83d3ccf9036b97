//! `/logs/?query=…`: queries of the node's journal and log files (`NodeLogQuery`). Pure.

use crate::server::http::params::RequestParams;
use crate::server::http::query::BadQuery;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Maximum number of lines from the end (`tailLines`).
const MAX_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_SERVICE_NAME: usize = 256;
/// Maximum length of a pattern.
const MAX_PATTERN: usize = 1024;
/// The time format that journalctl parses.
const TIME: &str = "%Y-%m-%d %H:%M:%S";

/// A query for the logs of services or for one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLogQuery {
    services: Vec<String>,
    files: Vec<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

/// What a valid query selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogSelection {
    /// A file in the log directory.
    File(String),
    /// Services by name.
    Services(Vec<String>),
}

impl NodeLogQuery {
    /// Parses the query; `None` without any of its parameters.
    ///
    /// # Errors
    /// A parameter is invalid.
    pub(in crate::server) fn parse(params: &RequestParams) -> Result<Option<Self>, BadQuery> {
        let mut query = Self::default();
        let queried = params.query_parameters("query")?;
        for name in &queried {
            // As upstream, a name with a slash or backslash is a file.
            if name.contains(['/', '\\']) {
                query.files.push(name.replace('\\', "/"));
            } else if !name.trim().is_empty() {
                query.services.push(name.clone());
            }
        }
        if !queried.is_empty() && query.files.is_empty() && query.services.is_empty() {
            return Err(BadQuery::new("query", "may not be empty"));
        }
        query.since = time(params, "sinceTime")?;
        query.until = time(params, "untilTime")?;
        query.lines = number(params, "tailLines")?;
        query.boot = number(params, "boot")?;
        query.pattern = params.query_parameter("pattern")?.unwrap_or_default();
        Ok((query != Self::default()).then_some(query))
    }

    /// Validates the query and returns what it selects.
    ///
    /// # Errors
    /// The validation error.
    pub(super) fn selection(&self) -> Result<LogSelection, BadQuery> {
        let bad = |detail: &str| Err(BadQuery::new("query", detail));
        if self.services.iter().any(|name| !is_safe(name)) {
            return bad(
                "service names may contain only letters, digits and -_.:@, and have at most 256 characters",
            );
        }
        if self.services.len() > MAX_SERVICES {
            return bad("at most 4 services at a time");
        }
        if self.pattern.len() > MAX_PATTERN {
            return Err(BadQuery::new("pattern", "is too long"));
        }
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            return Err(BadQuery::new("untilTime", "must be after `sinceTime`"));
        }
        if self.boot.is_some_and(|boot| boot > 0) {
            return Err(BadQuery::new("boot", "must be less than 1"));
        }
        if self.lines.is_some_and(|lines| !(0..=MAX_LINES).contains(&lines)) {
            return Err(BadQuery::new("tailLines", "must be between 0 and 100000, inclusive"));
        }
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => bad("cannot be empty with options"),
            ([], services) => Ok(LogSelection::Services(services.to_vec())),
            ([_, ..], [_, ..]) => bad("cannot specify a file and service"),
            ([_], []) if self.has_options() => bad("cannot specify file with options"),
            ([file], []) => Ok(LogSelection::File(file.clone())),
            (_, []) => bad("cannot specify more than one file"),
        }
    }

    /// Whether it has parameters besides names.
    pub(super) fn has_options(&self) -> bool {
        let names =
            Self { services: self.services.clone(), files: self.files.clone(), ..Self::default() };
        *self != names
    }

    pub(super) fn journal_arguments(&self, services: &[String]) -> Vec<String> {
        let mut arguments =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        let format_time = |time: Timestamp| time.to_zoned(TimeZone::UTC).strftime(TIME).to_string();
        if let Some(since) = self.since {
            arguments.push(format!("--since={}", format_time(since)));
        }
        if let Some(until) = self.until {
            arguments.push(format!("--until={}", format_time(until)));
        }
        if let Some(lines) = self.lines {
            arguments.push("--pager-end".to_owned());
            arguments.push(format!("--lines={lines}"));
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        if !self.pattern.is_empty() {
            arguments.push(format!("--grep={}", self.pattern));
        }
        if let Some(boot) = self.boot {
            arguments.push(format!("--boot={boot}"));
        }
        arguments
    }
}

/// The possible log files of a service without journal entries, the most likely first.
pub(super) fn files_of(service: &str) -> [String; 3] {
    [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")]
}

fn is_safe(name: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    name.len() <= MAX_SERVICE_NAME && name.chars().all(safe)
}

fn time(params: &RequestParams, name: &str) -> Result<Option<Timestamp>, BadQuery> {
    let text = params.query_parameter(name)?.filter(|text| !text.is_empty());
    let read = |text: String| text.parse().map_err(|_| BadQuery::new(name, "invalid time format"));
    text.map(read).transpose()
}

fn number(params: &RequestParams, name: &str) -> Result<Option<i64>, BadQuery> {
    let text = params.query_parameter(name)?.filter(|text| !text.is_empty());
    let bad = |text: &str| BadQuery::new(name, format!("{text:?} is not a whole number"));
    let read = |text: String| text.parse().map_err(|_| bad(&text));
    text.map(read).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Option<NodeLogQuery>, BadQuery> {
        NodeLogQuery::parse(&RequestParams::of_query(query))
    }

    #[test]
    fn a_query_is_for_services_or_for_one_file() {
        let file = |name: &str| Ok(LogSelection::File(name.into()));
        let services = |names: &[&str]| {
            Ok(LogSelection::Services(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        let bad = |parameter: &str| Err(parameter.to_owned());
        for (query, expected) in [
            ("query=kubelet", services(&["kubelet"])),
            ("query=kubelet&query=containerd&boot=-1", services(&["kubelet", "containerd"])),
            ("query=/foo.log", file("/foo.log")),
            ("query=foo%5Cbar.log", file("foo/bar.log")),
            ("query=a&query=b/c", bad("query")),
            ("query=/a&query=/b", bad("query")),
            ("query=/a&tailLines=3", bad("query")),
            ("tailLines=3", bad("query")),
            ("query=a;reboot", bad("query")),
            ("query=a&query=b&query=c&query=d&query=e", bad("query")),
            ("query=a&boot=1", bad("boot")),
            ("query=a&tailLines=100001", bad("tailLines")),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                bad("untilTime"),
            ),
        ] {
            let parsed = parse(query).unwrap().unwrap();
            assert_eq!(parsed.selection().map_err(|bad| bad.parameter), expected, "{query}");
        }
        assert_eq!(parse("").unwrap(), None);
        for query in ["query=", "query=%20", "query=a&boot=x", "query=a&sinceTime=now"] {
            assert!(parse(query).is_err(), "{query}");
        }
    }

    #[test]
    fn options_become_arguments_of_journalctl() {
        let query = "query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-02T04:04:05%2B01:00&tailLines=5&pattern=x%20--y&boot=-1";
        let parsed = parse(query).unwrap().unwrap();
        let arguments = parsed.journal_arguments(&["a".into(), "b".into()]);
        assert_eq!(
            arguments,
            [
                "--utc",
                "--no-pager",
                "--output=short-precise",
                "--since=2026-01-02 03:04:05",
                "--until=2026-01-02 03:04:05",
                "--pager-end",
                "--lines=5",
                "--unit=a",
                "--unit=b",
                "--grep=x --y",
                "--boot=-1",
            ]
        );
        assert!(parsed.has_options());
        assert!(!parse("query=a").unwrap().unwrap().has_options());
    }
}
