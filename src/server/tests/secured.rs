//! The secured port through real TLS, with a scripted API server on loopback.

mod crowd;
mod every_route;

use super::*;
use crate::apiserver::ApiServer;
use crate::apiserver::tests::pki::{Authority, Issued};
use crate::apiserver::tests::scripted::{Answer, Scripted};
use crate::model::ContainerId;
use crate::runtime::logs::ContainerLogs;
use crate::server::auth::{AuthSettings, AuthorizationMode, KubeletAuth};
use crate::server::tls::{ClientCaFile, ServingCertificate, Tls, TlsOptions, TlsSettings};
use crate::state::pod_cache::{self, InspectedItem, ItemId, PodCacheWriter, PodRef};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const LONG: Duration = Duration::from_secs(3600);

/// The settings of the port.
struct Setting {
    dir: tempfile::TempDir,
    limits: ConnectionLimits,
    auth: AuthSettings,
    options: TlsOptions,
    api: Option<ApiServer>,
    metrics: Metrics,
    cluster: Authority,
    clients: Authority,
}

impl Setting {
    /// Clients with certificates may do everything; there is no API server.
    fn alone() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, clients) = (Authority::new("cluster"), Authority::new("clients"));
        let setting = Self {
            limits: ConnectionLimits::default(),
            auth: AuthSettings {
                client_ca_file: Some(dir.path().join("clients.crt")),
                anonymous: false,
                token_ttl: None,
                review_qps: 0,
                review_burst: 0,
                strict_upgrade_verbs: false,
                authorization: AuthorizationMode::AlwaysAllow,
            },
            options: TlsOptions::default(),
            api: None,
            metrics: Metrics::new(),
            cluster,
            clients,
            dir,
        };
        setting.trust(&setting.clients);
        setting.show(&setting.cluster.server("n1"));
        setting
    }

    /// Connections may be idle for as long as the test takes.
    fn with_long_timeouts(mut self) -> Self {
        (self.limits.head_timeout, self.limits.idle_timeout) = (LONG, LONG);
        self
    }

    /// The API server reviews tokens and access.
    async fn with_reviews(api: &Scripted) -> Self {
        let mut setting = Self::alone();
        let path = api.kubeconfig(setting.dir.path());
        let api = ApiServer::of_kubeconfig(&path).await.unwrap();
        setting.api = Some(api.measured(&setting.metrics));
        setting.auth.token_ttl = Some(LONG);
        setting.auth.authorization =
            AuthorizationMode::Webhook { allowed_ttl: LONG, denied_ttl: LONG };
        setting
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Adds an authority to the file of client authorities.
    fn trust(&self, authority: &Authority) {
        fs::write(self.file("clients.crt"), authority.pem()).unwrap();
    }

    /// Replaces the serving certificate in its files, the key first.
    fn show(&self, issued: &Issued) {
        fs::write(self.file("serving.key"), &issued.key_pem).unwrap();
        fs::write(self.file("serving.crt"), &issued.pem).unwrap();
    }

    async fn serve(&self) -> Served {
        self.serve_with(read_only()).await
    }

    async fn serve_with(&self, handler: PortHandler) -> Served {
        let ca = self.auth.client_ca_file.as_deref();
        let client_ca = ca.map(|path| Arc::new(ClientCaFile::open(path).unwrap()));
        let auth = KubeletAuth::new(self.auth.clone(), "n1", client_ca.clone(), self.api.clone());
        let settings = TlsSettings {
            certificate: ServingCertificate::Files {
                certificate: self.file("serving.crt"),
                key: self.file("serving.key"),
            },
            options: self.options.clone(),
        };
        let tls = Tls::open(&settings, ("n1", &[]), client_ca).unwrap();
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind("test", any).await.unwrap();
        let listener = listener.limits(self.limits).tls(tls);
        let address = listener.address().unwrap();
        let shutdown = CancellationToken::new();
        let handler = handler.secured(auth.unwrap().measured(&self.metrics));
        let task = tokio::spawn(listener.serve(handler, shutdown.clone()));
        Served { address, shutdown, task }
    }

    fn client(&self, certificate: Option<&Issued>) -> ClientConfig {
        client(&self.cluster, certificate, rustls::ALL_VERSIONS)
    }
}

