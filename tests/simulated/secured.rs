//! The port with TLS, of the kubelet as it is built: who gets in, what it shows, and how it refuses to start.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::node::WAIT_LIMIT;
use crate::pki::{Authority, Issued};
use crate::pods::simple;
use crate::scripted::{Answer, Scripted};
use crate::streaming_server::{Manner, StreamingServer, comes_back};
use crate::support::fake_runtime::{FakeRuntime, Options, Rpc};
use crate::support::kubelet_process::{KubeletProcess, Settings, free_ports};
use crate::support::raw::{TIMEOUT, read_head, read_rest};
use crate::support::wait::wait_for;

/// Without an API server: who has a certificate may do everything.
const ALONE: &str =
    "authentication:\n  webhook: {enabled: false}\nauthorization: {mode: AlwaysAllow}\n";

/// A kubelet with its port, and a client of it.
struct Secured {
    kubelet: KubeletProcess,
    port: u16,
    fake: FakeRuntime,
}

impl Secured {
    async fn start(dir: &Path, config: &str, args: &[String]) -> Secured {
        let fake = FakeRuntime::start(Options::default()).await;
        let mut settings = Settings::new(dir, &fake.endpoint());
        let [port] = free_ports();
        settings.config = format!("enableServer: true\nport: {port}\n{config}");
        settings.args = ["--cert-dir".to_owned(), dir.join("pki").display().to_string()].into();
        settings.args.extend_from_slice(args);
        Secured { kubelet: KubeletProcess::start(settings).await, port, fake }
    }

    fn certificate(&self) -> CertificateDer<'static> {
        let path = self.kubelet.settings().dir.join("pki/kubelet.crt");
        CertificateDer::from_pem_file(path).expect("the kubelet's certificate")
    }

    /// A connection of a client that trusts the certificate in the kubelet's directory.
    async fn connect(&self, certificate: Option<&Issued>) -> anyhow::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate())?;
        let provider = kubelet::base::tls_provider();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match certificate {
            Some(issued) => {
                builder.with_client_auth_cert(vec![issued.der.clone()], issued.key())?
            }
            None => builder.with_no_client_auth(),
        };
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("node1")?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(connector.connect(name, stream).await?)
    }

    /// Status and body of a GET.
    async fn get(
        &self,
        path: &str,
        certificate: Option<&Issued>,
        token: Option<&str>,
    ) -> anyhow::Result<(u16, String)> {
        let stream = self.connect(certificate).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let mut request = http::Request::get(path).header("host", "node1");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        Ok((code, String::from_utf8(body.to_vec())?))
    }

    async fn fetch(
        &self,
        path: &str,
        certificate: Option<&Issued>,
        token: Option<&str>,
    ) -> (u16, String) {
        let requested = self.get(path, certificate, token);
        let answer = tokio::time::timeout(WAIT_LIMIT, requested).await.expect("an answer in time");
        answer.expect("an answer")
    }
}

