//! Proxies: which one the requests to a URL go through, and connections through it.
//!
//! Upstream: the proxies of Go's `net/http` (`ProxyFromEnvironment`) and of client-go (`proxy-url`).

use super::SecretUrl;
use anyhow::Context as _;
use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{env, fmt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::{BoxError, Service};

/// How long a proxy may take to connect to a server.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);

/// A proxy with its credentials. `Display` and `Debug` leave these out.
#[derive(Clone)]
pub struct Proxy(Intercept);

impl Proxy {
    /// The proxy of this URL; its user information is what the proxy is given.
    ///
    /// # Errors
    /// It is no URL, or of another scheme than `http`, `https`, `socks5` and `socks5h`.
    pub fn at(url: &str) -> anyhow::Result<Self> {
        let shown = || SecretUrl::from(url);
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        anyhow::ensure!(
            matches!(scheme, Some("http" | "https" | "socks5" | "socks5h")),
            "{}: a proxy must begin with http://, https:// or socks5://",
            shown()
        );
        let matcher = Matcher::builder().all(url).build();
        let any = Uri::from_static("https://server");
        let found = matcher.intercept(&any);
        found.map(Self).with_context(|| format!("{}: invalid URL of a proxy", shown()))
    }

    fn is_socks(&self) -> bool {
        let scheme = self.0.uri().scheme_str();
        scheme.is_some_and(|scheme| scheme.starts_with("socks"))
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.uri().to_string();
        f.write_str(text.strip_suffix('/').unwrap_or(&text))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The variables of proxies, which may be in lower case.
const VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// What an environment says about proxies. `Debug` leaves out the values, which may have credentials.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    /// `HTTPS_PROXY`: the proxy of `https` URLs; empty for none.
    https: String,
    /// `HTTP_PROXY`: the proxy of `http` URLs; empty for none.
    http: String,
    /// `NO_PROXY`: hosts, domains, addresses and networks that need none, separated by commas.
    none: String,
}

impl fmt::Debug for ProxyEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyEnvironment").finish_non_exhaustive()
    }
}

impl ProxyEnvironment {
    /// The environment of this process.
    pub fn read() -> Self {
        Self::of(&|name| env::var(name).ok())
    }

    /// Whether a variable names a proxy, or what needs none.
    pub fn has(name: &str) -> bool {
        VARIABLES.contains(&name.to_ascii_uppercase().as_str())
    }

    /// The environment in which `get` looks up a variable; names may be in lower case.
    pub fn of(get: &dyn Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| {
            let given = get(name).or_else(|| get(&name.to_lowercase()));
            given.unwrap_or_default()
        };
        Self { https: value("HTTPS_PROXY"), http: value("HTTP_PROXY"), none: value("NO_PROXY") }
    }

    /// The proxy of the requests to this URL. This machine needs none.
    ///
    /// # Errors
    /// The variable is no URL of a proxy; without a scheme it is taken as `http`.
    pub fn proxy_of(&self, url: &Uri) -> anyhow::Result<Option<Proxy>> {
        let (name, value, port) = match url.scheme_str() {
            Some("https") => ("HTTPS_PROXY", &self.https, 443),
            Some("http") => ("HTTP_PROXY", &self.http, 80),
            _ => return Ok(None),
        };
        let host = url.host().unwrap_or_default();
        let address: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
        if value.is_empty() || host == "localhost" || address.is_ok_and(|ip| ip.is_loopback()) {
            return Ok(None);
        }
        let full = if value.contains("://") { value.clone() } else { format!("http://{value}") };
        let proxy = Proxy::at(&full).with_context(|| name.to_owned())?;
        let exceptions = exceptions(&self.none, url.port_u16().unwrap_or(port));
        let matcher = Matcher::builder().all(full).no(exceptions).build();
        Ok(matcher.intercept(url).map(|_| proxy))
    }
}

/// The entries of `NO_PROXY` that concern a server of this port, as [`Matcher`] has them: without ports, and without
/// the asterisk before a domain.
fn exceptions(none: &str, port: u16) -> String {
    let entry = |entry: &str| {
        let entry = entry.trim();
        let domain = entry.strip_prefix("*.").map(|domain| format!(".{domain}"));
        let entry = domain.unwrap_or_else(|| entry.to_owned());
        match entry.rsplit_once(':') {
            Some((host, given)) if !host.contains(':') || host.ends_with(']') => {
                let is_meant = given.parse() == Ok(port);
                is_meant.then(|| host.trim_matches(['[', ']']).to_owned())
            }
            _ => Some(entry),
        }
    };
    let entries = none.split(',').filter_map(entry);
    entries.collect::<Vec<_>>().join(",")
}

/// A connection without the server's TLS, perhaps inside the TLS of a proxy.
pub type ProxiedStream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Connects to servers, directly or through a proxy; cheap to clone.
#[derive(Clone)]
pub struct ProxyConnector {
    route: Route,
    proxy: Option<Proxy>,
}

#[derive(Clone)]
enum Route {
    Direct(HttpConnector),
    Tunnel(Tunnel<HttpsConnector<HttpConnector>>),
    Socks(SocksV5<HttpConnector>),
}

