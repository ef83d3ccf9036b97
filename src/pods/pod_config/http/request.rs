//! Requests, redirects and their limits. Pure.

use crate::base::percent_decoded;
use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Request, Uri};
use http_body_util::Empty;
use hyper::body::Bytes;

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestEndpoint {
    pub(super) tls: bool,
    /// Name or address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

/// The URL and the headers of the request.
#[derive(Clone, Debug)]
pub(super) struct ManifestRequest {
    uri: Uri,
    headers: HeaderMap,
}

impl ManifestRequest {
    /// The configured URL and headers; a password in the URL becomes an `Authorization` header.
    pub(super) fn new(url: &str, headers: &[(String, String)]) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().context("the URL cannot be parsed")?;
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let parsed = HeaderName::try_from(name.as_str());
            let parsed = parsed.with_context(|| format!("header name {name:?}"))?;
            // The value may be a secret: the error does not repeat it.
            let mut value = HeaderValue::try_from(value.as_str())
                .with_context(|| format!("value of header {name}"))?;
            value.set_sensitive(true);
            map.append(parsed, value);
        }
        let authority = uri.authority().map_or("", Authority::as_str);
        if let Some((user, _)) = authority.rsplit_once('@')
            && !map.contains_key(AUTHORIZATION)
        {
            let user = percent_decoded(user).context("user and password of the URL")?;
            let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(user)))?;
            value.set_sensitive(true);
            map.insert(AUTHORIZATION, value);
        }
        let target = Self { uri, headers: map };
        target.endpoint()?;
        Ok(target)
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(super) fn endpoint(&self) -> anyhow::Result<ManifestEndpoint> {
        let tls = match self.uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => bail!("the URL must begin with http:// or https://"),
        };
        let host = self.uri.host().unwrap_or_default();
        if host.is_empty() {
            bail!("the URL names no host");
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let port = self.uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(ManifestEndpoint { tls, host, port })
    }

    pub(super) fn request(&self) -> anyhow::Result<Request<Empty<Bytes>>> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.uri.authority().map_or("", Authority::as_str);
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let mut request = Request::get(path).body(Empty::new())?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::try_from(host)?);
        headers.insert(USER_AGENT, HeaderValue::from_static("kubelet"));
        for name in self.headers.keys() {
            headers.remove(name);
            for value in self.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Ok(request)
    }

    /// Follows a redirect. The configured headers may hold secrets, so they go along only to where
    /// they were meant for.
    pub(super) fn redirected(&self, location: &str) -> anyhow::Result<Self> {
        let uri = resolve(&self.uri, location)?;
        let same_place =
            uri.scheme() == self.uri.scheme() && same_host(uri.authority(), self.uri.authority());
        let headers = if same_place { self.headers.clone() } else { HeaderMap::new() };
        let target = Self { uri, headers };
        target.endpoint()?;
        Ok(target)
    }
}

fn same_host(one: Option<&Authority>, other: Option<&Authority>) -> bool {
    let place = |a: Option<&Authority>| a.map(|a| (a.host().to_lowercase(), a.port_u16()));
    place(one) == place(other)
}

/// A `Location` header against the URL that it was an answer to.
fn resolve(base: &Uri, location: &str) -> anyhow::Result<Uri> {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or("http");
    let authority = base.authority().map_or("", Authority::as_str);
    let path = base.path();
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let whole = if location.contains("://") {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{path}{location}")
    } else {
        format!("{scheme}://{authority}{directory}/{location}")
    };
    whole.parse().context("the redirect leads to no URL")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> ManifestRequest {
        let headers = [("X-Token".to_string(), "secret".to_string())];
        ManifestRequest::new(url, &headers).unwrap()
    }

    #[test]
    fn urls_lead_to_endpoints() {
        for (url, tls, host, port) in [
            ("http://a", false, "a", 80),
            ("https://a/x?y", true, "a", 443),
            ("http://a:81/", false, "a", 81),
            ("http://u:p@a:81/", false, "a", 81),
            ("https://[::1]:8443/x", true, "::1", 8443),
        ] {
            let endpoint = target(url).endpoint().unwrap();
            let host = host.to_string();
            assert_eq!(endpoint, ManifestEndpoint { tls, host, port }, "{url}");
        }
        for url in ["", "a", "/x", "ftp://a", "file:///x", "http://", "http:///x"] {
            assert!(ManifestRequest::new(url, &[]).is_err(), "{url}");
        }
        let bad = [("A".to_string(), "top\nsecret".to_string())];
        let error = format!("{:#}", ManifestRequest::new("http://a", &bad).unwrap_err());
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn requests_carry_the_headers() {
        let headers = [("X-A", "1"), ("X-A", "2"), ("Host", "other")];
        let headers = headers.map(|(n, v)| (n.to_string(), v.to_string()));
        let target = ManifestRequest::new("http://u:p%40ss@a:81/x?y=z", &headers).unwrap();
        let request = target.request().unwrap();
        assert_eq!(request.uri(), "/x?y=z");
        assert_eq!(request.headers()[HOST], "other");
        assert_eq!(request.headers().get_all("x-a").iter().count(), 2);
        assert_eq!(request.headers()[AUTHORIZATION], "Basic dTpwQHNz");
        assert_eq!(
            super::ManifestRequest::new("http://a:81", &[]).unwrap().request().unwrap().headers()
                [HOST],
            "a:81"
        );
    }

    #[test]
    fn redirects_are_resolved_and_keep_headers_only_at_home() {
        let base = target("http://a:81/d/x?q");
        for (location, url, home) in [
            ("/y", "http://a:81/y", true),
            ("y?z", "http://a:81/d/y?z", true),
            ("?z", "http://a:81/d/x?z", true),
            ("//b/y", "http://b/y", false),
            ("https://a:81/y", "https://a:81/y", false),
            ("http://a:82/y", "http://a:82/y", false),
            ("http://A:81/y#part", "http://A:81/y", true),
        ] {
            let next = base.redirected(location).unwrap();
            assert_eq!(next.uri.to_string(), url, "{location}");
            assert_eq!(!next.headers.is_empty(), home, "{location}");
        }
        assert!(base.redirected("file:///etc/passwd").is_err());
    }
}