/// A client that trusts this authority.
fn client(
    trusted: &Authority,
    certificate: Option<&Issued>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der()).unwrap();
    let provider = crate::base::tls_provider();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match certificate {
        Some(issued) => {
            builder.with_client_auth_cert(vec![issued.der.clone()], issued.key()).unwrap()
        }
        None => builder.with_no_client_auth(),
    }
}

async fn shake(served: &Served, config: &ClientConfig) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("n1").unwrap();
    let stream = served.connect().await;
    let connector = TlsConnector::from(Arc::new(config.clone()));
    timeout(TIMEOUT, connector.connect(name, stream)).await.expect("no handshake in time")
}

/// For deadlines of the server that are short on a slow machine.
async fn shake_at_last(served: &Served, config: &ClientConfig) -> TlsStream<TcpStream> {
    let shaken = async {
        loop {
            if let Ok(stream) = shake(served, config).await {
                return stream;
            }
        }
    };
    timeout(TIMEOUT, shaken).await.expect("no handshake ends")
}

/// Everything until the connection closes, by an end or by a reset.
async fn read_all(stream: &mut TlsStream<TcpStream>) -> String {
    let mut bytes = Vec::new();
    let read = timeout(TIMEOUT, stream.read_to_end(&mut bytes));
    let _ = read.await.expect("still open");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn send(served: &Served, config: &ClientConfig, request: &str) -> String {
    let mut stream = shake(served, config).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    read_all(&mut stream).await
}

/// Status and body of a GET with these headers.
async fn get(served: &Served, config: &ClientConfig, target: &str, headers: &str) -> (u16, String) {
    let text = send(served, config, &format!("GET {target} HTTP/1.0\r\n{headers}\r\n")).await;
    answer(&text)
}

fn answer(text: &str) -> (u16, String) {
    let (head, body) = split(text);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// The status of a GET on a connection that stays open.
async fn fetch(stream: &mut TlsStream<TcpStream>, target: &str) -> u16 {
    let request = format!("HEAD {target} HTTP/1.1\r\nHost: n1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(TIMEOUT, stream.read_u8()).await.expect("no answer in time");
        head.push(byte.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Tokens are names with a dash and a number; "bad" is invalid. "reader" may use `pods`, "root" everything,
/// others nothing.
fn cluster(kind: &str, spec: &Value) -> Answer {
    if kind == "tokenreviews" {
        let name = spec["token"].as_str().unwrap().split('-').next().unwrap();
        let user = json!({"username": name, "groups": ["tokens"], "extra": {"k": ["v"]}});
        return match name {
            "bad" => Answer::Json(201, json!({"authenticated": false, "error": "bad token"})),
            "broken" => Answer::Json(403, json!({"message": "reviews are forbidden"})),
            _ => Answer::Json(201, json!({"authenticated": true, "user": user})),
        };
    }
    let subresource = spec["resourceAttributes"]["subresource"].as_str().unwrap();
    match spec["user"].as_str().unwrap() {
        "root" => Answer::Json(201, json!({"allowed": true})),
        "proxied" => Answer::Json(201, json!({"allowed": subresource == "proxy"})),
        "reader" => Answer::Json(201, json!({"allowed": subresource == "pods"})),
        "both" => Answer::Json(201, json!({"allowed": true, "denied": true})),
        "broken" => Answer::Json(403, json!({"message": "reviews are forbidden"})),
        _ => Answer::Json(201, json!({"allowed": false, "denied": true})),
    }
}

#[tokio::test]
async fn only_authenticated_and_authorized_requests_are_served() {
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = setting.serve().await;
    let plain = setting.client(None);
    let forbidden =
        "Forbidden (user=other, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    let rows = [
        (String::new(), 401, "Unauthorized\n"),
        (bearer("reader-1"), 200, ""),
        (bearer("proxied-1"), 200, ""),
        (bearer("other-1"), 403, forbidden),
        (bearer("bad-1"), 401, "Unauthorized\n"),
        ("Authorization: Basic cmVhZGVyOng=\r\n".into(), 401, "Unauthorized\n"),
        ("Authorization: Bearer\r\n".into(), 401, "Unauthorized\n"),
        ("Authorization: Bearer \u{e9}\r\n".into(), 401, "Unauthorized\n"),
        ("Authorization: reader-1\r\n".into(), 401, "Unauthorized\n"),
    ];
    for (headers, status, text) in rows {
        let (found, body) = get(&served, &plain, "/pods", &headers).await;
        assert_eq!(found, status, "{headers:?}: {body}");
        match status {
            200 => assert!(body.contains("\"kind\":\"PodList\""), "{body}"),
            _ => assert_eq!(body, text, "{headers:?}"),
        }
    }
    let questions = api.seen("subjectaccessreviews");
    let of_reader = questions.iter().find(|spec| spec["user"] == "reader");
    let expected = json!({
        "user": "reader",
        "groups": ["tokens", "system:authenticated"],
        "extra": {"k": ["v"]},
        "resourceAttributes": {
            "verb": "get", "version": "v1", "resource": "nodes", "subresource": "pods", "name": "n1",
        },
    });
    assert_eq!(of_reader, Some(&expected));
    served.stop().await;
}

#[tokio::test]
async fn a_token_may_be_a_subprotocol_of_a_websocket() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = setting.serve().await;
    let plain = setting.client(None);
    let status = async |token: &str, more: &str| {
        let token = URL_SAFE_NO_PAD.encode(token);
        let headers = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}{more}\r\n"
        );
        let target = "/exec/default/none/c?command=ls&output=1";
        get(&served, &plain, target, &headers).await.0
    };
    let other = ", v5.channel.k8s.io";
    assert_eq!(status("root-1", other).await, 404, "it is let in");
    assert_eq!(status("reader-1", other).await, 403);
    assert_eq!(status("bad-1", other).await, 401);
    assert_eq!(status("root-1", "").await, 401, "no protocol is left");
    // One valid credential is enough.
    let both = format!("{other}\r\n{}", bearer("bad-1").trim_end());
    assert_eq!(status("root-1", &both).await, 404);
    served.stop().await;
}

#[tokio::test]
async fn requests_to_the_api_server_have_upstreams_metrics() {
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = setting.serve().await;
    let plain = setting.client(None);
    for token in ["reader-1", "reader-1", "broken-1"] {
        get(&served, &plain, "/pods", &bearer(token)).await;
    }
    let text = setting.metrics.text();
    for sample in [
        "authentication_token_cache_request_total{status=\"hit\"} 1",
        "authentication_token_cache_request_total{status=\"miss\"} 2",
        "authentication_token_cache_request_duration_seconds_count{status=\"miss\"} 2",
        "authentication_token_cache_fetch_total{status=\"ok\"} 1",
        "authentication_token_cache_fetch_total{status=\"error\"} 1",
        "authentication_token_cache_active_fetch_count{status=\"blocked\"} 0",
        "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0",
        "apiserver_delegated_authn_request_total{code=\"201\"} 1",
        "apiserver_delegated_authn_request_total{code=\"403\"} 1",
        "apiserver_delegated_authn_request_duration_seconds_count{code=\"403\"} 1",
        "apiserver_delegated_authz_request_total{code=\"201\"} 1",
        "apiserver_delegated_authz_request_duration_seconds_count{code=\"201\"} 1",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample} in {text}");
    }
    let requests = "rest_client_requests_total{code=\"201\",method=\"POST\",host=\"";
    let mut hosts = text.lines().filter_map(|line| line.strip_prefix(requests));
    let host = hosts.next().unwrap().strip_suffix("\"} 2").unwrap();
    assert!(host.contains(':') && !host.contains('/'), "{host}");
    let latency =
        format!("rest_client_request_duration_seconds_count{{verb=\"POST\",host=\"{host}\"}} 3");
    assert!(text.contains(&latency), "{text}");
    drop(api);
    get(&served, &plain, "/pods", &bearer("reader-2")).await;
    let text = setting.metrics.text();
    let lost = "apiserver_delegated_authn_request_total{code=\"<error>\"}";
    assert!(text.contains(lost), "{text}");
    served.stop().await;
}

