//! What a collector of traces hears of a node.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;

use crate::collector::{TestCollector, attribute, ids};
use crate::node::{Node, WAIT_LIMIT};
use crate::pods::{container, pod, simple, with};
use crate::support::fake_runtime::Rpc;
use crate::support::raw;
use crate::support::wait::{holds, wait_for};

const THEIR_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const THEIR_SPAN: &str = "b7ad6b7169203331";

/// A node that exports so many traces of a million.
async fn node_with(collector: &str, rate: u32) -> Node {
    let mut node = Node::new().await;
    node.configure(&tracing_to(collector, rate));
    node.start().await;
    node
}

fn tracing_to(collector: &str, rate: u32) -> String {
    format!("tracing: {{endpoint: \"{collector}\", samplingRatePerMillion: {rate}}}")
}

impl Node {
    /// Sends a request over the local socket as part of another service's trace.
    async fn ask_as_part(&self, request: &str, flags: &str) -> u16 {
        let socket = self.path("root/kubelet.sock");
        let request =
            format!("{request}\nHost: node\ntraceparent: 00-{THEIR_TRACE}-{THEIR_SPAN}-{flags}");
        raw::exchange(&socket, &request).await.0.status
    }
}

fn said(span: &Span, key: &str) -> String {
    attribute(&span.attributes, key).unwrap_or_default()
}

