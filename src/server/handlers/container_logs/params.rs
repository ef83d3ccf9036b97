//! Parameters of `/containerLogs`: `PodLogOptions`, decoded and validated as upstream does. Pure.

use crate::runtime::logs::{LogOptions, SelectedStreams, since};
use crate::server::http::query::BadQuery;
use crate::server::streaming::params::{Pairs, all, bad};
use jiff::Timestamp;

/// The parameters as sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// `follow`.
    pub follow: bool,
    /// `previous`: the log of the previous instance.
    pub previous: bool,
    /// `timestamps`.
    pub timestamps: bool,
    /// `tailLines`, or `tail` of older clients.
    pub tail_lines: Option<i64>,
    /// `limitBytes`.
    pub limit_bytes: Option<i64>,
    /// `sinceSeconds`.
    pub since_seconds: Option<i64>,
    /// `sinceTime`.
    pub since_time: Option<Timestamp>,
    /// `stream`.
    pub stream: Option<SelectedStreams>,
}

/// Parameters that contradict each other or are out of range: status 422.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid log options: {0}")]
pub(in crate::server) struct Invalid(&'static str);

/// Parses the query. Unknown parameters are ignored.
///
/// # Errors
/// A value is invalid.
pub(in crate::server) fn log_query(query: &Pairs) -> Result<LogQuery, BadQuery> {
    let tail_lines = match first(query, "tail") {
        Some("all") => None,
        Some(text) if !text.is_empty() => Some(number("tail", text)?),
        _ => integer(query, "tailLines")?,
    };
    Ok(LogQuery {
        follow: flag(query, "follow"),
        previous: flag(query, "previous"),
        timestamps: flag(query, "timestamps"),
        tail_lines,
        limit_bytes: integer(query, "limitBytes")?,
        since_seconds: integer(query, "sinceSeconds")?,
        since_time: instant(query, "sinceTime")?,
        stream: stream(query)?,
    })
}

impl LogQuery {
    /// Validates the parameters and converts them for the log reader.
    pub(in crate::server) fn options(&self, now: Timestamp) -> Result<LogOptions, Invalid> {
        let tail_lines = self.tail_lines.map(u64::try_from).transpose();
        let tail_lines =
            tail_lines.map_err(|_| Invalid("tailLines: must be greater than or equal to 0"))?;
        let limit_bytes = match self.limit_bytes.map(u64::try_from) {
            None => None,
            Some(Ok(bytes @ 1..)) => Some(bytes),
            Some(_) => return Err(Invalid("limitBytes: must be greater than 0")),
        };
        match (self.since_seconds, self.since_time) {
            (Some(_), Some(_)) => {
                return Err(Invalid(
                    "at most one of `sinceTime` or `sinceSeconds` may be specified",
                ));
            }
            (Some(..1), None) => return Err(Invalid("sinceSeconds: must be greater than 0")),
            _ => {}
        }
        let streams = self.stream.unwrap_or_default();
        if streams != SelectedStreams::All && tail_lines.is_some() {
            return Err(Invalid(
                "`tailLines` and specific `stream` are mutually exclusive for now",
            ));
        }
        Ok(LogOptions {
            tail_lines,
            limit_bytes,
            since: since(now, self.since_seconds, self.since_time),
            timestamps: self.timestamps,
            follow: self.follow,
            streams,
        })
    }
}

fn first<'q>(query: &'q Pairs, name: &'q str) -> Option<&'q str> {
    all(query, name).next()
}

/// As in the API's codec, any value but false is true, including an empty one.
fn flag(query: &Pairs, name: &str) -> bool {
    first(query, name).is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
}

fn integer(query: &Pairs, name: &str) -> Result<Option<i64>, BadQuery> {
    first(query, name).map(|text| number(name, text)).transpose()
}

fn number(name: &str, text: &str) -> Result<i64, BadQuery> {
    let number = text.parse();
    number.map_err(|_| bad(name, &format!("{text:?} is not a whole number")))
}

fn instant(query: &Pairs, name: &str) -> Result<Option<Timestamp>, BadQuery> {
    match first(query, name) {
        // Old clients send JSON's `null`.
        None | Some("" | "null") => Ok(None),
        Some(text) => match text.parse() {
            Ok(instant) => Ok(Some(instant)),
            Err(_) => {
                Err(bad(name, &format!("{text:?} is not an instant as 2006-01-02T15:04:05Z")))
            }
        },
    }
}

fn stream(query: &Pairs) -> Result<Option<SelectedStreams>, BadQuery> {
    match first(query, "stream") {
        None => Ok(None),
        Some("All") => Ok(Some(SelectedStreams::All)),
        Some("Stdout") => Ok(Some(SelectedStreams::Stdout)),
        Some("Stderr") => Ok(Some(SelectedStreams::Stderr)),
        Some(text) => Err(bad("stream", &format!("{text:?} is not one of All, Stdout, Stderr"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<LogQuery, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let pairs: Vec<_> = pairs.iter().map(owned).collect();
        log_query(&pairs).map_err(|bad| bad.parameter)
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn options(pairs: &[(&str, &str)]) -> Result<LogOptions, String> {
        let query = read(pairs).unwrap();
        query.options(now()).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn every_option_is_read() {
        let all = options(&[
            ("follow", "true"),
            ("timestamps", "1"),
            ("tailLines", "7"),
            ("limitBytes", "1"),
            ("sinceSeconds", "5"),
            ("stream", "All"),
            ("pretty", "x"),
        ]);
        let expected = LogOptions {
            tail_lines: Some(7),
            limit_bytes: Some(1),
            since: Some("2026-01-02T03:04:00Z".parse().unwrap()),
            timestamps: true,
            follow: true,
            streams: SelectedStreams::All,
        };
        assert_eq!(all, Ok(expected));
        assert_eq!(options(&[]), Ok(LogOptions::default()));
        assert!(read(&[("previous", "true")]).unwrap().previous);
    }

    #[test]
    fn values_are_read_as_the_apis_codec_does() {
        for (text, set) in [
            ("true", true),
            ("1", true),
            ("", true),
            ("yes", true),
            ("false", false),
            ("False", false),
            ("0", false),
        ] {
            assert_eq!(read(&[("follow", text)]).unwrap().follow, set, "{text:?}");
        }
        let lines = |pairs: &[(&str, &str)]| read(pairs).unwrap().tail_lines;
        assert_eq!(lines(&[("tail", "3"), ("tailLines", "4")]), Some(3));
        assert_eq!(lines(&[("tail", "all"), ("tailLines", "4")]), None);
        assert_eq!(lines(&[("tail", ""), ("tailLines", "4")]), Some(4));
        assert_eq!(lines(&[("tailLines", "0")]), Some(0));
        let time = |text: &str| read(&[("sinceTime", text)]).map(|query| query.since_time);
        assert_eq!(time("2026-01-02T04:04:05+01:00"), Ok(Some(now())));
        assert_eq!(time(""), Ok(None));
        assert_eq!(time("null"), Ok(None));
    }

    #[test]
    fn unreadable_values_are_named() {
        for (parameter, value) in [
            ("tailLines", "x"),
            ("tailLines", ""),
            ("tailLines", "9223372036854775808"),
            ("tail", "some"),
            ("limitBytes", "1k"),
            ("sinceSeconds", "1.5"),
            ("sinceTime", "yesterday"),
            ("sinceTime", "2026-01-02"),
            ("stream", "stdout"),
        ] {
            assert_eq!(read(&[(parameter, value)]), Err(parameter.to_owned()));
        }
    }

    #[test]
    fn contradictory_options_are_refused() {
        for (pairs, why) in [
            (&[("tailLines", "-1")][..], "tailLines: must be"),
            (&[("limitBytes", "0")], "limitBytes: must be"),
            (&[("limitBytes", "-5")], "limitBytes: must be"),
            (&[("sinceSeconds", "0")], "sinceSeconds: must be"),
            (&[("sinceSeconds", "1"), ("sinceTime", "2026-01-02T03:04:05Z")], "at most one of"),
            (&[("stream", "Stderr"), ("tailLines", "1")], "exclusive"),
        ] {
            let refused = options(pairs).unwrap_err();
            assert!(refused.contains(why), "{pairs:?}: {refused}");
        }
        let fine = options(&[("stream", "Stderr")]).unwrap();
        assert_eq!(fine.streams, SelectedStreams::Stderr);
        assert!(options(&[("sinceSeconds", "9223372036854775807")]).is_ok());
    }
}
