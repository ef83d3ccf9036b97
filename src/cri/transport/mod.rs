//! The one road to the runtime: a lazily opened HTTP/2 connection over a unix socket under a small
//! stack of `tower` services. From the outside in: admission of heavy calls, then metrics and a
//! span, then the deadline, then the connection. Waiting for admission does not count as call time.

mod admission;
mod connector;
mod deadline;
mod observe;

use std::time::Duration;

use tonic::transport::Channel;

pub use connector::ConnectFailure;
pub(super) use deadline::CallDeadline;

use super::endpoint::Endpoint;
use super::metrics::CriMetrics;
use crate::base::otel::Tracer;
use admission::Admission;
use deadline::Deadline;
use observe::Observe;

/// The service under the generated clients. Clones share the connection.
pub type CriService = Admission<Observe<Deadline<Channel>>>;

/// Flow-control windows: replies of megabytes should not wait for window updates.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Builds the stack; connects when the first call is made. Needs a running tokio runtime.
pub(super) fn service(
    endpoint: &Endpoint,
    timeout: Duration,
    metrics: CriMetrics,
    tracer: Tracer,
) -> CriService {
    // The authority is not used on a unix socket; runtimes expect "localhost".
    let channel = tonic::transport::Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect_with_connector_lazy(connector::UnixConnector::new(endpoint.clone()));
    let observed = Observe::new(Deadline::new(channel, timeout), metrics, tracer);
    Admission::new(observed)
}