#[tokio::test]
async fn a_client_with_a_certificate_loses_no_place_to_unauthenticated_ones() {
    let mut setting = Setting::alone().with_long_timeouts();
    (setting.limits.unauthenticated, setting.limits.authenticated) = (2, 2);
    let served = setting.serve().await;
    let config = setting.client(Some(&setting.clients.client("ops", &[])));
    let mut first = shake(&served, &config).await.unwrap();
    assert_eq!(fetch(&mut first, "/pods").await, 200);
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(served.connect().await);
    }
    assert_eq!(fetch(&mut first, "/pods").await, 200);
    let mut second = shake(&served, &config).await.unwrap();
    assert_eq!(fetch(&mut second, "/pods").await, 200);
    let mut third = shake(&served, &config).await.unwrap();
    assert_eq!(fetch(&mut third, "/pods").await, 200);
    assert_eq!(read_all(&mut first).await, "", "the longest idle one");
    assert_eq!(fetch(&mut second, "/pods").await, 200);
    served.stop().await;
}

#[tokio::test]
async fn a_certificate_without_expiry_is_served_and_used() {
    let setting = Setting::alone();
    setting.show(&setting.cluster.endless("n1"));
    let served = setting.serve().await;
    let client = setting.client(Some(&setting.clients.endless("ops")));
    let (status, body) = get(&served, &client, "/healthz/ping", "").await;
    assert_eq!((status, body.as_str()), (200, "ok"));
}