#[tokio::test]
async fn pods_are_shown_to_who_has_a_certificate_and_the_ports_own_stays_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let clients = Authority::new("clients");
    let ca = dir.path().join("clients.crt");
    std::fs::write(&ca, clients.pem()).unwrap();
    let config = format!("{ALONE}tlsMinVersion: VersionTLS13\n");
    let args = ["--client-ca-file".to_owned(), ca.display().to_string()];
    let mut secured = Secured::start(dir.path(), &config, &args).await;
    secured.kubelet.manifests.put("web.yaml", &simple("web").to_string());
    let known = clients.client("ops", &[]);
    wait_for("the pod is shown", WAIT_LIMIT, async || {
        match secured.fetch("/pods", Some(&known), None).await {
            (200, body) if body.contains("web-node1") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let strange = Authority::new("clients").client("ops", &[]);
    for (certificate, token) in [(None, None), (Some(&strange), None), (None, Some("t"))] {
        let refused = secured.fetch("/pods", certificate, token).await;
        assert_eq!(refused, (401, "Unauthorized\n".to_owned()));
    }
    let first = secured.certificate();
    let ended = secured.kubelet.terminate(WAIT_LIMIT).await;
    assert!(ended.success(), "{ended:?}");
    secured.kubelet.respawn();
    secured.kubelet.wait_healthy(WAIT_LIMIT).await;
    assert_eq!(secured.certificate(), first);
    assert_eq!(secured.fetch("/healthz/ping", Some(&known), None).await.0, 200);
}

#[tokio::test]
async fn tokens_are_judged_by_the_api_server_of_the_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let api = Scripted::start(|kind, spec| match kind {
        "tokenreviews" => {
            let known = spec["token"] != "bad";
            let user = json!({"username": spec["token"]});
            Answer::Json(201, json!({"authenticated": known, "user": user}))
        }
        _ => Answer::Json(201, json!({"allowed": spec["user"] == "prometheus"})),
    })
    .await;
    let kubeconfig = api.kubeconfig(dir.path()).display().to_string();
    let secured = Secured::start(dir.path(), "", &["--kubeconfig".to_owned(), kubeconfig]).await;
    let (status, body) = secured.fetch("/metrics", None, Some("prometheus")).await;
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("# TYPE"), "{body}");
    let (status, body) = secured.fetch("/metrics", None, Some("somebody")).await;
    assert_eq!(status, 403);
    let text = "Forbidden (user=somebody, verb=get, resource=nodes, subresource(s)=[metrics])\n";
    assert_eq!(body, text);
    assert_eq!(secured.fetch("/metrics", None, Some("bad")).await.0, 401);
    assert_eq!(secured.fetch("/metrics", None, None).await.0, 401);
    let requested = api.seen("subjectaccessreviews");
    assert_eq!(requested[0]["resourceAttributes"]["name"], "node1");
    let log = secured.kubelet.log();
    assert!(!log.contains("node-token"), "{log}");
}

#[tokio::test]
async fn unknown_clients_cause_few_reviews_and_do_not_starve_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let api = Scripted::start(|kind, spec| match kind {
        "tokenreviews" => {
            let known = spec["token"] == "prometheus";
            let user = json!({"username": spec["token"]});
            Answer::Json(201, json!({"authenticated": known, "user": user}))
        }
        _ => Answer::Json(201, json!({"allowed": true})),
    })
    .await;
    let kubeconfig = api.kubeconfig(dir.path()).display().to_string();
    // No result is kept for long, so that each request needs a review.
    let config = "authentication: {webhook: {cacheTTL: 1ms}}\nkubeAPIQPS: 1\nkubeAPIBurst: 3\n";
    let args = ["--kubeconfig".to_owned(), kubeconfig];
    let secured = Secured::start(dir.path(), config, &args).await;
    let known = async || secured.fetch("/healthz/ping", None, Some("prometheus")).await.0;
    assert_eq!(known().await, 200);
    let begin = std::time::Instant::now();
    let tokens: Vec<_> = (0..60).map(|number| format!("wrong-{number}")).collect();
    let unknown = tokens.iter().map(|token| secured.fetch("/pods", None, Some(token)));
    let unknown = async {
        // Fewer at a time than one address may have connections that are not authenticated yet.
        let answers = futures::stream::iter(unknown);
        let answers = futures::StreamExt::buffer_unordered(answers, 8);
        futures::StreamExt::collect::<Vec<_>>(answers).await
    };
    let honest = async {
        for _ in 0..20 {
            assert_eq!(known().await, 200);
        }
    };
    let (answers, ()) = tokio::join!(unknown, honest);
    let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap();
    let reviews = api.seen("tokenreviews");
    let wrong = reviews.iter().filter(|spec| spec["token"] != "prometheus");
    let wrong = wrong.count();
    assert!(wrong <= 3 + seconds + 1, "{wrong} in {seconds} s");
    assert!(wrong > 0);
    for (status, text) in answers {
        assert!([401, 429].contains(&status), "{status} {text}");
    }
}

