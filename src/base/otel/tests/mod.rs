//! Spans from their beginning to the collector.

pub(crate) mod collector;

use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use opentelemetry_proto::tonic::trace::v1::Span as Sent;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use self::collector::{Answer, TestCollector, attribute, ids};
use super::queue::{BATCH, CAPACITY};
use super::*;
use crate::base::clock;

const ALL: u32 = 1_000_000;
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A tracer and what it counts.
pub(crate) fn tracer(endpoint: &str, rate: u32) -> (Tracer, Metrics) {
    let metrics = Metrics::new();
    let settings =
        TracingSettings { collector: endpoint.parse().unwrap(), sampling_rate_per_million: rate };
    let tracer = Tracer::new(&settings, "node1", &metrics).unwrap();
    (tracer, metrics)
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let line =
        |(name, value): &(&'static str, &str)| (name.parse().unwrap(), value.parse().unwrap());
    lines.iter().map(line).collect()
}

fn begin(tracer: &Tracer, name: &'static str) -> Span {
    let span = tracer.start(TraceSpanKind::Internal, Parent::Current, || name.into());
    span.unwrap()
}

fn of_name(spans: &[Sent], name: &str) -> Sent {
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no {name}")).clone()
}

fn counted(metrics: &Metrics, outcome: &str) -> u64 {
    let start = format!("kubelet_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let text = metrics.text();
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    value.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn spans_arrive_as_opentelemetry_has_them() {
    let collector = TestCollector::start().await;
    let (tracer, metrics) = tracer(collector.endpoint(), 0);
    let before = nanos();
    let theirs =
        SpanContext::of_headers(&headers(&[(headers::PARENT, PARENT), (headers::STATE, "a=1")]));
    let remote = Parent::Remote(theirs.clone());
    let mut server = tracer.start(TraceSpanKind::Server, remote, || "outer".into()).unwrap();
    server.set_attributes(|| [("text", "a".into()), ("number", (-7).into())]);
    let work = async {
        let mut client = tracer.start(TraceSpanKind::Client, Parent::Current, || "inner".into());
        client.as_mut().unwrap().set_error(|| "é".repeat(1000));
    };
    server.in_scope(work).await;
    drop(server);
    tracer.flush().await;

    let batches = collector.batches();
    assert_eq!(batches.len(), 1);
    let resource = |key| attribute(&batches[0].resource, key);
    assert_eq!(resource("service.name").as_deref(), Some("kubelet"));
    assert_eq!(resource("host.name").as_deref(), Some("node1"));
    assert_eq!(batches[0].scope.name, "kubelet");
    let (outer, inner) = (of_name(&batches[0].spans, "outer"), of_name(&batches[0].spans, "inner"));
    assert_eq!(outer.kind(), SpanKind::Server);
    assert_eq!(inner.kind(), SpanKind::Client);
    let (trace, id) = ids(&outer);
    assert_eq!(trace, "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(outer.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((ids(&inner).0, &inner.parent_span_id), (trace, &outer.span_id));
    assert_ne!(ids(&inner).1, id);
    assert_eq!((&*outer.trace_state, &*inner.trace_state), ("a=1", "a=1"));
    assert_eq!((outer.flags, inner.flags), (0x301, 0x101));
    assert_eq!(attribute(&outer.attributes, "text").as_deref(), Some("a"));
    assert_eq!(attribute(&outer.attributes, "number").as_deref(), Some("-7"));
    assert_eq!(outer.status, None);
    let status = inner.status.as_ref().unwrap();
    assert_eq!(status.code(), StatusCode::Error);
    assert_eq!(status.message, "é".repeat(512));
    for (span, within) in [(&outer, before..=nanos()), (&inner, time(&outer))] {
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        // Durations are of the clock that only goes forward.
        let slack = 50_000_000;
        assert!(span.start_time_unix_nano + slack >= *within.start(), "{span:?}");
        assert!(span.end_time_unix_nano <= *within.end() + slack, "{span:?}");
    }
    assert_eq!(counted(&metrics, "exported"), 2);
}

fn time(span: &Sent) -> std::ops::RangeInclusive<u64> {
    span.start_time_unix_nano..=span.end_time_unix_nano
}

fn nanos() -> u64 {
    let since = clock::system_time().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_nanos()).unwrap()
}

#[tokio::test]
async fn a_request_of_somebody_without_credentials_begins_a_trace_of_its_own_with_a_link() {
    let collector = TestCollector::start().await;
    let theirs = SpanContext::of_headers(&headers(&[(headers::PARENT, PARENT)]));
    for (rate, recorded) in [(0, 0), (ALL, 1)] {
        let (tracer, _) = tracer(collector.endpoint(), rate);
        let linked = Parent::Linked(theirs.clone());
        drop(tracer.start(TraceSpanKind::Server, linked, || "linked".into()));
        tracer.flush().await;
        assert_eq!(collector.spans().len(), recorded);
    }
    let span = of_name(&collector.spans(), "linked");
    assert_eq!((span.parent_span_id.len(), span.flags), (0, 0x101));
    assert_ne!(ids(&span).0, "0af7651916cd43dd8448eb211c80319c");
    let [link] = &span.links[..] else { panic!("{:?}", span.links) };
    assert_eq!(link.span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((link.trace_id[0], link.flags), (0x0a, 0x301));
}

#[tokio::test]
async fn what_is_not_recorded_is_not_named_and_says_so_to_whoever_comes_after() {
    let collector = TestCollector::start().await;
    let (tracer, _) = tracer(collector.endpoint(), 0);
    let unnamed = || panic!("nobody wants a name");
    let root = tracer.start(TraceSpanKind::Internal, Parent::Current, unnamed).unwrap();
    let below = async {
        let mut span = tracer.start(TraceSpanKind::Client, Parent::Current, unnamed).unwrap();
        span.set_attributes(|| -> [(&'static str, AttributeValue); 0] {
            panic!("computed for a span without a record")
        });
        span.set_error(|| panic!("computed for a span without a record"));
        span.context().clone()
    };
    let below = root.in_scope(below).await;
    assert_eq!(below.trace(), root.context().trace());
    assert_ne!(below.span(), root.context().span());
    assert!(below.to_string().ends_with("-00"));
    drop(root);
    tracer.flush().await;
    assert_eq!(collector.connections(), 0);
}

#[tokio::test]
async fn a_tracer_that_is_off_makes_nothing() {
    let tracer = Tracer::disabled();
    assert!(!tracer.is_on());
    let parent = SpanContext::of_headers(&headers(&[(headers::PARENT, PARENT)]));
    let span = tracer.start(TraceSpanKind::Server, Parent::Remote(parent), || panic!("a name"));
    assert!(span.is_none());
    let seen = traced(span, async { current() }, |_| panic!("a failure")).await;
    assert_eq!(seen, None);
    tracer.flush().await;
}

#[tokio::test]
async fn work_that_another_task_carries_on_keeps_its_span_and_other_work_gets_none() {
    let (tracer, _) = tracer("127.0.0.1:1", ALL);
    let span = begin(&tracer, "outer");
    let inside = async {
        let carried = tokio::spawn(in_current_context(async { current() }));
        let plain = tokio::spawn(async { current() });
        (carried.await.unwrap(), plain.await.unwrap())
    };
    let (carried_on, plain) = span.in_scope(inside).await;
    assert_eq!(carried_on.as_ref(), Some(span.context()));
    assert_eq!(plain, None);
    assert_eq!(in_current_context(async { current() }).await, None);
}

#[tokio::test]
async fn the_task_sends_what_ends_and_makes_no_connection_before() {
    let collector = TestCollector::start().await;
    let (tracer, _) = tracer(collector.endpoint(), ALL);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(tracer.clone().run(shutdown.clone()));
    tokio::task::yield_now().await;
    assert_eq!(collector.connections(), 0);
    for round in 1..=2 {
        drop(begin(&tracer, "one"));
        collector.until("sent", |all| all.spans().len() == round).await;
    }
    assert_eq!(collector.connections(), 1);
    shutdown.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_collector_that_is_away_for_a_while_gets_everything_once() {
    let collector = TestCollector::start().await;
    collector.answer([Answer::Refuse(Code::Unavailable), Answer::Refuse(Code::Aborted)]);
    let (tracer, metrics) = tracer(collector.endpoint(), ALL);
    tokio::spawn(tracer.clone().run(CancellationToken::new()));
    drop(begin(&tracer, "one"));
    collector.until("asked", |all| all.requests() == 1).await;
    drop(begin(&tracer, "two"));
    collector.until("told of both", |all| all.spans().len() == 2).await;
    let names: Vec<_> = collector.spans().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["one", "two"]);
    collector.until("counted", |_| counted(&metrics, "exported") == 2).await;
    assert_eq!((counted(&metrics, "failed"), collector.requests()), (0, 4));
}

#[tokio::test]
async fn what_the_collector_does_not_want_is_counted_and_not_sent_again() {
    let collector = TestCollector::start().await;
    collector.answer([Answer::Refuse(Code::InvalidArgument), Answer::Reject(1)]);
    let (tracer, metrics) = tracer(collector.endpoint(), ALL);
    tokio::spawn(tracer.clone().run(CancellationToken::new()));
    drop(begin(&tracer, "refused"));
    collector.until("refused", |_| counted(&metrics, "failed") == 1).await;
    for name in ["rejected", "taken"] {
        drop(begin(&tracer, name));
    }
    collector.until("rejected", |_| counted(&metrics, "failed") == 2).await;
    assert_eq!((counted(&metrics, "exported"), collector.requests()), (1, 2));
}

#[tokio::test]
async fn what_finds_no_room_is_dropped_and_counted_and_nobody_waits() {
    let collector = TestCollector::start().await;
    let (tracer, metrics) = tracer(collector.endpoint(), ALL);
    for _ in 0..CAPACITY + 100 {
        drop(begin(&tracer, "many"));
    }
    tracer.flush().await;
    assert_eq!(collector.spans().len(), CAPACITY);
    let largest = collector.batches().iter().map(|b| b.spans.len()).max();
    assert_eq!(largest, Some(BATCH));
    let rooms = u64::try_from(CAPACITY).unwrap();
    assert_eq!(counted(&metrics, "exported"), rooms);
    assert_eq!(counted(&metrics, "dropped"), 100);
}

#[tokio::test]
async fn shutdown_waits_for_no_answer_and_what_was_under_way_is_sent_last() {
    let collector = TestCollector::start().await;
    collector.answer([Answer::Hang]);
    let (tracer, _) = tracer(collector.endpoint(), ALL);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(tracer.clone().run(shutdown.clone()));
    drop(begin(&tracer, "under way"));
    collector.until("asked", |all| all.requests() == 1).await;
    drop(begin(&tracer, "last"));
    shutdown.cancel();
    task.await.unwrap().unwrap();
    assert_eq!(collector.spans().len(), 0);
    tracer.flush().await;
    let names: Vec<_> = collector.spans().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["under way", "last"]);
}

#[tokio::test]
async fn the_last_look_at_a_collector_that_never_answers_is_short() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (tracer, _) = tracer(&silent.local_addr().unwrap().to_string(), ALL);
    drop(begin(&tracer, "one"));
    let patience = Duration::from_secs(60);
    let flushed = tokio::time::timeout(patience, tracer.flush()).await;
    assert!(flushed.is_ok(), "a silent one");
    drop(silent);
    let flushed = tokio::time::timeout(patience, tracer.flush()).await;
    assert!(flushed.is_ok(), "none");
}

#[tokio::test]
async fn a_collector_may_listen_on_a_socket_in_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let collector = TestCollector::start_on(&dir.path().join("otel.sock"));
    let (tracer, _) = tracer(collector.endpoint(), ALL);
    drop(begin(&tracer, "one"));
    tracer.flush().await;
    assert_eq!(collector.spans().len(), 1);
}
