//! The node's client and serving certificates: requests and rotation.
//!
//! * Owns: `kubelet-client-*.pem` and `kubelet-server-*.pem` in `--cert-dir`, the private key of a bootstrap in
//!   progress, and the kubeconfig that a bootstrap writes.
//! * Woken by: timers, changed node addresses, and responses to a CertificateSigningRequest.
//! * Publishes: files, which the API client and the kubelet's HTTPS server reload.
//! * Must never reveal a key, replace a usable certificate by an unusable one, or send requests without a back-off.
//! * Upstream: `pkg/kubelet/certificate` with its `bootstrap`, and `k8s.io/client-go/util/certificate`.

mod bootstrap;
mod failure;
mod manager;
mod metrics;
mod plan;
mod request;
mod start;
mod store;
#[cfg(test)]
mod tests;

pub use bootstrap::Bootstrap;
pub use manager::CertificateManager;
pub use metrics::CertificateMetrics;
pub use plan::{Purpose, Template};
pub use start::{CertificateDeps, IdentityConfig, client_identity, open_api, start};
pub use store::{CLIENT, FileStore, SERVER};
