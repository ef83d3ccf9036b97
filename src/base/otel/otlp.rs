//! Converts spans to OTLP, and exports them.

use std::time::{Duration, SystemTime};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use wire::span::{Link, SpanKind};
use wire::status::StatusCode;

use super::collector::Collector;
use super::context::{SpanContext, TraceState};
use super::span_data::{AttributeValue, SpanData, TraceSpanKind};

/// Timeout for connecting.
const CONNECT: Duration = Duration::from_secs(5);
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Bits of a span's flags: whether it is known that the parent is remote, and whether it is.
const REMOTE_IS_KNOWN: u32 = 1 << 8;
const REMOTE: u32 = 1 << 9;

/// The generated messages.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub(super) mod wire {
    tonic::include_proto!("otlp.trace");
}

/// The connection to the collector; established on first use and re-established after it was lost.
pub(super) fn connect(collector: &Collector) -> anyhow::Result<Channel> {
    let endpoint = |uri: String| -> anyhow::Result<Endpoint> {
        let endpoint = Endpoint::from_shared(uri)?.connect_timeout(CONNECT);
        Ok(endpoint.user_agent(concat!("kubelet/", env!("CARGO_PKG_VERSION")))?)
    };
    Ok(match collector {
        Collector::Tcp(address) => endpoint(format!("http://{address}"))?.connect_lazy(),
        Collector::Unix(path) => {
            let path = path.clone();
            let open = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            endpoint("http://localhost".to_owned())?.connect_with_connector_lazy(open)
        }
    })
}

/// Exports spans to the collector; returns how many it rejected, and why.
pub(super) async fn export(
    channel: Channel,
    request: wire::ExportTraceServiceRequest,
) -> Result<Option<(u64, String)>, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    let codec = ProstCodec::<_, wire::ExportTraceServiceResponse>::default();
    let path = PathAndQuery::from_static(EXPORT);
    let answer = client.unary(Request::new(request), path, codec).await?;
    let partial = answer.into_inner().partial_success;
    let rejected = |partial: wire::ExportTracePartialSuccess| {
        let number = u64::try_from(partial.rejected_spans).unwrap_or(0);
        (number > 0).then_some((number, partial.error_message))
    };
    Ok(partial.and_then(rejected))
}

/// The error of a timeout.
pub(super) fn too_late() -> Status {
    Status::new(Code::DeadlineExceeded, "no answer in time")
}

/// The resource attributes of this process, named as in upstream.
pub(super) fn resource(node_name: &str) -> wire::Resource {
    let attributes = [
        ("service.name", "kubelet".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("host.name", node_name.to_owned()),
    ];
    let attributes = attributes.map(|(key, value)| key_value(key, &value.into()));
    wire::Resource { attributes: attributes.into() }
}

/// The export request for a batch.
pub(super) fn request(
    resource: &wire::Resource,
    spans: &[SpanData],
) -> wire::ExportTraceServiceRequest {
    let scope = wire::InstrumentationScope {
        name: "kubelet".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    wire::ExportTraceServiceRequest {
        resource_spans: vec![wire::ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![wire::ScopeSpans {
                scope: Some(scope),
                spans: spans.iter().map(span).collect(),
            }],
        }],
    }
}

fn span(ended: &SpanData) -> wire::Span {
    let kind = match ended.kind {
        TraceSpanKind::Internal => SpanKind::Internal,
        TraceSpanKind::Server => SpanKind::Server,
        TraceSpanKind::Client => SpanKind::Client,
    };
    let began = nanos(ended.began);
    let took = u64::try_from(ended.took.as_nanos()).unwrap_or(u64::MAX);
    let (parent, remote) = match ended.parent {
        Some((parent, remote)) => (parent.to_be_bytes().to_vec(), remote),
        None => (Vec::new(), false),
    };
    let status = ended
        .failure
        .as_ref()
        .map(|why| wire::Status { message: why.clone(), code: StatusCode::Error.into() });
    wire::Span {
        trace_id: ended.context.trace().to_be_bytes().to_vec(),
        span_id: ended.context.span().to_be_bytes().to_vec(),
        trace_state: state(&ended.context),
        parent_span_id: parent,
        name: ended.name.clone().into_owned(),
        kind: kind.into(),
        start_time_unix_nano: began,
        end_time_unix_nano: began.saturating_add(took),
        attributes: attributes(&ended.attributes),
        links: ended.link.iter().map(link).collect(),
        status,
        flags: flags(&ended.context, remote),
    }
}

fn link(context: &SpanContext) -> Link {
    Link {
        trace_id: context.trace().to_be_bytes().to_vec(),
        span_id: context.span().to_be_bytes().to_vec(),
        trace_state: state(context),
        flags: flags(context, true),
    }
}

fn state(context: &SpanContext) -> String {
    let state = context.state().map(TraceState::as_str);
    state.unwrap_or_default().to_owned()
}

fn flags(context: &SpanContext, remote: bool) -> u32 {
    let remote = if remote { REMOTE } else { 0 };
    u32::from(context.flags()) | REMOTE_IS_KNOWN | remote
}

fn attributes(given: &[(&'static str, AttributeValue)]) -> Vec<wire::KeyValue> {
    given.iter().map(|(key, value)| key_value(key, value)).collect()
}

fn key_value(key: &str, value: &AttributeValue) -> wire::KeyValue {
    let value = match value {
        AttributeValue::Text(text) => {
            wire::any_value::Value::StringValue(text.clone().into_owned())
        }
        AttributeValue::Number(number) => wire::any_value::Value::IntValue(*number),
    };
    wire::KeyValue { key: key.to_owned(), value: Some(wire::AnyValue { value: Some(value) }) }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}
