use super::*;
use crate::base::clock;
use crate::model::PodExt;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Vouches for the servers' certificates.
const CA: &[u8] = include_bytes!("testdata/ca.pem");
/// Signs nothing.
const STRANGER: &[u8] = include_bytes!("testdata/stranger.pem");
/// For 127.0.0.1.
const SERVER: &[u8] = include_bytes!("testdata/server.pem");
/// For another name.
const ELSEWHERE: &[u8] = include_bytes!("testdata/elsewhere.pem");
/// The key of both.
const KEY: &[u8] = include_bytes!("testdata/key.pem");

fn certificate_of(pem: &[u8]) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem).unwrap()
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
    )
}

/// Path and token of a request.
type Received = (String, Option<String>);

/// A server that gives its answers one after the other, and the last one for ever.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    requests: Arc<Mutex<Vec<Received>>>,
}

impl Script {
    async fn serve(answers: &[(u16, String)]) -> (Self, String) {
        let script = Self::default();
        script.answers.lock().extend(answers.iter().cloned());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = script.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(served.clone().speak(stream));
            }
        });
        (script, format!("http://{address}/pods"))
    }

    /// The same over TLS, under a certificate.
    async fn serve_tls(answers: &[(u16, String)], certificate: &[u8]) -> (Self, String) {
        let script = Self::default();
        script.answers.lock().extend(answers.iter().cloned());
        let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
        let provider = crate::base::tls_provider();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate_of(certificate)], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = script.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // A client that trusts no certificate hangs up.
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::spawn(served.clone().speak(stream));
                }
            }
        });
        (script, format!("https://{address}/pods"))
    }

    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(move |request| {
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let token = request.headers().get("x-token");
        let token = token.map(|value| value.to_str().unwrap().to_string());
        self.requests.lock().push((request.uri().to_string(), token));
        let mut answers = self.answers.lock();
        let (status, body) = match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        };
        let response = Response::builder().status(status);
        match status {
            302 => response.header("location", body).body(Full::default()).unwrap(),
            _ => response.body(Full::from(body)).unwrap(),
        }
    }

    fn request_count(&self) -> usize {
        self.requests.lock().len()
    }
}

struct Source {
    lists: mpsc::Receiver<SourceList>,
    recorder: EventRecorder,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Source {
    fn start(url: &str) -> Self {
        let (sender, lists) = mpsc::channel(1);
        let recorder = EventRecorder::new();
        let shutdown = CancellationToken::new();
        let config = HttpConfig {
            url: url.into(),
            headers: vec![("X-Token".into(), "t".into())],
            check_period: Duration::from_millis(10),
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        };
        let task = run(config, "n".into(), sender, recorder.clone(), shutdown.clone());
        Self { lists, recorder, shutdown, task: tokio::spawn(task) }
    }

    async fn next(&mut self) -> Vec<String> {
        let list = timeout(TIMEOUT, self.lists.recv()).await.unwrap().unwrap();
        list.pods.iter().map(|pod| pod.name().to_string()).collect()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }
}

async fn until(what: impl Fn() -> bool) {
    let found = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(TIMEOUT, found).await.expect("never so");
}

#[tokio::test]
async fn uids_are_made_of_the_url_as_it_is_configured() {
    let mut uids = Vec::new();
    let (_script, url) = Script::serve(&[(200, pod("a"))]).await;
    for user in ["", "u:p@", "u:q@"] {
        let mut source = Source::start(&url.replace("http://", &format!("http://{user}")));
        let list = timeout(TIMEOUT, source.lists.recv()).await;
        uids.push(list.unwrap().unwrap().pods[0].uid().to_string());
        source.stop().await;
    }
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), 3, "{uids:?}");
}

#[tokio::test]
async fn only_what_changed_and_is_good_is_handed_on() {
    let list = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n- metadata: {name: b}\n  spec: {containers: [{name: c, image: i}]}\n";
    let (script, url) = Script::serve(&[
        (500, pod("x")),
        (200, pod("a")),
        (200, pod("a")),
        (404, String::new()),
        (200, "apiVersion: v1\nkind: Pod\nmetadata: {name: 1}\n".into()),
        (200, list.into()),
        (200, list.replace("image: i", "image: ''")),
        (200, String::new()),
        (200, String::new()),
        (200, pod("last")),
    ])
    .await;
    let mut source = Source::start(&url);
    assert_eq!(source.next().await, ["a-n"]);
    assert_eq!(source.next().await, ["a-n", "b-n"]);
    assert_eq!(source.next().await, [""; 0]);
    assert_eq!(source.next().await, ["last-n"]);
    let requests = script.request_count();
    until(|| script.request_count() > requests + 3).await;
    assert!(source.lists.try_recv().is_err(), "the same bytes say nothing");
    let reported: Vec<_> =
        source.recorder.recent().into_iter().map(|e| (e.message.clone(), e.count)).collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported[0].0.contains("line 3, column 18: metadata.name: expected a string"),
        "{reported:?}"
    );
    assert!(reported[1].0.contains("invalid pod \"a\": spec.containers[0].image: Required value"));
    assert!(reported.iter().all(|(_, count)| *count == 1));
    let (path, token) = script.requests.lock()[0].clone();
    assert_eq!((path.as_str(), token.as_deref()), ("/pods", Some("t")));
    source.stop().await;
}