#[tokio::test]
async fn client_certificates_count_where_their_authority_does() {
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = setting.serve().await;
    let foreign = Authority::new("clients");
    let rows = [
        (setting.clients.client("reader", &["viewers"]), 200),
        (setting.clients.client("other", &[]), 403),
        (setting.clients.client("", &["viewers"]), 401),
        (setting.clients.expired_client("reader"), 401),
        (foreign.client("reader", &[]), 401),
        // A certificate for servers is not valid for clients.
        (setting.clients.server("reader"), 401),
    ];
    for (issued, status) in &rows {
        let config = setting.client(Some(issued));
        let (found, body) = get(&served, &config, "/pods", "").await;
        assert_eq!(found, *status, "{body}");
    }
    let questions = api.seen("subjectaccessreviews");
    assert_eq!(questions[0]["user"], "reader");
    assert_eq!(questions[0]["groups"], json!(["viewers", "system:authenticated"]));
    // A valid token makes up for an invalid certificate.
    let config = setting.client(Some(&rows[4].0));
    assert_eq!(get(&served, &config, "/pods", &bearer("reader-1")).await.0, 200);
    // A client with a valid certificate causes no TokenReview.
    let requested = api.seen("tokenreviews").len();
    let config = setting.client(Some(&rows[0].0));
    assert_eq!(get(&served, &config, "/pods", &bearer("bad-2")).await.0, 200);
    assert_eq!(api.seen("tokenreviews").len(), requested);
    served.stop().await;
}

#[tokio::test]
async fn anonymous_requests_are_judged_where_they_are_let_in() {
    let api = Scripted::start(|kind, spec| match spec["user"].as_str() {
        Some("system:anonymous") => {
            let health = spec["resourceAttributes"]["subresource"] == "healthz";
            Answer::Json(201, json!({"allowed": health}))
        }
        _ => cluster(kind, spec),
    })
    .await;
    let mut setting = Setting::with_reviews(&api).await;
    setting.auth.anonymous = true;
    let served = setting.serve().await;
    let plain = setting.client(None);
    assert_eq!(get(&served, &plain, "/healthz/ping", "").await, (200, "ok".into()));
    let (status, text) = get(&served, &plain, "/pods", "").await;
    assert_eq!(status, 403);
    assert!(text.starts_with("Forbidden (user=system:anonymous, verb=get,"), "{text}");
    let requested = api.seen("subjectaccessreviews");
    assert_eq!(requested[0]["groups"], json!(["system:unauthenticated"]));
    // A client with invalid credentials is not anonymous.
    assert_eq!(get(&served, &plain, "/healthz/ping", &bearer("bad-1")).await.0, 401);
    served.stop().await;
}

