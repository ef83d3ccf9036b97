//! The runtime's streaming URL, and whether the kubelet may connect to it. Pure.
//!
//! The server at that URL receives the client's input, so it must be on this node: a faulty or compromised runtime
//! must not be able to use the kubelet as a proxy into the network.

use crate::base::percent_decoded;
use http::Uri;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Maximum length of a URL, in bytes.
const MAX_URL: usize = 8 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A TCP port of this node.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A URL that the kubelet may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamingTarget {
    pub(super) address: Address,
    /// The value of the `Host` header.
    pub(super) host: String,
    /// Path and query. They contain a token, which is secret until it is used.
    pub(super) path: String,
}

/// Why a URL must not be used. The text does not contain the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime's streaming URL cannot be used: {0}")]
pub(super) struct RefusedUrl(String);

/// Parses a URL: `http` with a loopback address, or `unix` (also `http+unix`) with a socket, as
/// `unix://%2Frun%2Fstreams.sock/exec/token` or, without a path, `unix:///run/streams.sock`.
pub(super) fn parse(url: &str) -> Result<StreamingTarget, RefusedUrl> {
    let refuse = |why: &str| Err(RefusedUrl(why.to_owned()));
    if url.len() > MAX_URL {
        return refuse("it is too long");
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse("it has no scheme");
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if authority.contains('@') {
        return refuse("it has credentials");
    }
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok(StreamingTarget {
            address: Address::Tcp(loopback(authority)?),
            host: authority.to_owned(),
            path: request_path(path)?,
        }),
        "https" => refuse("streams of the runtime over TLS are not supported"),
        "unix" | "http+unix" if authority.is_empty() => {
            let (socket, query) = path.split_at(path.find('?').unwrap_or(path.len()));
            unix(socket, &format!("/{query}"))
        }
        "unix" | "http+unix" => unix(authority, path),
        other => Err(RefusedUrl(format!("its scheme is {other:?}"))),
    }
}

fn unix(socket: &str, path: &str) -> Result<StreamingTarget, RefusedUrl> {
    let decoded = percent_decoded(socket).and_then(|socket| String::from_utf8(socket).ok());
    let decoded = decoded.filter(|socket| socket.starts_with('/') && !socket.contains('\0'));
    let Some(socket) = decoded else {
        return Err(RefusedUrl("it names no socket".into()));
    };
    Ok(StreamingTarget {
        address: Address::Unix(PathBuf::from(socket)),
        host: "localhost".into(),
        path: request_path(path)?,
    })
}

/// A loopback address and port. Names are not resolved, except `localhost`.
fn loopback(authority: &str) -> Result<SocketAddr, RefusedUrl> {
    let refuse = |why: &str| RefusedUrl(format!("{authority:?} {why}"));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') => (host, port),
        _ => return Err(refuse("has no port")),
    };
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| refuse("has no port"))?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let address = match (host, bare) {
        (_, Some(bare)) => bare.parse().ok().map(IpAddr::V6),
        (host, None) if host.eq_ignore_ascii_case("localhost") => {
            Some(IpAddr::V4(Ipv4Addr::LOCALHOST))
        }
        (host, None) => host.parse().ok().map(IpAddr::V4),
    };
    match address {
        Some(address) if address.is_loopback() => Ok(SocketAddr::new(address, port)),
        _ => Err(refuse("is not a loopback address")),
    }
}

/// The path for the request line.
fn request_path(path: &str) -> Result<String, RefusedUrl> {
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    match path.parse::<Uri>() {
        Ok(uri) if uri.host().is_none() && uri.path().starts_with('/') => Ok(path),
        _ => Err(RefusedUrl("its path is malformed".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_this_node_are_accepted() {
        let rows = [
            (
                "http://127.0.0.1:34567/exec/t0k3n",
                Address::Tcp(([127, 0, 0, 1], 34567).into()),
                "127.0.0.1:34567",
                "/exec/t0k3n",
            ),
            (
                "HTTP://127.8.9.10:80/attach/x?y=z#part",
                Address::Tcp(([127, 8, 9, 10], 80).into()),
                "127.8.9.10:80",
                "/attach/x?y=z",
            ),
            (
                "http://[::1]:1/portforward/x",
                Address::Tcp("[::1]:1".parse().unwrap()),
                "[::1]:1",
                "/portforward/x",
            ),
            ("http://localhost:99", Address::Tcp(([127, 0, 0, 1], 99).into()), "localhost:99", "/"),
            (
                "unix://%2Frun%2Fcri%2Fs.sock/exec/x",
                Address::Unix("/run/cri/s.sock".into()),
                "localhost",
                "/exec/x",
            ),
            (
                "http+unix:///run/s.sock?token=x",
                Address::Unix("/run/s.sock".into()),
                "localhost",
                "/?token=x",
            ),
        ];
        for (url, address, host, path) in rows {
            let target = parse(url).unwrap();
            assert_eq!(target.address, address, "{url}");
            assert_eq!((&*target.host, &*target.path), (host, path), "{url}");
        }
    }

    #[test]
    fn nothing_else_is() {
        let long = format!("http://127.0.0.1:1/{}", "x".repeat(MAX_URL));
        for url in [
            "",
            "127.0.0.1:80/exec/x",
            "/exec/x",
            "http://",
            "http:///exec/x",
            "http://127.0.0.1/exec/x",
            "http://127.0.0.1:0/exec/x",
            "http://127.0.0.1:65536/x",
            "http://10.0.0.1:80/exec/x",
            "http://169.254.169.254:80/latest/meta-data",
            "http://0.0.0.0:80/exec/x",
            "http://[::]:80/x",
            "http://[fe80::1]:80/x",
            "http://[::ffff:127.0.0.1]:80/x",
            "http://::1:80/x",
            "http://example.com:80/exec/x",
            "http://127.0.0.1.example.com:80/x",
            "http://localhost.example.com:80/x",
            "http://127.0.0.1:80@10.0.0.1:80/x",
            "http://user@127.0.0.1:80/x",
            "http://127.1:80/x",
            "http://0x7f000001:80/x",
            "http://2130706433:80/x",
            "http://127.0.0.1:80/a b",
            "http://127.0.0.1:80/a\r\nHost: other",
            "https://127.0.0.1:80/exec/x",
            "ftp://127.0.0.1:80/x",
            "file:///etc/passwd",
            "unix://run/s.sock/x",
            "unix://%2Frun%2/x",
            "unix://%2Frun%00/x",
            "unix://",
            &long,
        ] {
            let refused = parse(url);
            assert!(refused.is_err(), "{url}: {refused:?}");
        }
    }

    #[test]
    fn a_refusal_does_not_contain_the_token() {
        for url in [
            "http://10.0.0.1:80/exec/t0k3n",
            "https://127.0.0.1:80/exec/t0k3n",
            "http://127.0.0.1:80/t0k3n \n",
        ] {
            let text = parse(url).unwrap_err().to_string();
            assert!(!text.contains("t0k3n"), "{text}");
        }
    }
}
