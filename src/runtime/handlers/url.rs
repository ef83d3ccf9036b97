//! URLs of httpGet requests and of redirects. Pure.

use super::net::join_host_port;
use std::fmt;

/// An `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) https: bool,
    /// Name or address, without brackets.
    pub(super) host: String,
    /// `None` for the default port of the scheme.
    pub(super) port: Option<u16>,
    /// Path and query of the request line; begins with a slash.
    pub(super) target: String,
}

impl Url {
    /// The port to connect to.
    pub(super) fn port(&self) -> u16 {
        match (self.port, self.https) {
            (Some(port), _) => port,
            (None, true) => 443,
            (None, false) => 80,
        }
    }

    /// The default `Host` header.
    pub(super) fn authority(&self) -> String {
        match self.port {
            Some(port) => join_host_port(&self.host, port),
            None if self.host.contains(':') => format!("[{}]", self.host),
            None => self.host.clone(),
        }
    }

    /// The URL of a redirect to `location`, relative to this URL.
    ///
    /// # Errors
    /// `location` is not a valid http or https URL.
    pub(super) fn join(&self, location: &str) -> Result<Url, String> {
        let scheme_end = location.find("://");
        if let Some((scheme, rest)) = scheme_end.and_then(|at| location.split_at_checked(at)) {
            let https = match scheme.to_ascii_lowercase().as_str() {
                "http" => false,
                "https" => true,
                other => return Err(format!("unsupported protocol scheme {other:?}")),
            };
            return Url::absolute(https, rest.trim_start_matches("://"), location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Url::absolute(self.https, rest, location);
        }
        let path = self.target.split('?').next().unwrap_or("/");
        let target = match location.chars().next() {
            None | Some('#') => self.target.clone(),
            Some('/') => location.to_owned(),
            Some('?') => format!("{path}{location}"),
            Some(_) => {
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                format!("{directory}/{location}")
            }
        };
        Ok(Url { target: request_target(&target), ..self.clone() })
    }

    fn absolute(https: bool, rest: &str, whole: &str) -> Result<Url, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let address = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let bad = || format!("failed to parse Location header {whole:?}");
        let (host, port) = match address.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').ok_or_else(bad)?,
            None => match address.find(':') {
                Some(at) => address.split_at_checked(at).ok_or_else(bad)?,
                None => (address, ""),
            },
        };
        if host.is_empty() {
            return Err(bad());
        }
        let port = match port.strip_prefix(':') {
            Some("") | None => None,
            Some(number) => Some(number.parse().map_err(|_| bad())?),
        };
        Ok(Url { https, host: host.to_owned(), port, target: request_target(target) })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

/// The request target for a path in a spec, which may lack the leading slash and contain a query, a fragment,
/// spaces and invalid escapes.
pub(super) fn request_target(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let mut target = String::with_capacity(path.len() + 1);
    target.push('/');
    escape(&mut target, &without_dots(path));
    if let Some(query) = query {
        target.push('?');
        escape(&mut target, query);
    }
    target
}

/// A path without its leading slash and without `.` and `..` segments.
fn without_dots(path: &str) -> String {
    let path = path.strip_prefix('/').unwrap_or(path);
    if !path.split('/').any(|part| part == "." || part == "..") {
        return path.to_owned();
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if matches!(path.rsplit('/').next(), Some("." | "..")) {
        parts.push("");
    }
    parts.join("/")
}

fn escape(out: &mut String, text: &str) {
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().copied().enumerate() {
        let is_escape = byte == b'%'
            && bytes
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let plain = byte.is_ascii_graphic() && !b"\"<>\\^`{|}%".contains(&byte);
        if plain || is_escape {
            out.push(char::from(byte))
        } else {
            out.push_str(&format!("%{byte:02X}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_request_targets() {
        let table = [
            ("", "/"),
            ("/", "/"),
            ("healthz", "/healthz"),
            ("/healthz?verbose=1&a=b", "/healthz?verbose=1&a=b"),
            ("/a b", "/a%20b"),
            ("/ä", "/%C3%A4"),
            ("/100%", "/100%25"),
            ("/100%25", "/100%25"),
            ("/x#fragment", "/x"),
            ("?a=1", "/?a=1"),
            ("//double", "//double"),
        ];
        for (path, target) in table {
            assert_eq!(request_target(path), target, "{path:?}");
        }
    }

    #[test]
    fn redirects_lead_where_a_browser_would_go() {
        let base = Url {
            https: false,
            host: "10.0.0.1".into(),
            port: Some(8080),
            target: "/a/b?c=d".into(),
        };
        let table = [
            ("/x", "http://10.0.0.1:8080/x"),
            ("x", "http://10.0.0.1:8080/a/x"),
            ("../x/.", "http://10.0.0.1:8080/x/"),
            ("?y=z", "http://10.0.0.1:8080/a/b?y=z"),
            ("//other/x", "http://other/x"),
            ("https://other", "https://other/"),
            ("HTTPS://user@other:1/x", "https://other:1/x"),
            ("http://[fd00::1]:9/x", "http://[fd00::1]:9/x"),
            ("http://[fd00::1]/x", "http://[fd00::1]/x"),
        ];
        for (location, url) in table {
            let joined = base.join(location).map(|url| url.to_string());
            assert_eq!(joined.as_deref(), Ok(url), "{location:?}");
        }
        for nowhere in ["ftp://other/", "http://", "http://[fd00::1", "http://x:99999/"] {
            assert!(base.join(nowhere).is_err(), "{nowhere:?}");
        }
    }

    #[test]
    fn a_redirect_without_a_port_means_the_scheme_s_own() {
        let base = Url { https: false, host: "a".into(), port: Some(8080), target: "/".into() };
        assert_eq!(base.join("https://a/").map(|url| url.port()), Ok(443));
        assert_eq!(base.join("http://a/").map(|url| url.port()), Ok(80));
    }
}
