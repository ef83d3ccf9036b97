//! Handlers of probes and lifecycle hooks: runs one exec, httpGet, tcpSocket, grpc or sleep action.
//!
//! * **Owns** one implementation each of exec, httpGet, tcpSocket, grpc and sleep; lifecycle hooks
//!   ([`Hooks`]); the output and error texts of both.
//! * **Woken by** the prober, the start and the stop of a container.
//! * **Publishes** outcomes to its caller, the `LifecycleHTTPFallback` event and its counter.
//! * **Must never** report a lack of ports, memory, processor time or name lookups of this process as a failure of the
//!   container, leave a connection in TIME_WAIT, use a proxy, read more than 10 KiB of a response body, or look up any
//!   number of names at once.
//! * Upstream: `pkg/probe` and `pkg/kubelet/lifecycle`.

mod deadline;
mod exec;
mod grpc;
mod hooks;
mod http;
mod net;
mod request;
mod tls;
mod url;

#[cfg(test)]
mod tests;

pub use exec::{ExecFn, runtime_exec};
pub use hooks::{HookError, HookTarget, Hooks, hook_address};

use crate::model::ContainerId;
use k8s_openapi::api::core::v1::{
    ContainerPort, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::borrow::Cow;
use std::time::Duration;

/// Maximum number of bytes of an output or response body that are read and reported.
const MAX_OUTPUT: usize = 10 * 1024;

/// The generated gRPC health-checking protocol.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// The result of one run of a probe's handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The probe succeeded.
    Success {
        /// The output.
        output: String,
    },
    /// The probe succeeded with a warning.
    Warning {
        /// The warning.
        output: String,
    },
    /// The probe failed.
    Failure {
        /// The output, or the error.
        output: String,
    },
    /// The handler could not be run, so the result is unknown.
    Unknown {
        /// Why.
        error: String,
    },
}

impl ProbeOutcome {
    fn success(output: impl Into<String>) -> Self {
        let output = output.into();
        Self::Success { output }
    }

    fn failure(output: impl Into<String>) -> Self {
        let output = output.into();
        Self::Failure { output }
    }

    fn unknown(error: impl Into<String>) -> Self {
        let error = error.into();
        Self::Unknown { error }
    }
}

/// The action of a probe or hook, borrowed from a pod's spec.
#[derive(Clone, Debug, PartialEq)]
pub enum Handler<'a> {
    /// Run a command in the container; the caller expands `$(VAR)` references.
    Exec(Cow<'a, [String]>),
    /// Send an HTTP GET.
    HttpGet(&'a HTTPGetAction),
    /// Open a connection.
    TcpSocket(&'a TCPSocketAction),
    /// Call a gRPC health service.
    Grpc(&'a GRPCAction),
    /// Wait for this number of seconds.
    Sleep(i64),
}

impl<'a> Handler<'a> {
    /// The handler of a probe; `None` if the probe has none.
    pub fn of_probe(probe: &'a Probe) -> Option<Self> {
        if let Some(exec) = &probe.exec {
            Some(Self::Exec(exec.command.as_deref().unwrap_or(&[]).into()))
        } else if let Some(http) = &probe.http_get {
            Some(Self::HttpGet(http))
        } else if let Some(tcp) = &probe.tcp_socket {
            Some(Self::TcpSocket(tcp))
        } else {
            probe.grpc.as_ref().map(Self::Grpc)
        }
    }

    /// The handler of a hook; `None` if the hook has none.
    pub fn of_hook(hook: &'a LifecycleHandler) -> Option<Self> {
        if let Some(exec) = &hook.exec {
            Some(Self::Exec(exec.command.as_deref().unwrap_or(&[]).into()))
        } else if let Some(http) = &hook.http_get {
            Some(Self::HttpGet(http))
        } else if let Some(sleep) = &hook.sleep {
            Some(Self::Sleep(sleep.seconds))
        } else {
            hook.tcp_socket.as_ref().map(Self::TcpSocket)
        }
    }
}

/// The container that a handler is run for.
#[derive(Clone, Copy, Debug)]
pub struct HandlerTarget<'a> {
    /// The container.
    pub container_id: &'a ContainerId,
    /// Address of its pod (of the node for host-network pods), once known.
    pub pod_ip: Option<&'a str>,
    /// The ports of the container, to resolve port names.
    pub ports: &'a [ContainerPort],
}

/// Runs a probe's handler. A network handler ends within `timeout`. For exec, `timeout` is passed to the
/// runtime, and this returns when the runtime does.
pub async fn run_handler(
    exec: &ExecFn,
    handler: &Handler<'_>,
    target: &HandlerTarget<'_>,
    timeout: Duration,
) -> ProbeOutcome {
    match handler {
        Handler::Exec(command) => exec::probe(exec, target.container_id, command, timeout).await,
        Handler::HttpGet(action) => {
            match request::of_action(action, target, request::PROBE_AGENT) {
                Ok(request) => http::probe(request, timeout).await,
                Err(error) => ProbeOutcome::unknown(error),
            }
        }
        Handler::TcpSocket(action) => match tcp_address(action, target) {
            Ok((host, port)) => net::probe_tcp(host, port, timeout).await,
            Err(error) => ProbeOutcome::unknown(error),
        },
        Handler::Grpc(action) => match grpc_address(action, target) {
            Ok((host, port)) => {
                let service = action.service.as_deref().unwrap_or_default();
                grpc::probe(host, port, service, timeout).await
            }
            Err(error) => ProbeOutcome::unknown(error),
        },
        Handler::Sleep(_) => ProbeOutcome::unknown("sleep is not supported as a probe"),
    }
}

fn tcp_address<'a>(
    action: &'a TCPSocketAction,
    target: &HandlerTarget<'a>,
) -> Result<(&'a str, u16), String> {
    let host = host_or_pod(action.host.as_deref(), target)?;
    Ok((host, resolve_port(&action.port, target.ports)?))
}

fn grpc_address<'a>(
    action: &GRPCAction,
    target: &HandlerTarget<'a>,
) -> Result<(&'a str, u16), String> {
    Ok((host_or_pod(None, target)?, port_number(action.port)?))
}

fn host_or_pod<'a>(host: Option<&'a str>, target: &HandlerTarget<'a>) -> Result<&'a str, String> {
    host.filter(|host| !host.is_empty())
        .or(target.pod_ip)
        .ok_or_else(|| "the pod has no IP address yet".to_owned())
}

/// A port by number, by name of one of the container's ports, or by a number written as text.
fn resolve_port(reference: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    match reference {
        IntOrString::Int(number) => port_number(*number),
        IntOrString::String(name) => {
            let named = ports.iter().find(|port| port.name.as_ref() == Some(name));
            match (named, name.parse()) {
                (Some(port), _) => port_number(port.container_port),
                (None, Ok(number)) => port_number(number),
                (None, Err(_)) => Err(format!("the container has no port named {name:?}")),
            }
        }
    }
}

fn port_number(number: i32) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("invalid port number: {number}")),
    }
}

/// The first [`MAX_OUTPUT`] bytes as text; invalid UTF-8 is replaced.
fn truncated(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..MAX_OUTPUT).unwrap_or(bytes)).into_owned()
}
