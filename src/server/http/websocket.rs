//! Detects upgrades, and extracts a bearer token from the subprotocols of a WebSocket, the only place where a page in
//! a browser can pass one. Pure.
//!
//! Upstream: `k8s.io/apiserver/pkg/authentication/request/websocket`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, header};

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Whether a request is an upgrade (upstream's `IsUpgradeRequest`).
pub(in crate::server) fn is_upgrade(headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(header::CONNECTION).iter();
    let has_upgrade = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.to_ascii_lowercase().contains("upgrade")
    };
    connection.any(has_upgrade) && headers.contains_key(header::UPGRADE)
}

/// Whether a request is an upgrade to WebSocket.
pub(in crate::server) fn is_websocket(headers: &HeaderMap) -> bool {
    let protocol = headers.get(header::UPGRADE).and_then(|v| v.to_str().ok());
    is_upgrade(headers) && protocol.is_some_and(|p| p.eq_ignore_ascii_case("websocket"))
}

/// The token in the subprotocols of a WebSocket request; `None` if there is none.
///
/// # Errors
/// The token is invalid; the texts are upstream's.
pub(in crate::server) fn token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    if !is_websocket(headers) {
        return Ok(None);
    }
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        protocols(headers).partition(|protocol| protocol.starts_with(PREFIX));
    let [token] = tokens[..] else {
        return if tokens.is_empty() {
            Ok(None)
        } else {
            Err("multiple base64.bearer.authorization tokens specified")
        };
    };
    let encoded = token.strip_prefix(PREFIX).unwrap_or_default();
    let decoded = URL_SAFE_NO_PAD.decode(encoded);
    let decoded = decoded.map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(decoded);
    let token = token.map_err(|_| "invalid base64.bearer.authorization token")?;
    if token.is_empty() {
        return Ok(None);
    }
    // The response has to select one of the other subprotocols.
    if others.is_empty() {
        return Err("missing additional subprotocol");
    }
    Ok(Some(token))
}

/// The subprotocols without the token, for the runtime; `None` if no other is left.
pub(in crate::server) fn without_tokens(headers: &HeaderMap) -> Option<HeaderValue> {
    let others: Vec<&str> =
        protocols(headers).filter(|protocol| !protocol.starts_with(PREFIX)).collect();
    let others = others.join(", ");
    (!others.is_empty()).then(|| HeaderValue::from_str(&others).ok()).flatten()
}

/// Header values that are not text are skipped, because they may contain a token.
fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let protocols = lines.flat_map(|line| line.split(',')).map(str::trim);
    protocols.filter(|protocol| !protocol.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        for line in lines {
            let line = HeaderValue::from_str(line).unwrap();
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, line);
        }
        headers
    }

    #[test]
    fn a_token_is_the_one_protocol_of_that_name() {
        // "reader-1", "", bytes that are not UTF-8.
        let good = "base64url.bearer.authorization.k8s.io.cmVhZGVyLTE";
        let empty = "base64url.bearer.authorization.k8s.io.";
        let binary = "base64url.bearer.authorization.k8s.io.__79";
        let rows: &[(&[&str], _)] = &[
            (&["v4.channel.k8s.io"], Ok(None)),
            (&[], Ok(None)),
            (&[good, "v4.channel.k8s.io"], Ok(Some("reader-1"))),
            (
                &["v5.channel.k8s.io , base64url.bearer.authorization.k8s.io.cmVhZGVyLTE"],
                Ok(Some("reader-1")),
            ),
            (&[good], Err("missing additional subprotocol")),
            (&[good, good, "v4"], Err("multiple base64.bearer.authorization tokens specified")),
            (&[empty, "v4"], Ok(None)),
            (&[binary, "v4"], Err("invalid base64.bearer.authorization token")),
            (
                &["base64url.bearer.authorization.k8s.io.cmVhZGVyLTE=", "v4"],
                Err("invalid base64.bearer.authorization token encoding"),
            ),
        ];
        for (lines, expected) in rows {
            let found = token(&headers(lines));
            assert_eq!(
                found.as_ref().map(Option::as_deref),
                expected.as_ref().map(|t| *t),
                "{lines:?}"
            );
        }
        let mut no_upgrade = headers(&[good, "v4"]);
        no_upgrade.remove(header::UPGRADE);
        assert_eq!(token(&no_upgrade), Ok(None));
    }

    #[test]
    fn the_runtime_gets_no_token() {
        let token = "base64url.bearer.authorization.k8s.io.cmVhZGVyLTE";
        let rows: &[(&[&str], _)] = &[
            (
                &["v5.channel.k8s.io, v4.channel.k8s.io"],
                Some("v5.channel.k8s.io, v4.channel.k8s.io"),
            ),
            (&[token, "v4.channel.k8s.io"], Some("v4.channel.k8s.io")),
            (&[token, token], None),
            (&[], None),
        ];
        for (lines, expected) in rows {
            let left = without_tokens(&headers(lines));
            assert_eq!(left.as_ref().map(|left| left.to_str().unwrap()), *expected, "{lines:?}");
        }
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let rows: &[(&[(&str, &str)], _, _)] = &[
            (&[], false, false),
            (&[("upgrade", "SPDY/3.1")], false, false),
            (&[("connection", "Upgrade")], false, false),
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], true, false),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "WebSocket")], true, true),
            (&[("connection", "close"), ("connection", "UPGRADE"), ("upgrade", "x")], true, false),
            (&[("connection", "close"), ("upgrade", "websocket")], false, false),
        ];
        for (lines, upgrade, websocket) in rows {
            let mut map = HeaderMap::new();
            for (name, value) in *lines {
                map.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(is_upgrade(&map), *upgrade, "{lines:?}");
            assert_eq!(is_websocket(&map), *websocket, "{lines:?}");
        }
    }
}