#[tokio::test]
async fn redirects_are_followed_but_not_in_circles() {
    let (other, target) = Script::serve(&[(200, pod("there"))]).await;
    let (script, url) = Script::serve(&[(302, "/next".into()), (302, target)]).await;
    let mut source = Source::start(&url);
    assert_eq!(source.next().await, ["there-n"]);
    assert_eq!(script.requests.lock()[1], ("/next".into(), Some("t".into())));
    assert_eq!(other.requests.lock()[0].1, None, "headers stay at home");
    source.stop().await;

    let (script, url) = Script::serve(&[(302, "/pods".into())]).await;
    let mut fetcher = Fetcher::new(ManifestRequest::new(&url, &[]).unwrap());
    let error = fetcher.fetch().await.unwrap_err().to_string();
    assert_eq!(error, "more than 10 redirects");
    assert_eq!(script.request_count(), 11);
}

#[tokio::test]
async fn a_body_has_a_limit() {
    let (_, url) = Script::serve(&[(200, "x".repeat((10 << 20) + 1))]).await;
    let mut fetcher = Fetcher::new(ManifestRequest::new(&url, &[]).unwrap());
    let error = fetcher.fetch().await.unwrap_err().to_string();
    assert_eq!(error, "the body is larger than 10 MiB");
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let mut fetcher = Fetcher::new(ManifestRequest::new(&url, &[]).unwrap());
    let error = format!("{:#}", fetcher.fetch().await.unwrap_err());
    assert!(error.starts_with("connecting to 127.0.0.1:"), "{error}");
    let source = Source::start(&url);
    assert!(!source.task.is_finished());
    source.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_costs_ten_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (sender, _lists) = mpsc::channel(1);
    let mut source = HttpSource {
        fetcher: Fetcher::new(ManifestRequest::new(&url, &[]).unwrap()),
        url: url.into(),
        last: None,
        failures: 0,
        config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        node_name: "n".into(),
        lists: sender,
        recorder: EventRecorder::new(),
    };
    let started = clock::instant();
    source.poll().await.unwrap();
    assert_eq!(source.failures, 1);
    assert_eq!(clock::since(started).as_secs(), 10);
}

#[tokio::test]
async fn https_is_spoken_and_an_unknown_certificate_refused() {
    let (_, url) = Script::serve(&[(200, pod("a"))]).await;
    let url = url.replace("http://", "https://");
    let mut fetcher = Fetcher::new(ManifestRequest::new(&url, &[]).unwrap());
    let error = format!("{:#}", fetcher.fetch().await.unwrap_err());
    let plain_server = error.starts_with("TLS with 127.0.0.1:");
    assert!(plain_server || error.contains("no usable root certificates"), "{error}");
}

#[tokio::test]
async fn pods_come_over_https_with_the_configured_headers() {
    let (script, url) = Script::serve_tls(&[(200, pod("a"))], SERVER).await;
    let headers = [("X-Token".to_string(), "t".to_string())];
    let target = ManifestRequest::new(&url, &headers).unwrap();
    let mut fetcher = Fetcher::of_a_system_with(target, certificate_of(CA));
    for requests in 1..=2 {
        assert_eq!(fetcher.fetch().await.unwrap(), pod("a"));
        assert_eq!(script.request_count(), requests);
    }
    let (path, token) = script.requests.lock()[0].clone();
    assert_eq!((path.as_str(), token.as_deref()), ("/pods", Some("t")));
}

#[tokio::test]
async fn a_wrong_certificate_gets_no_request() {
    for (certificate, trusted, why) in
        [(SERVER, STRANGER, "UnknownIssuer"), (ELSEWHERE, CA, "not valid for name")]
    {
        let (script, url) = Script::serve_tls(&[(200, pod("a"))], certificate).await;
        let headers = [("X-Token".to_string(), "hush".to_string())];
        let target = ManifestRequest::new(&url, &headers).unwrap();
        let mut fetcher = Fetcher::of_a_system_with(target, certificate_of(trusted));
        let error = format!("{:#}", fetcher.fetch().await.unwrap_err());
        assert!(error.starts_with("TLS with 127.0.0.1:"), "{error}");
        assert!(error.contains(why), "{error}");
        assert_eq!(script.request_count(), 0);
    }
}

#[tokio::test]
async fn a_list_of_exactly_the_limit_is_read_and_a_byte_more_is_not() {
    let limit = crate::model::validation::MAX_MANIFEST_BYTES;
    for (length, fits) in [(limit, true), (limit + 1, false)] {
        let text = pod("a");
        let body = format!("{text}{}", "#".repeat(length - text.len()));
        let (_, url) = Script::serve(&[(200, body)]).await;
        let mut fetcher = Fetcher::new(ManifestRequest::new(&url, &[]).unwrap());
        assert_eq!(fetcher.fetch().await.is_ok(), fits, "{length}");
    }
}

#[test]
fn a_configuration_shows_no_secrets() {
    let config = HttpConfig {
        url: "https://user:hush@host/pods?token=hush".into(),
        headers: vec![("Authorization".into(), "Bearer hush".into())],
        check_period: Duration::from_secs(20),
        config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
    };
    assert!(config.validate().is_ok());
    assert!(!format!("{config:?}").contains("hush"));
    let bad = HttpConfig { url: "ftp://x".into(), ..config };
    let error = format!("{:#}", bad.validate().unwrap_err());
    assert_eq!(error, "staticPodURL: the URL must begin with http:// or https://");
}
