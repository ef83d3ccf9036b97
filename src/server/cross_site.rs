//! Requests that a page of another site makes a browser send. Pure.
//!
//! A browser that has a client certificate shows it for whatever page asks. What only reads tells such a page
//! nothing, because the answer is kept from it; what runs something has happened by then. Browsers say where
//! a request comes from; other clients do not, and are not concerned.

use super::streaming::is_upgrade;
use hyper::{HeaderMap, Method};

/// Whether the request comes from another site and would do more than read. A site under the same domain is
/// none here: an API server passes on what browsers say to it, and dashboards are often its neighbours.
pub(super) fn is_abuse(method: &Method, headers: &HeaderMap) -> bool {
    let only_reads = matches!(*method, Method::GET | Method::HEAD) && !is_upgrade(headers);
    let from = headers.get("sec-fetch-site");
    let foreign = from.is_some_and(|from| from == "cross-site");
    foreign && !only_reads
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{CONNECTION, HeaderValue, UPGRADE};

    fn judged(method: Method, site: Option<&'static str>, upgrade: bool) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(site) = site {
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
        }
        if upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        is_abuse(&method, &headers)
    }

    #[test]
    fn pages_of_other_sites_may_not_make_a_browser_run_anything() {
        let foreign = Some("cross-site");
        assert!(judged(Method::POST, foreign, false));
        assert!(judged(Method::PUT, foreign, false));
        assert!(judged(Method::GET, foreign, true));
        let link = judged(Method::GET, foreign, false);
        assert!(!link, "a link may lead here");
        for ours in [None, Some("same-origin"), Some("same-site"), Some("none")] {
            assert!(!judged(Method::POST, ours, false), "{ours:?}");
            assert!(!judged(Method::GET, ours, true), "{ours:?}");
        }
    }
}
