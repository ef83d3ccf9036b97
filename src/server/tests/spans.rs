//! Which requests become spans, and of which traces.

use super::*;
use crate::base::otel::tests::collector::{TestCollector, attribute, ids};
use crate::base::otel::tests::tracer;
use crate::server::auth::{AuthSettings, AuthorizationMode, KubeletAuth};
use http_body_util::{BodyExt, Empty};
use hyper::Request;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Sends a request with a trace context and reads the whole response.
async fn fetch(handler: &PortHandler, target: &str) -> u16 {
    let request = Request::builder()
        .uri(target)
        .header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"));
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let answer = super::answer(handler, request, &CancellationToken::new()).await;
    let status = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    status
}

/// Authenticates anonymous clients, or none.
fn auth(anonymous: bool) -> KubeletAuth {
    let settings = AuthSettings {
        client_ca_file: Some("/nonexistent".into()),
        anonymous,
        token_ttl: None,
        review_qps: 0,
        review_burst: 0,
        strict_upgrade_verbs: false,
        authorization: AuthorizationMode::AlwaysAllow,
    };
    let ca_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca_file.path(), crate::apiserver::tests::pki::Authority::new("a").pem())
        .unwrap();
    let client_ca = crate::server::tls::ClientCaFile::open(ca_file.path()).unwrap();
    KubeletAuth::new(settings, "n1", Some(Arc::new(client_ca)), None).unwrap()
}

#[tokio::test]
async fn an_unauthorized_request_has_no_span_and_an_authorized_one_joins_its_trace() {
    let collector = TestCollector::start().await;
    let (tracer, _) = tracer(collector.endpoint(), 1_000_000);
    let open = read_only().traced(tracer.clone());
    assert_eq!(fetch(&open.secured(auth(false)), "/pods").await, 401);
    assert_eq!(fetch(&open.secured(auth(true)), "/pods").await, 200);
    let health = PortHandler::health(HealthChecks::ping()).traced(tracer.clone());
    assert_eq!(fetch(&health, "/healthz").await, 200);
    tracer.flush().await;
    let spans = collector.wait("spans", |_| true).await;
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(ids(span).0, TRACE);
    for (key, expected) in
        [("http.route", "/pods/"), ("url.scheme", "https"), ("http.response.status_code", "200")]
    {
        let found = attribute(&span.attributes, key);
        assert_eq!(found.as_deref(), Some(expected), "{key}");
    }
}

#[tokio::test]
async fn a_failed_response_is_a_failed_span_that_lasts_until_it_is_sent() {
    let collector = TestCollector::start().await;
    let (tracer, _) = tracer(collector.endpoint(), 0);
    let checks = HealthChecks::ping().with("flag", || Err("down".to_owned()));
    let handler = PortHandler::read_only(checks, views(Vec::new()), Vec::new()).local();
    let handler = handler.traced(tracer.clone());
    let request = Request::builder()
        .uri("/healthz")
        .header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"));
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let answer = super::answer(&handler, request, &CancellationToken::new()).await;
    assert_eq!(answer.status().as_u16(), 500);
    tracer.flush().await;
    assert_eq!(collector.spans().len(), 0, "it is being sent");
    drop(answer);
    tracer.flush().await;
    let spans = collector.spans();
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(2));
}