#[tokio::test]
async fn without_an_api_server_every_authenticated_user_may_do_everything() {
    let setting = Setting::alone();
    let served = setting.serve().await;
    let (known, plain) = (setting.clients.client("ops", &[]), setting.client(None));
    let known = setting.client(Some(&known));
    assert_eq!(get(&served, &known, "/pods", "").await.0, 200);
    assert_eq!(get(&served, &known, "/nowhere", "").await.0, 404);
    assert_eq!(get(&served, &plain, "/pods", "").await.0, 401);
    // Unauthorized clients must not learn which paths exist.
    assert_eq!(get(&served, &plain, "/nowhere", "").await.0, 401);
    assert_eq!(get(&served, &plain, "/pods", &bearer("any")).await.0, 401);
    served.stop().await;
}

#[tokio::test]
async fn the_route_determines_the_subresources_and_their_order() {
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = setting.serve().await;
    let plain = setting.client(None);
    let rows = [
        ("GET /pods", &["pods", "proxy"][..], "get"),
        ("GET /pods/?x=/healthz", &["pods", "proxy"], "get"),
        ("HEAD /healthz", &["healthz", "proxy"], "get"),
        ("GET /metrics", &["metrics"], "get"),
        ("GET /configz", &["configz", "proxy"], "get"),
        ("POST /run/a/b/c", &["proxy"], "create"),
        ("PUT /nowhere", &["proxy"], "update"),
        ("PATCH /healthz/../pods", &["proxy"], "patch"),
        ("DELETE /pods", &["pods", "proxy"], "delete"),
        ("GET /events?limit=x", &["pods", "proxy"], "get"),
    ];
    for (at, (line, subresources, verb)) in rows.into_iter().enumerate() {
        let before = api.seen("subjectaccessreviews").len();
        let request = format!("{line} HTTP/1.0\r\n{}\r\n", bearer(&format!("u{at}-1")));
        let text = send(&served, &plain, &request).await;
        assert!(text.starts_with("HTTP/1.0 403"), "{line}: {text}");
        let requested = api.seen("subjectaccessreviews").split_off(before);
        let of = |spec: &Value| spec["resourceAttributes"].clone();
        let tried: Vec<Value> =
            requested.iter().map(|spec| of(spec)["subresource"].clone()).collect();
        assert_eq!(tried, subresources, "{line}");
        assert!(requested.iter().all(|spec| of(spec)["verb"] == verb), "{line}: {requested:?}");
    }
    // Authorized clients get the error of the query.
    let root = bearer("root-1");
    assert_eq!(get(&served, &plain, "/nowhere", &root).await.0, 404);
    assert_eq!(get(&served, &plain, "/events?limit=x", &root).await.0, 400);
    let request = format!("DELETE /pods HTTP/1.0\r\n{root}\r\n");
    assert_eq!(answer(&send(&served, &plain, &request).await).0, 405);
    served.stop().await;
}

#[tokio::test]
async fn an_upgrade_is_judged_as_a_creation_where_that_is_wanted() {
    let upgrade = "Connection: Upgrade, close\r\nUpgrade: websocket\r\n";
    let plain = "Connection: close\r\n";
    for (strict, headers, verb) in
        [(false, upgrade, "get"), (true, upgrade, "create"), (true, plain, "get")]
    {
        let api = Scripted::start(cluster).await;
        let mut setting = Setting::with_reviews(&api).await;
        setting.auth.strict_upgrade_verbs = strict;
        let served = setting.serve().await;
        let client = setting.client(None);
        let line = "GET /exec/a/b/c?command=id HTTP/1.1\r\nHost: n1";
        let request = format!("{line}\r\n{headers}{}\r\n", bearer("u-1"));
        let text = send(&served, &client, &request).await;
        assert!(text.starts_with("HTTP/1.1 403"), "{text}");
        let requested = api.seen("subjectaccessreviews");
        let verbs: Vec<_> =
            requested.iter().map(|spec| &spec["resourceAttributes"]["verb"]).collect();
        assert_eq!(verbs, [verb], "{strict} {headers}");
        served.stop().await;
    }
}