fn is_theirs(span: &Span) -> bool {
    ids(span).0 == THEIR_TRACE
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn the_start_and_the_end_of_a_pod_are_traces_with_the_calls_that_they_made() {
    let collector = TestCollector::start().await;
    let mut node = Node::new().await;
    node.configure(&tracing_to(collector.endpoint(), 1_000_000));
    node.configure("imageGCHighThresholdPercent: 99");
    node.start().await;
    let pulled = with(container("main"), json!({"imagePullPolicy": "Always"}));
    node.put(&pod("web", &[pulled]));
    node.wait_phase("web", "Running").await;
    let uid = node.pod("web").await.unwrap().metadata.uid.unwrap();

    let calls = [
        "runtime.v1.RuntimeService/RunPodSandbox",
        "runtime.v1.ImageService/PullImage",
        "runtime.v1.RuntimeService/CreateContainer",
        "runtime.v1.RuntimeService/StartContainer",
    ];
    for name in calls {
        let found = collector.wait(name, |span| span.name == name).await;
        let [call] = &found[..] else { panic!("{name}: {found:?}") };
        assert_eq!(call.kind(), SpanKind::Client);
        let (service, method) = name.split_once('/').unwrap();
        assert_eq!(said(call, "rpc.system"), "grpc");
        assert_eq!(said(call, "rpc.service"), service);
        assert_eq!(said(call, "rpc.method"), method);
        assert_eq!(said(call, "rpc.grpc.status_code"), "0");
        assert_eq!(call.status, None);

        let above = |span: &Span| span.span_id == call.parent_span_id;
        let above = collector.wait("its turn", above).await;
        let [turn] = &above[..] else { panic!("{name}: {above:?}") };
        assert_eq!((&*turn.name, turn.kind()), ("syncPod", SpanKind::Internal));
        assert_eq!(turn.trace_id, call.trace_id);
        assert_eq!(said(turn, "k8s.pod.uid"), uid);
        assert_eq!(said(turn, "k8s.pod"), "default/web-node1");
        assert_eq!(said(turn, "k8s.pod.name"), "web-node1");
        assert_eq!(said(turn, "k8s.namespace.name"), "default");
        assert_eq!(said(turn, "k8s.pod.update_type"), "create");

        let (trace, id) = ids(call);
        let reported = (format!("/{name}"), format!("00-{trace}-{id}-01"));
        assert!(node.fake.traced().contains(&reported), "the runtime: {name}");
    }

    node.remove("web");
    node.wait_removed("web").await;
    for (turn, call) in [("syncTerminatingPod", Some("StopContainer")), ("syncTerminatedPod", None)]
    {
        let found = collector.wait(turn, |span| span.name == turn).await;
        assert_eq!(said(&found[0], "k8s.pod.uid"), uid);
        let below = |span: &Span| {
            let of_it = found.iter().any(|turn| turn.span_id == span.parent_span_id);
            of_it && call.is_some_and(|call| span.name.ends_with(call))
        };
        if call.is_some() {
            collector.wait("its call", below).await;
        }
    }
    collector.wait("a clean-up", |span| span.name == "Images/GarbageCollect").await;
    wait_for("spans are counted", WAIT_LIMIT, async || {
        let (_, text) = node.get("/metrics").await;
        let counted = text.contains("kubelet_trace_spans_total{outcome=\"exported\"}");
        holds(counted, text)
    })
    .await;

    // The last spans are received, too.
    assert_eq!(node.ask_as_part("GET /healthz HTTP/1.1", "01").await, 200);
    node.stop().await;
    let last = |span: &Span| said(span, "http.route") == "/healthz";
    assert!(collector.spans().iter().any(last));
}

#[tokio::test]
async fn a_request_is_part_of_the_trace_that_it_names_and_its_address_stays_untold() {
    let collector = TestCollector::start().await;
    // Nothing begins here, so all that is exported belongs to them.
    let node = node_with(collector.endpoint(), 0).await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    for (request, flags, status) in [
        ("GET /pods?hush=hush HTTP/1.1", "01", 200),
        ("GET /pods HTTP/1.1", "00", 200),
        ("GET /hush HTTP/1.1", "01", 404),
        ("POST /run/default/web-node1/main?cmd=hush HTTP/1.1", "01", 200),
        ("GET /healthz HTTP/1.1", "01", 200),
    ] {
        let answered = node.ask_as_part(request, flags).await;
        assert_eq!(answered, status, "{request}");
    }
    let last = |span: &Span| said(span, "http.route") == "/healthz";
    collector.wait("the last request", last).await;
    let spans = collector.spans();
    assert!(spans.iter().all(is_theirs), "{spans:?}");
    assert!(!format!("{spans:?}").contains("hush"), "{spans:?}");
    let mut served: Vec<_> = spans.iter().filter(|span| span.kind() == SpanKind::Server).collect();
    served.sort_by_key(|span| span.start_time_unix_nano);
    let shown: Vec<_> = served
        .iter()
        .map(|span| {
            assert_eq!(hex(&span.parent_span_id), THEIR_SPAN);
            assert_eq!(said(span, "url.scheme"), "http");
            [
                span.name.clone(),
                said(span, "http.request.method"),
                said(span, "http.route"),
                said(span, "http.response.status_code"),
            ]
        })
        .collect();
    let run = "/run/{namespace}/{pod}/{container}";
    let expected = [
        ["/pods/", "GET", "/pods/", "200"],
        ["GET", "GET", "", "404"],
        [run, "POST", run, "200"],
        ["/healthz", "GET", "/healthz", "200"],
    ];
    assert_eq!(shown, expected.map(|row| row.map(str::to_owned)));
    let [exec] =
        &spans.iter().filter(|span| span.kind() == SpanKind::Client).collect::<Vec<_>>()[..]
    else {
        panic!("{spans:?}")
    };
    assert_eq!(exec.name, "runtime.v1.RuntimeService/ExecSync");
    assert_eq!(exec.parent_span_id, served[2].span_id);
    // A request that is not sampled is propagated as such.
    let start = |(path, _): &&(String, String)| path.ends_with("/StartContainer");
    let traced = node.fake.traced();
    let (_, parent) = traced.iter().find(start).expect("a start");
    assert!(parent.ends_with("-00"), "{parent}");
}

#[tokio::test]
async fn nobody_is_told_anything_while_nothing_is_recorded() {
    let collector = TestCollector::start().await;
    let mut node = node_with(collector.endpoint(), 0).await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    assert_eq!(node.ask_as_part("GET /pods HTTP/1.1", "00").await, 200);
    node.stop().await;
    assert_eq!(collector.connections(), 0);
}

#[tokio::test]
async fn a_request_to_the_read_only_port_is_linked_to_the_trace_that_it_names_and_no_part_of_it() {
    let collector = TestCollector::start().await;
    let node = node_with(collector.endpoint(), 1_000_000).await;
    node.get_as_part("/pods", &format!("00-{THEIR_TRACE}-{THEIR_SPAN}-01")).await;
    let of_it = |span: &Span| said(span, "http.route") == "/pods/" && !span.links.is_empty();
    let found = collector.wait("a linked span", of_it).await;
    assert!(found[0].parent_span_id.is_empty() && !is_theirs(&found[0]));
    let link = &found[0].links[0];
    assert_eq!(
        (hex(&link.trace_id), hex(&link.span_id)),
        (THEIR_TRACE.to_owned(), THEIR_SPAN.to_owned())
    );
}

#[tokio::test]
async fn without_the_section_there_are_no_traces() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    assert_eq!(node.ask_as_part("GET /pods HTTP/1.1", "01").await, 200);
    assert!(node.fake.count(Rpc::StartContainer) > 0);
    assert_eq!(node.fake.traced(), []);
    let (_, text) = node.get("/metrics").await;
    assert!(!text.contains("kubelet_trace_spans_total"));
}

#[tokio::test]
async fn a_collector_that_is_not_there_harms_nothing() {
    let gone = TestCollector::start().await.endpoint().to_owned();
    let mut node = node_with(&gone, 1_000_000).await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    node.wait_healthy().await;
    node.remove("web");
    node.wait_removed("web").await;
    node.stop().await;
}
