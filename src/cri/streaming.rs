//! Requests the URLs of the runtime's streaming server for exec, attach and port-forward.

use super::connection::unary;
use super::error::CriError;
use super::rpc::Rpc;
use super::runtime::{RuntimeClient, non_empty_id};
use super::v1::{AttachRequest, ExecRequest, PortForwardRequest};

/// The streams of a process that a client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StdStreams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; not available with a terminal, which has only one output.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

impl RuntimeClient {
    /// The URL for running `cmd` in a container with these streams. It is valid for one connection and a short time
    /// (containerd: a minute).
    pub async fn exec(
        &self,
        id: &str,
        cmd: Vec<String>,
        streams: StdStreams,
    ) -> Result<String, CriError> {
        let request = ExecRequest {
            container_id: id.to_owned(),
            cmd,
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let reply = unary(Rpc::Exec, self.raw().exec(request)).await?;
        non_empty_id(Rpc::Exec, "url", reply.url)
    }

    /// The URL for the streams of a container's first process; valid as that of [`RuntimeClient::exec`].
    pub async fn attach(&self, id: &str, streams: StdStreams) -> Result<String, CriError> {
        let request = AttachRequest {
            container_id: id.to_owned(),
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let reply = unary(Rpc::Attach, self.raw().attach(request)).await?;
        non_empty_id(Rpc::Attach, "url", reply.url)
    }

    /// The URL for connecting to ports of a sandbox; valid as that of [`RuntimeClient::exec`]. Without ports, the
    /// client chooses the port for each stream, as with SPDY.
    pub async fn port_forward(&self, sandbox_id: &str, ports: &[u16]) -> Result<String, CriError> {
        let request = PortForwardRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            port: ports.iter().copied().map(i32::from).collect(),
        };
        let reply = unary(Rpc::PortForward, self.raw().port_forward(request)).await?;
        non_empty_id(Rpc::PortForward, "url", reply.url)
    }
}
