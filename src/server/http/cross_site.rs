//! Detects requests that a page of another site makes a browser send (CSRF). Pure.
//!
//! A browser presents its client certificate for requests of every page. Requests that only read are harmless,
//! because the browser hides the response from the page, except for WebSockets, which are exempt from that rule.
//! Browsers send the origin of a request in `Sec-Fetch-Site`, which Chromium omits in WebSocket handshakes, and in
//! `Origin`, which every browser sends there. Other clients send neither.

use super::websocket::is_upgrade;
use hyper::{HeaderMap, Method, header};

/// Whether the request comes from a page of another site and does more than read.
///
/// A site under the same domain is not another site. Proxied requests are accepted: API servers forward requests of
/// browsers, for example of dashboards, and have authenticated the user. A proxy sets `X-Forwarded-For`; a page
/// cannot set that header on a WebSocket, and on other requests only if this server permits it (CORS).
pub(in crate::server) fn is_cross_site_write(method: &Method, headers: &HeaderMap) -> bool {
    let only_reads = matches!(*method, Method::GET | Method::HEAD) && !is_upgrade(headers);
    if only_reads || headers.contains_key("x-forwarded-for") {
        return false;
    }
    match headers.get("sec-fetch-site") {
        Some(site) => site == "cross-site",
        None => is_upgrade(headers) && !is_own_origin(headers),
    }
}

/// Whether the `Origin`, if there is one, is this server.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let host = headers.get(header::HOST).map(|host| host.as_bytes());
    let authority = origin.to_str().ok().and_then(|text| text.split_once("://"));
    authority.is_some_and(|(_, authority)| {
        host.is_some_and(|host| host.eq_ignore_ascii_case(authority.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};

    fn refuses(method: Method, lines: &[(&'static str, &'static str)], upgrade: bool) -> bool {
        let line = |(name, value): &(&'static str, &'static str)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        };
        let mut headers: HeaderMap = lines.iter().map(line).collect();
        if upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        is_cross_site_write(&method, &headers)
    }

    #[test]
    fn pages_of_other_sites_may_not_make_a_browser_run_anything() {
        let foreign = &[("sec-fetch-site", "cross-site")];
        assert!(refuses(Method::POST, foreign, false));
        assert!(refuses(Method::PUT, foreign, false));
        assert!(refuses(Method::GET, foreign, true));
        let link = refuses(Method::GET, foreign, false);
        assert!(!link, "a link may lead here");
        for ours in ["same-origin", "same-site", "none"] {
            let ours = &[("sec-fetch-site", ours)];
            assert!(!refuses(Method::POST, ours, false), "{ours:?}");
            assert!(!refuses(Method::GET, ours, true), "{ours:?}");
        }
        assert!(!refuses(Method::POST, &[], false));
        assert!(!refuses(Method::GET, &[], true));
    }

    #[test]
    fn a_websocket_without_a_site_must_come_from_a_page_of_this_server() {
        // Origin, host, whether the request is refused.
        let rows = [
            ("https://node:10250", "node:10250", false),
            ("https://NODE:10250", "node:10250", false),
            ("https://node", "node", false),
            ("https://node:10250", "node", true),
            ("https://evil.example", "node:10250", true),
            ("https://node:10250.evil.example", "node:10250", true),
            ("https://node:10250@evil.example", "node:10250", true),
            ("http://node", "node:10250", true),
            ("null", "node:10250", true),
            ("", "node:10250", true),
        ];
        for (origin, host, refused) in rows {
            let lines = &[("origin", origin), ("host", host)];
            assert_eq!(refuses(Method::GET, lines, true), refused, "{lines:?}");
            assert!(!refuses(Method::GET, lines, false), "it only reads: {lines:?}");
        }
        assert!(refuses(Method::GET, &[("origin", "https://node")], true));
    }

    #[test]
    fn forwarded_requests_are_left_to_the_proxy() {
        let dashboard = [
            ("origin", "https://dashboard.example"),
            ("host", "node:10250"),
            ("x-forwarded-for", "10.0.0.7"),
        ];
        assert!(!refuses(Method::GET, &dashboard, true));
        let firefox = [("sec-fetch-site", "cross-site"), ("x-forwarded-for", "10.0.0.7")];
        assert!(!refuses(Method::GET, &firefox, true));
        assert!(!refuses(Method::POST, &firefox, false));
    }
}
