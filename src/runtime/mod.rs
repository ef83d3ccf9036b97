//! Makes the container runtime match a pod: `kuberuntime`, with container logs and the handlers of probes and hooks.

pub mod logs;
pub mod handlers;
pub mod kuberuntime;
