//! The container runtime interface: the only module that communicates with the runtime.
//!
//! * **Owns** the connection to the runtime's socket: the generated CRI v1 clients with concurrency limits, metrics,
//!   spans and deadlines ([`transport`]), typed errors, lists of any size, and the event stream, which reconnects
//!   ([`events`]).
//! * **Woken by** its callers; the event task also by the runtime.
//! * **Publishes** which containers and sandboxes changed, in a bounded set that loses none.
//! * **Must never** retry a call that changes something, return an empty list for a failed one, use
//!   anything of an event but the id of the changed item, the UID of its pod and the time of the event (for a metric), or
//!   log a request or reply (they may contain secrets).
//! * Upstream: `k8s.io/cri-client` and `pkg/kubelet/kuberuntime/instrumented_services.go`.

mod codec;
mod endpoint;
mod features;
mod list_fingerprint;
mod rpc;
mod metrics;
mod secrets;
pub mod transport;
mod error;
mod connection;
mod image;
mod runtime;
mod connect;
pub mod events;
mod lists;
mod streaming;
mod wait;

#[cfg(test)]
pub(crate) mod test_server;
#[cfg(test)]
mod tests;

pub use codec::SmallBuffers;
pub use connect::{RuntimeConfig, connect};
pub use connection::CriConnection;
pub use endpoint::{EndpointError, RuntimeEndpoint};
pub use error::{CriError, go_code, ignore_not_found};
pub use features::{
    FeaturesReader, FeaturesWriter, HandlerFeatures, RuntimeFeatures, UnknownHandler,
    features_store,
};
pub use image::ImageClient;
pub use list_fingerprint::{ListChange, ListFingerprint};
pub use metrics::CriMetrics;
pub use rpc::Rpc;
pub use runtime::{ExecOutput, FullSandboxStatus, RuntimeClient};
pub use streaming::StdStreams;
pub use wait::{RuntimeInfo, network_error, runtime_info, wait_for_runtime};

/// The generated CRI v1 messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}
