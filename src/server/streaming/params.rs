//! Parameters of exec, attach, run and port-forward. Pure.
//!
//! The names are upstream's: the kubelet's own (`input`, `output`, `error`) and those of the API server
//! (`stdin`, `stdout`, `stderr`). A flag is set with `1` or `true`.

use crate::cri::StdStreams;
use crate::model::PodLogName;
use crate::server::http::params::{RequestParams, RouteError};
use crate::server::http::query::BadQuery;

/// Decoded parameters, in order.
pub(in crate::server) type Pairs = [(String, String)];

/// A container, as in the path of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerName {
    /// The pod.
    pub pod: PodName,
    /// Name of a container of any kind.
    pub container: String,
}

impl ContainerName {
    pub(in crate::server) fn parse(params: &RequestParams) -> Result<Self, RouteError> {
        Ok(Self { pod: PodName::parse(params)?, container: params.name("container")? })
    }
}

/// A pod, as in the path of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name, with the node's suffix.
    pub name: String,
    /// Selects one of several pods of this name.
    pub uid: Option<String>,
}

impl PodName {
    /// `<namespace>/<name>`, for log messages.
    pub(in crate::server) fn log_name(&self) -> PodLogName<'_> {
        PodLogName { namespace: &self.namespace, name: &self.name }
    }

    pub(in crate::server) fn parse(params: &RequestParams) -> Result<Self, RouteError> {
        let uid = params.name("uid")?;
        Ok(Self {
            namespace: params.name("namespace")?,
            name: params.name("pod")?,
            uid: (!uid.is_empty()).then_some(uid),
        })
    }
}

/// The pod in the query of the legacy path `/podInfo`.
pub(in crate::server) fn legacy_pod_name(params: &RequestParams) -> Result<PodName, BadQuery> {
    let needed = |parameter: &str| {
        let value = params.query_parameter(parameter)?.filter(|value| !value.is_empty());
        value.ok_or_else(|| bad(parameter, "is missing"))
    };
    Ok(PodName {
        name: needed("podID")?,
        namespace: needed("podNamespace")?,
        uid: params.query_parameter("UUID")?.filter(|uid| !uid.is_empty()),
    })
}