#[tokio::test]
async fn equal_reviews_are_made_once() {
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = Arc::new(setting.serve().await);
    let plain = setting.client(None);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (served, plain) = (served.clone(), plain.clone());
        clients.spawn(async move { get(&served, &plain, "/pods", &bearer("reader-1")).await.0 });
    }
    while let Some(status) = clients.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(api.seen("tokenreviews").len(), 1);
    assert_eq!(api.seen("subjectaccessreviews").len(), 1);
    for _ in 0..3 {
        assert_eq!(get(&served, &plain, "/pods", &bearer("other-1")).await.0, 403);
    }
    assert_eq!(api.seen("tokenreviews").len(), 2);
    assert_eq!(api.seen("subjectaccessreviews").len(), 3);
    Arc::into_inner(served).unwrap().stop().await;
}

#[tokio::test]
async fn cached_reviews_expire_and_are_repeated() {
    let revoked = Arc::new(AtomicBool::new(false));
    let seen = revoked.clone();
    let api = Scripted::start(move |kind, spec| {
        if seen.load(Ordering::SeqCst) {
            Answer::Json(201, json!({"authenticated": false, "allowed": false}))
        } else {
            cluster(kind, spec)
        }
    })
    .await;
    let mut setting = Setting::with_reviews(&api).await;
    setting.auth.token_ttl = Some(Duration::from_millis(50));
    let served = setting.serve().await;
    let plain = setting.client(None);
    assert_eq!(get(&served, &plain, "/pods", &bearer("reader-1")).await.0, 200);
    revoked.store(true, Ordering::SeqCst);
    let refused =
        async { while get(&served, &plain, "/pods", &bearer("reader-1")).await.0 != 401 {} };
    timeout(TIMEOUT, refused).await.expect("it is let in for ever");
    served.stop().await;
}

#[tokio::test]
async fn without_a_response_of_the_api_server_requests_are_refused_with_the_reason() {
    let api = Scripted::start(cluster).await;
    let setting = Setting::with_reviews(&api).await;
    let served = setting.serve().await;
    let plain = setting.client(None);
    let (status, text) = get(&served, &plain, "/pods", &bearer("broken-1")).await;
    assert_eq!(status, 401);
    assert!(text.starts_with("Unauthorized: the API server returned 403"), "{text}");
    for (name, why) in [("broken", "reviews are forbidden"), ("both", "both allow and deny")] {
        let known = setting.clients.client(name, &[]);
        let known = setting.client(Some(&known));
        let (status, text) = get(&served, &known, "/pods", "").await;
        assert_eq!(status, 500, "{text}");
        let begins = format!(
            "Authorization error (user={name}, verb=get, resource=nodes, subresource=pods): "
        );
        assert!(text.starts_with(&begins) && text.contains(why), "{text}");
    }
    drop(api);
    let known = setting.clients.client("root", &[]);
    let (status, text) = get(&served, &setting.client(Some(&known)), "/pods", "").await;
    assert_eq!(status, 500, "{text}");
    let (status, text) = get(&served, &plain, "/pods", &bearer("root-1")).await;
    assert_eq!(status, 401, "{text}");
    assert!(text.contains("the API server"), "{text}");
    assert!(!text.contains("root-1"), "{text}");
    served.stop().await;
}

#[tokio::test]
async fn a_new_serving_certificate_is_used_for_new_connections_and_old_ones_stay() {
    let setting = Setting::alone().with_long_timeouts();
    let served = setting.serve().await;
    let known = setting.clients.client("ops", &[]);
    let config = setting.client(Some(&known));
    let mut old = shake(&served, &config).await.unwrap();
    assert_eq!(fetch(&mut old, "/pods").await, 200);
    let other = Authority::new("another cluster");
    // First certificate and key do not match, then they do.
    let new = other.server("n1");
    fs::write(setting.file("serving.crt"), &new.pem).unwrap();
    assert_eq!(get(&served, &config, "/pods", "").await.0, 200);
    setting.show(&new);
    let trusting = client(&other, Some(&known), rustls::ALL_VERSIONS);
    let shown = async {
        while shake(&served, &trusting).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, shown).await.expect("it is never shown");
    assert!(shake(&served, &config).await.is_err());
    assert_eq!(fetch(&mut old, "/pods").await, 200);
    served.stop().await;
}