#[tokio::test]
async fn a_command_is_spliced_through_tls_for_who_may_and_for_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let api = Scripted::start(|kind, spec| match kind {
        "tokenreviews" => {
            let user = json!({"username": spec["token"]});
            Answer::Json(201, json!({"authenticated": true, "user": user}))
        }
        _ => {
            let requested = &spec["resourceAttributes"];
            let wide = requested["subresource"] == "proxy" && requested["verb"] == "create";
            Answer::Json(201, json!({"allowed": wide == (spec["user"] == "admin")}))
        }
    })
    .await;
    let kubeconfig = api.kubeconfig(dir.path()).display().to_string();
    let secured = Secured::start(dir.path(), "", &["--kubeconfig".to_owned(), kubeconfig]).await;
    let runtime = StreamingServer::tcp(Manner::Echo).await;
    let url = runtime.url();
    secured.fake.on_streams(move |_| Ok(url.clone()));
    let web = simple("web").to_string();
    secured.kubelet.manifests.put("web.yaml", &web);
    wait_for("the pod runs", WAIT_LIMIT, async || {
        let (_, body) = secured.fetch("/pods", None, Some("reader")).await;
        if body.contains("\"phase\":\"Running\"") { Ok(()) } else { Err(body) }
    })
    .await;
    let exec = async |credentials: &str| {
        let mut stream = secured.connect(None).await.unwrap();
        let request = format!(
            "POST /exec/default/web-node1/main?input=1&output=1&command=sh HTTP/1.1\r\nHost: node1\r\n\
             {credentials}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        (read_head(&mut stream).await.status, stream)
    };
    assert_eq!(exec("").await.0, 401);
    let (status, mut refused) = exec("Authorization: Bearer reader\r\n").await;
    assert_eq!(status, 403);
    let text = "Forbidden (user=reader, verb=create, resource=nodes, subresource(s)=[proxy])\n";
    assert_eq!(read_rest(&mut refused).await, text.as_bytes());
    assert_eq!(secured.fake.count(Rpc::Exec), 0);
    let (status, stream) = exec("Authorization: Bearer admin\r\n").await;
    assert_eq!(status, 101);
    assert!(!runtime.heads()[0].contains("admin"), "{:?}", runtime.heads());
    let (mut from, to) = tokio::io::split(stream);
    let mut greeting = [0; 6];
    let greeted = timeout(TIMEOUT, from.read_exact(&mut greeting)).await;
    greeted.expect("a greeting").unwrap();
    comes_back(&mut from, to, 3_000_000).await;
}

/// What the kubelet says that ends with an error.
fn fails(dir: &Path, config: &str, args: &[&str]) -> String {
    let [port, healthz] = free_ports();
    let path = dir.join("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: {port}\nhealthzPort: {healthz}\n\
         failSwapOn: false\nfailCgroupV1: false\ncontainerRuntimeEndpoint: unix://{}/none.sock\n{config}",
        dir.display()
    );
    std::fs::write(&path, text).unwrap();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "45"]).arg(Settings::program_under_test());
    command.arg("--config").arg(&path);
    command.arg("--root-dir").arg(dir.join("root"));
    command.arg("--cert-dir").arg(dir.join("pki")).args(args);
    let output = command.output().expect("run the kubelet");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

#[test]
fn what_cannot_be_secured_does_not_start_and_the_error_says_what_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let said = fails(dir.path(), "", &[]);
    let lines = "\nauthentication:\n  webhook:\n    enabled: false\n";
    assert!(said.contains(lines) && said.contains("\nenableServer: false"), "{said}");
    let said = fails(dir.path(), ALONE, &[]);
    assert!(said.contains("no authentication method configured"), "{said}");
    let nowhere = dir.path().join("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    let said = fails(dir.path(), "enableServer: false\n", &["--kubeconfig", nowhere]);
    assert!(said.contains(nowhere), "{said}");
    let said = fails(dir.path(), ALONE, &["--client-ca-file", nowhere]);
    assert!(said.contains(&format!("unable to load client CA file {nowhere}")), "{said}");
    let said = fails(
        dir.path(),
        &format!("{ALONE}tlsCertFile: {nowhere}\ntlsPrivateKeyFile: {nowhere}\n"),
        &["--anonymous-auth"],
    );
    assert!(said.contains(&format!("cannot read {nowhere}")), "{said}");
    let said = fails(dir.path(), ALONE, &["--tls-cipher-suites=TLS_NULL"]);
    assert!(said.contains("tlsCipherSuites[0]: cipher suite \"TLS_NULL\""), "{said}");
    assert!(!dir.path().join("pki").exists());
}