/// The streams of exec and attach. As upstream, standard error is left out with a terminal, which has only one
/// output.
///
/// # Errors
/// A flag has an invalid value, or no stream is requested.
pub(in crate::server) fn std_streams(query: &Pairs) -> Result<StdStreams, BadQuery> {
    let tty = flag(query, &["tty"])?;
    let streams = StdStreams {
        stdin: flag(query, &["input", "stdin"])?,
        stdout: flag(query, &["output", "stdout"])?,
        stderr: flag(query, &["error", "stderr"])? && !tty,
        tty,
    };
    if !(streams.stdin || streams.stdout || streams.stderr) {
        return Err(bad("output", "you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(streams)
}

/// The command of exec: all `command` parameters, in order.
///
/// # Errors
/// There is no command.
pub(in crate::server) fn command(query: &Pairs) -> Result<Vec<String>, BadQuery> {
    let command: Vec<String> = all(query, "command").map(ToOwned::to_owned).collect();
    match command.first() {
        Some(program) if !program.is_empty() => Ok(command),
        _ => Err(bad("command", "a command is required")),
    }
}

/// The command of run: `cmd`, split at spaces; `None` if it is not in the query.
///
/// # Errors
/// It is empty.
pub(in crate::server) fn cmd(query: &Pairs) -> Result<Option<Vec<String>>, BadQuery> {
    let Some(cmd) = all(query, "cmd").next() else {
        return Ok(None);
    };
    if cmd.trim().is_empty() {
        Err(no_cmd())
    } else {
        Ok(Some(cmd.split(' ').map(ToOwned::to_owned).collect()))
    }
}

/// The error of a missing `cmd`.
pub(in crate::server) fn no_cmd() -> BadQuery {
    bad("cmd", "a command is required")
}

/// The ports of port-forward: all `port` parameters, each of which may be a comma-separated list. None is valid: over
/// SPDY the stream has the port.
///
/// # Errors
/// A value is not a number from 1 to 65535.
pub(in crate::server) fn ports(query: &Pairs) -> Result<Vec<u16>, BadQuery> {
    let one = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 && text.bytes().all(|b| b.is_ascii_digit()) => Ok(port),
        _ => Err(bad("port", &format!("{text:?} is not a port: a whole number from 1 to 65535"))),
    };
    let texts = all(query, "port").flat_map(|list| list.split(','));
    texts.map(one).collect()
}

/// All values of a parameter.
pub(in crate::server) fn all<'q>(
    query: &'q Pairs,
    name: &'q str,
) -> impl Iterator<Item = &'q str> + use<'q> {
    let of_it = query.iter().filter(move |(key, _)| key == name);
    of_it.map(|(_, value)| value.as_str())
}

pub(in crate::server) fn bad(parameter: &str, detail: &str) -> BadQuery {
    BadQuery::new(parameter, detail)
}

/// Whether a flag is set by one of its names.
fn flag(query: &Pairs, names: &[&str]) -> Result<bool, BadQuery> {
    let mut set = false;
    for name in names {
        for value in all(query, name) {
            set |= match value {
                "1" => true,
                "" | "0" => false,
                text if text.eq_ignore_ascii_case("true") => true,
                text if text.eq_ignore_ascii_case("false") => false,
                text => return Err(bad(name, &format!("{text:?} is neither 1 nor 0"))),
            };
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn flags_have_two_names_and_two_values() {
        let streams =
            |[stdin, stdout, stderr, tty]: [bool; 4]| Ok(StdStreams { stdin, stdout, stderr, tty });
        let wrong = |parameter: &str| Err(parameter.to_owned());
        let (y, n) = (true, false);
        let rows: &[(&[(&str, &str)], _)] = &[
            (&[("input", "1")], streams([y, n, n, n])),
            (&[("stdin", "true")], streams([y, n, n, n])),
            (&[("output", "1"), ("error", "TRUE")], streams([n, y, y, n])),
            (&[("stdout", "1"), ("stderr", "1")], streams([n, y, y, n])),
            // A terminal has one output.
            (&[("output", "1"), ("error", "1"), ("tty", "1")], streams([n, y, n, y])),
            (&[("output", "0"), ("stdout", "1")], streams([n, y, n, n])),
            (&[("output", ""), ("input", "1")], streams([y, n, n, n])),
            (&[], wrong("output")),
            (&[("tty", "1")], wrong("output")),
            (&[("tty", "1"), ("error", "1")], wrong("output")),
            (&[("input", "yes")], wrong("input")),
            (&[("stdin", "2")], wrong("stdin")),
            (&[("output", "1"), ("tty", "x")], wrong("tty")),
        ];
        for (pairs, expected) in rows {
            let found = std_streams(&query(pairs)).map_err(|bad| bad.parameter);
            assert_eq!(found, *expected, "{pairs:?}");
        }
        let nothing = std_streams(&query(&[])).unwrap_err();
        assert_eq!(nothing.detail, "you must specify at least 1 of stdin, stdout, stderr");
    }

    #[test]
    fn a_command_is_every_argument_in_order_as_it_is() {
        let query_text = query(&[
            ("command", "sh"),
            ("input", "1"),
            ("command", "-c"),
            ("command", "echo a  b+c é"),
            ("command", ""),
        ]);
        assert_eq!(command(&query_text).unwrap(), ["sh", "-c", "echo a  b+c é", ""]);
        for none in [&[][..], &[("command", "")], &[("cmd", "ls")]] {
            assert_eq!(command(&query(none)).unwrap_err().parameter, "command");
        }
    }

    #[test]
    fn a_command_to_run_is_split_at_spaces() {
        let run = |text: &str| cmd(&query(&[("cmd", text)])).map_err(|bad| bad.parameter);
        assert_eq!(run("ls -l /").unwrap().unwrap(), ["ls", "-l", "/"]);
        assert_eq!(run("echo a  b").unwrap().unwrap(), ["echo", "a", "", "b"]);
        assert_eq!(run(" "), Err("cmd".to_owned()));
        assert_eq!(cmd(&query(&[])), Ok(None));
    }

    #[test]
    fn ports_are_numbers_that_a_port_can_be() {
        let some = |ports: &[u16]| Some(ports.to_vec());
        let rows: &[(&[(&str, &str)], _)] = &[
            (&[], some(&[])),
            (&[("port", "1")], some(&[1])),
            (&[("port", "65535"), ("port", "80")], some(&[65535, 80])),
            (&[("port", "80,8080")], some(&[80, 8080])),
            (&[("port", "")], None),
            (&[("port", "abc")], None),
            (&[("port", "-1")], None),
            (&[("port", "+80")], None),
            (&[("port", "65536")], None),
            (&[("port", "0")], None),
            (&[("port", "80,")], None),
        ];
        for (pairs, expected) in rows {
            let found = ports(&query(pairs));
            if let Err(error) = &found {
                assert_eq!(error.parameter, "port");
            }
            assert_eq!(found.ok(), *expected, "{pairs:?}");
        }
    }
}