#[tokio::test]
async fn a_change_of_client_authorities_counts_for_connections_that_stand() {
    let setting = Setting::alone().with_long_timeouts();
    let served = setting.serve().await;
    let known = setting.clients.client("ops", &[]);
    let mut old = shake(&served, &setting.client(Some(&known))).await.unwrap();
    assert_eq!(fetch(&mut old, "/pods").await, 200);
    // An unreadable file changes nothing.
    fs::write(setting.file("clients.crt"), "junk").unwrap();
    let other = Authority::new("other clients");
    let new = other.client("ops", &[]);
    let config = setting.client(Some(&new));
    assert_eq!(get(&served, &config, "/pods", "").await.0, 401);
    assert_eq!(fetch(&mut old, "/pods").await, 200);
    setting.trust(&other);
    let let_in = async {
        while get(&served, &config, "/pods", "").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, let_in).await.expect("the new authority never counts");
    assert_eq!(fetch(&mut old, "/pods").await, 401);
    served.stop().await;
}

#[tokio::test]
async fn a_handshake_that_stalls_gives_its_place_back() {
    let mut setting = Setting::alone();
    setting.limits.unauthenticated = 1;
    setting.limits.head_timeout = Duration::from_secs(1);
    let served = setting.serve().await;
    let mut silent = served.connect().await;
    let mut halting = served.connect().await;
    // A handshake message that never arrives completely.
    halting.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
    let known = setting.clients.client("ops", &[]);
    let mut stream = shake_at_last(&served, &setting.client(Some(&known))).await;
    assert_eq!(fetch(&mut stream, "/pods").await, 200);
    for stream in [&mut silent, &mut halting] {
        assert_eq!(read_to_end(stream).await, "");
    }
    served.stop().await;
}

