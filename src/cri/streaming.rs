//! Where the runtime serves the streams of commands and ports: it answers with a URL of its own server.

use super::connection::finish;
use super::error::CriError;
use super::rpc::Rpc;
use super::runtime::{RuntimeClient, non_empty_id};
use super::v1::{AttachRequest, ExecRequest, PortForwardRequest};

/// Which of a process's streams are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StdStreams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; never together with a terminal, which has only one output.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

impl RuntimeClient {
    /// Where `cmd` can be run in a container with these streams. The URL is good for one connection and
    /// a short while (containerd: a minute).
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
        let reply = finish(Rpc::Exec, Box::pin(self.raw().exec(request)).await)?;
        non_empty_id(Rpc::Exec, "url", reply.url)
    }

    /// Where the streams of a container's first process are to be had; good for as long as the URL of
    /// [`RuntimeClient::exec`].
    pub async fn attach(&self, id: &str, streams: StdStreams) -> Result<String, CriError> {
        let request = AttachRequest {
            container_id: id.to_owned(),
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let reply = finish(Rpc::Attach, Box::pin(self.raw().attach(request)).await)?;
        non_empty_id(Rpc::Attach, "url", reply.url)
    }

    /// Where ports of a sandbox can be reached; good for as long as the URL of [`RuntimeClient::exec`].
    /// Without ports the client names them itself, stream by stream (SPDY does).
    pub async fn port_forward(&self, sandbox_id: &str, ports: &[u16]) -> Result<String, CriError> {
        let request = PortForwardRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            port: ports.iter().copied().map(i32::from).collect(),
        };
        let reply = finish(
            Rpc::PortForward,
            Box::pin(self.raw().port_forward(request)).await,
        )?;
        non_empty_id(Rpc::PortForward, "url", reply.url)
    }
}
