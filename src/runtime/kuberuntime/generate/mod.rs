//! Generates the CRI configurations of a pod's sandbox and containers.
//!
//! * Owns: every generator of configuration, and the kubelet's own files that a configuration refers to (`/etc/hosts`,
//!   termination logs).
//! * Woken by: a sync that creates a sandbox or a container.
//! * Publishes: nothing; it returns configurations, warnings and errors.
//! * Must never call the runtime. Only `builder`, `container_files` and `user_namespaces` have effects.
//! * Upstream: `kuberuntime_sandbox.go`, `kuberuntime_container.go`, `security_context.go`,
//!   `pkg/kubelet/kubelet_pods.go` and `pkg/kubelet/network/dns`.

mod builder;
pub mod container_config;
pub mod container_files;
pub mod dns;
pub mod env;
pub mod hostname;
pub mod mounts;
pub mod sandbox_config;
pub mod security_context;
pub mod settings;
pub mod stop_signal;
pub mod user_namespaces;

#[cfg(test)]
mod tests;

pub use settings::GenerateSettings;
pub use user_namespaces::{UserNamespaces, UserNamespacesConfig};

pub(super) use builder::{ConfigBuilder, NewSandbox};
pub(super) use container_config::ContainerConfigRequest;