#[tokio::test]
async fn heads_that_never_end_or_are_too_large_are_cut_off() {
    let mut setting = Setting::alone();
    setting.limits.head_timeout = Duration::from_secs(1);
    let served = setting.serve().await;
    let plain = setting.client(None);
    let flood = format!("GET /pods HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    let large = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    let token = format!("GET /pods HTTP/1.1\r\n{}", bearer(&"y".repeat(100_000)));
    for bytes in ["", "GET /pods HT", "GET /pods HTTP/1.1\r\nHost: n\r\n", &flood, &large, &token] {
        let mut stream = shake_at_last(&served, &plain).await;
        let _ = stream.write_all(bytes.as_bytes()).await;
        let text = read_all(&mut stream).await;
        assert!(!text.contains(" 200 "), "{text}");
    }
    served.stop().await;
}

#[tokio::test]
async fn clients_without_tls_or_with_another_protocol_are_refused() {
    let mut setting = Setting::alone();
    setting.options = TlsOptions::of("VersionTLS13", &[], &[]).unwrap();
    let served = setting.serve().await;
    let text = served.get("/pods").await;
    assert!(!text.contains("200"), "{text}");
    let known = setting.clients.client("ops", &[]);
    let old = client(&setting.cluster, Some(&known), &[&rustls::version::TLS12]);
    assert!(shake(&served, &old).await.is_err());
    let mut config = setting.client(Some(&known));
    config.alpn_protocols = vec![b"h2".to_vec()];
    assert!(shake(&served, &config).await.is_err());
    config.alpn_protocols.push(b"http/1.1".to_vec());
    let mut stream = shake(&served, &config).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(fetch(&mut stream, "/pods").await, 200);
    let strange = client(&Authority::new("strange"), Some(&known), rustls::ALL_VERSIONS);
    assert!(shake(&served, &strange).await.is_err());
    served.stop().await;
}

#[tokio::test]
async fn shutdown_waits_neither_for_handshakes_nor_for_idle_clients() {
    let setting = Setting::alone().with_long_timeouts();
    let served = setting.serve().await;
    let known = setting.clients.client("ops", &[]);
    let mut idle = shake(&served, &setting.client(Some(&known))).await.unwrap();
    assert_eq!(fetch(&mut idle, "/pods").await, 200);
    let mut silent = served.connect().await;
    let address = served.address;
    served.stop().await;
    assert_eq!(read_all(&mut idle).await, "");
    assert_eq!(read_to_end(&mut silent).await, "");
    assert!(TcpStream::connect(address).await.is_err());
}

/// Handlers for the log of container `c` of pod `a`, which is followed for as long as the writer exists.
fn chatting(log: &Path) -> (PortHandler, PodCacheWriter) {
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(log, "2026-01-02T03:04:05Z stdout F first\n").unwrap();
    let (writer, cache) = pod_cache::pod_cache();
    let pod_ref = PodRef { uid: "uid-a".into(), name: "a".into(), namespace: "default".into() };
    let id = ContainerId::from("c1");
    let container = ContainerStatus {
        id: id.clone(),
        name: "c".into(),
        state: ContainerState::Running,
        ..ContainerStatus::default()
    };
    let item = ItemId::Container(id);
    writer.apply(&pod_ref, &item, writer.next_seq(), InspectedItem::Container(container));
    let shown = json!({"phase": "Running", "containerStatuses": [{
        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": "containerd://c1", "state": {"running": {}},
    }]});
    let shown = serde_json::from_value(shown).unwrap();
    let mut views = views(vec![(pod("a"), Some(Arc::new(shown)))]);
    let log = log.to_owned();
    views.logs = LogReaders::new(LogDeps {
        logs: ContainerLogs::new(cache, Arc::new(move |_, _| Some(log.clone()))),
        known: views.pods.known.clone(),
        split_streams: false,
        write_timeout: TIMEOUT,
    });
    let handler = PortHandler::read_only(HealthChecks::ping(), views, Vec::new());
    (handler, writer)
}

#[tokio::test]
async fn a_log_that_is_followed_outlives_all_limits_and_keeps_no_place() {
    let mut setting = Setting::alone();
    setting.limits.authenticated = 1;
    let brief = Duration::from_millis(200);
    (setting.limits.idle_timeout, setting.limits.write_timeout) = (brief, brief);
    let log = setting.file("pods/a/c/0.log");
    let (handler, _writer) = chatting(&log);
    let served = setting.serve_with(handler).await;
    let known = setting.clients.client("ops", &[]);
    let config = setting.client(Some(&known));
    let mut follower = shake(&served, &config).await.unwrap();
    let request = "GET /containerLogs/default/a/c?follow=true HTTP/1.1\r\nHost: n1\r\n\r\n";
    follower.write_all(request.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    wait_said(&mut follower, &mut said, "first").await;
    // Another connection has the only place, and loses it because it is idle.
    let mut other = shake(&served, &config).await.unwrap();
    assert_eq!(fetch(&mut other, "/pods").await, 200);
    assert_eq!(read_all(&mut other).await, "");
    let mut file = fs::OpenOptions::new().append(true).open(&log).unwrap();
    io::Write::write_all(&mut file, b"2026-01-02T03:04:06Z stdout F second\n").unwrap();
    wait_said(&mut follower, &mut said, "second").await;
    drop(follower);
    served.stop().await;
}

/// Reads until a line has arrived.
async fn wait_said(stream: &mut TlsStream<TcpStream>, said: &mut Vec<u8>, line: &str) {
    let read = async {
        while !String::from_utf8_lossy(said).contains(&format!("{line}\n")) {
            let read = stream.read_buf(said).await.unwrap();
            let so_far = String::from_utf8_lossy(said);
            assert!(read > 0, "it ended without {line}: {so_far}");
        }
    };
    timeout(TIMEOUT, read).await.expect("it does not come");
}
