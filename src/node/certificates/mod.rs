//! The node's certificates: how it gets them from the cluster, and renews them.
//!
//! * Owns: `kubelet-client-*.pem` and `kubelet-server-*.pem` of `--cert-dir`, the key of a bootstrap under way, and the
//!   kubeconfig that a bootstrap writes.
//! * Woken by: timers, a changed address, the API server's response to a certificate signing request.
//! * Publishes: files, which the client of the API server and the secured port read again.
//! * Must never reveal a key, replace a usable certificate by an unusable one, or send requests without a delay
//!   between them.
//! * Answers to `pkg/kubelet/certificate` with its `bootstrap`, and `k8s.io/client-go/util/certificate`.

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
pub use start::{Identity, IdentityConfig, open_api, start};
pub use store::{CLIENT, FileStore, SERVER};