impl ProxyConnector {
    /// Connections of `tcp` through `proxy`. `tls` is for a proxy that speaks TLS itself.
    pub fn new(mut tcp: HttpConnector, proxy: Option<Proxy>, tls: &ClientConfig) -> Self {
        tcp.enforce_http(false);
        let route = match &proxy {
            None => Route::Direct(tcp),
            Some(proxy) if proxy.is_socks() => Route::Socks(socks(proxy, tcp)),
            Some(proxy) => Route::Tunnel(tunnel(proxy, tcp, tls)),
        };
        Self { route, proxy }
    }
}

fn socks(proxy: &Proxy, tcp: HttpConnector) -> SocksV5<HttpConnector> {
    let socks = SocksV5::new(proxy.0.uri().clone(), tcp);
    match proxy.0.raw_auth() {
        Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
        None => socks,
    }
}

fn tunnel(
    proxy: &Proxy,
    tcp: HttpConnector,
    tls: &ClientConfig,
) -> Tunnel<HttpsConnector<HttpConnector>> {
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    let tunnel = Tunnel::new(proxy.0.uri().clone(), connector);
    match proxy.0.basic_auth() {
        Some(credentials) => tunnel.with_auth(credentials.clone()),
        None => tunnel,
    }
}

impl Service<Uri> for ProxyConnector {
    type Response = ProxiedStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ProxiedStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.route {
            Route::Direct(tcp) => tcp.poll_ready(context).map_err(Into::into),
            Route::Tunnel(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
            Route::Socks(socks) => socks.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let proxy = self.proxy.clone();
        match &mut self.route {
            Route::Direct(tcp) => {
                let connecting = tcp.call(url);
                Box::pin(async { Ok(MaybeHttpsStream::Http(connecting.await?)) })
            }
            Route::Tunnel(tunnel) => {
                let connecting = tunnel.call(url);
                Box::pin(through(proxy, async { Ok(connecting.await?) }))
            }
            Route::Socks(socks) => {
                let connecting = socks.call(url);
                let connecting = async { Ok(MaybeHttpsStream::Http(connecting.await?)) };
                Box::pin(through(proxy, connecting))
            }
        }
    }
}

/// A connection through a proxy, whose errors name it.
async fn through(
    proxy: Option<Proxy>,
    connecting: impl Future<Output = Result<ProxiedStream, BoxError>>,
) -> Result<ProxiedStream, BoxError> {
    let proxy = proxy.map(|proxy| proxy.to_string()).unwrap_or_default();
    match timeout(TUNNEL_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(ProxyError { proxy, error }.into()),
        Err(_) => {
            let text = format!("it did not connect within {} s", TUNNEL_TIMEOUT.as_secs());
            let error = text.into();
            Err(ProxyError { proxy, error }.into())
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("proxy {proxy}")]
struct ProxyError {
    proxy: String,
    #[source]
    error: BoxError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_url_whose_credentials_are_never_shown() {
        for (url, shown) in [
            ("http://p:3128", Ok("http://p:3128")),
            ("https://u:s3cret@p:3128/", Ok("https://p:3128")),
            ("socks5://u:s3cret@[::1]:1080", Ok("socks5://[::1]:1080")),
            ("p:3128", Err("must begin with")),
            ("ftp://u:s3cret@p", Err("must begin with")),
            ("http://u:s3cret@", Err("invalid URL")),
            ("http://", Err("invalid URL")),
            ("", Err("must begin with")),
        ] {
            match (Proxy::at(url), shown) {
                (Ok(proxy), Ok(shown)) => assert_eq!(proxy.to_string(), shown),
                (Err(error), Err(part)) => {
                    let text = format!("{error:?}");
                    assert!(text.contains(part) && !text.contains("s3cret"), "{text}");
                }
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_environment_decides_as_in_programs_of_go() {
        let rows: &[(&str, &str, bool)] = &[
            ("https://10.0.0.1:6443", "", true),
            ("https://localhost:6443", "", false),
            ("https://127.0.0.1:6443", "", false),
            ("https://[::1]:6443", "", false),
            ("http://10.0.0.1", "", false),
            ("https://10.0.0.1:6443", "10.0.0.0/8", false),
            ("https://11.0.0.1:6443", "10.0.0.0/8", true),
            ("https://10.0.0.1:6443", "10.0.0.1:6443", false),
            ("https://10.0.0.1:6443", "10.0.0.1:443", true),
            ("https://[fd00::1]:6443", "fd00::/8", false),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", false),
            ("https://[fd00::1]:6443", "fd00::1", false),
            ("https://api.example.com:6443", "example.com", false),
            ("https://api.example.com:6443", " .example.com ,x", false),
            ("https://api.example.com:6443", "*.example.com", false),
            ("https://api.example.com", "example.com:443", false),
            ("https://notexample.com:6443", "example.com", true),
            ("https://api.example.com:6443", "*", false),
        ];
        for (url, none, is_used) in rows {
            let environment = ProxyEnvironment {
                https: "p:3128".to_owned(),
                none: (*none).to_owned(),
                ..ProxyEnvironment::default()
            };
            let proxy = environment.proxy_of(&Uri::from_static(url)).unwrap();
            assert_eq!(proxy.is_some(), *is_used, "{url} {none:?}");
            if let Some(proxy) = proxy {
                assert_eq!(proxy.to_string(), "http://p:3128");
            }
        }
        let environment = ProxyEnvironment {
            https: "gopher://u:s3cret@p".to_owned(),
            ..ProxyEnvironment::default()
        };
        let error = environment.proxy_of(&Uri::from_static("https://a")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("HTTPS_PROXY: ") && !text.contains("s3cret"), "{text}");
    }
}
