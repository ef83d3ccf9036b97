//! Client of the CRI runtime service.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::connection::{CriConnection, MAX_REPLY, unary, with_deadline};
use super::error::CriError;
use super::rpc::Rpc;
use super::transport::CriService;
use super::v1::runtime_service_client::RuntimeServiceClient;
use super::v1::{
    CheckpointContainerRequest, ContainerConfig, ContainerStats, ContainerStatsRequest,
    ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecSyncRequest,
    LinuxContainerResources, PodSandboxConfig, PodSandboxStatus, PodSandboxStatusRequest,
    RemoveContainerRequest, RemovePodSandboxRequest, ReopenContainerLogRequest,
    RunPodSandboxRequest, RuntimeConfigRequest, RuntimeConfigResponse, StartContainerRequest,
    StatusRequest, StatusResponse, StopContainerRequest, StopPodSandboxRequest,
    UpdateContainerResourcesRequest, UpdatePodSandboxResourcesRequest, VersionRequest,
    VersionResponse,
};

/// The CRI version that the kubelet sends in Version requests; upstream's value.
const KUBELET_API_VERSION: &str = "0.1.0";

/// Limit of an ExecSync reply: the 16 MiB at which runtimes cut the output, plus 64 KiB for the rest of the message.
const MAX_EXEC_REPLY: usize = 16 * 1024 * 1024 + 64 * 1024;

/// Calls of the runtime service. Clones share the connection.
#[derive(Clone)]
pub struct RuntimeClient {
    connection: CriConnection,
    /// Whether streaming list calls are tried first.
    prefers_streams: Arc<AtomicBool>,
}

/// The complete status of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct FullSandboxStatus {
    /// The sandbox itself.
    pub sandbox: PodSandboxStatus,
    /// Its containers, from runtimes that list them here; otherwise empty.
    pub containers: Vec<ContainerStatus>,
    /// Free-form details, if requested.
    pub info: HashMap<String, String>,
}

/// The result of a command in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output, at most about 16 MiB.
    pub stdout: Vec<u8>,
    /// Standard error, at most about 16 MiB.
    pub stderr: Vec<u8>,
    /// Exit code of the command.
    pub exit_code: i32,
}

impl RuntimeClient {
    /// Calls over `connection`.
    pub fn new(connection: CriConnection) -> RuntimeClient {
        RuntimeClient { connection, prefers_streams: Arc::default() }
    }

    /// Tries the streaming list calls first, until the runtime returns that it does not implement them.
    #[must_use]
    pub fn preferring_streams(self, prefers: bool) -> RuntimeClient {
        RuntimeClient { prefers_streams: Arc::new(AtomicBool::new(prefers)), ..self }
    }

    pub(super) fn prefers_streams(&self) -> &AtomicBool {
        &self.prefers_streams
    }

    /// The connection that the calls use.
    pub fn connection(&self) -> &CriConnection {
        &self.connection
    }

    /// The generated client, with metrics, spans and deadlines. The deadlines of StopContainer and ExecSync do not include
    /// the timeouts of these requests; use the methods of this type for them.
    pub fn raw(&self) -> RuntimeServiceClient<CriService> {
        RuntimeServiceClient::new(self.connection.service()).max_decoding_message_size(MAX_REPLY)
    }

    /// Name and versions of the runtime.
    pub async fn version(&self) -> Result<VersionResponse, CriError> {
        let request = VersionRequest { version: KUBELET_API_VERSION.to_owned() };
        unary(Rpc::Version, self.raw().version(request)).await
    }

    /// Conditions, handlers and features of the runtime.
    pub async fn status(&self, verbose: bool) -> Result<StatusResponse, CriError> {
        let request = StatusRequest { verbose };
        let reply = unary(Rpc::Status, self.raw().status(request)).await?;
        match reply.status {
            Some(_) => Ok(reply),
            None => Err(CriError::invalid(Rpc::Status, "no runtime status in the reply")),
        }
    }

    /// The runtime's configuration, which has the cgroup driver.
    pub async fn runtime_config(&self) -> Result<RuntimeConfigResponse, CriError> {
        let request = RuntimeConfigRequest {};
        unary(Rpc::RuntimeConfig, self.raw().runtime_config(request)).await
    }

    /// Creates and starts a sandbox; returns its id. `handler` is empty for the default runtime. If the outcome is
    /// unknown, the sandbox may appear later under the name, UID and attempt in `config`.
    pub async fn run_pod_sandbox(
        &self,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Result<String, CriError> {
        let request =
            RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let reply = unary(Rpc::RunPodSandbox, self.raw().run_pod_sandbox(request)).await?;
        non_empty_id(Rpc::RunPodSandbox, "pod_sandbox_id", reply.pod_sandbox_id)
    }

    /// Stops all processes of a sandbox and releases its network. Succeeds for a stopped sandbox; returns `NotFound`
    /// if the runtime has no such sandbox.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        unary(Rpc::StopPodSandbox, self.raw().stop_pod_sandbox(request)).await?;
        Ok(())
    }

    /// Removes a sandbox and its containers.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let rpc = Rpc::RemovePodSandbox;
        unary(rpc, self.raw().remove_pod_sandbox(request)).await?;
        Ok(())
    }

    /// The status of one sandbox.
    pub async fn pod_sandbox_status(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<FullSandboxStatus, CriError> {
        let rpc = Rpc::PodSandboxStatus;
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        let reply = unary(rpc, self.raw().pod_sandbox_status(request)).await?;
        let sandbox = match reply.status {
            Some(sandbox) if sandbox.metadata.is_some() && !sandbox.id.is_empty() => sandbox,
            Some(_) => {
                return Err(CriError::invalid(rpc, format!("sandbox {id} without id or metadata")));
            }
            None => return Err(CriError::invalid(rpc, format!("no status of sandbox {id}"))),
        };
        Ok(FullSandboxStatus { sandbox, containers: reply.containers_statuses, info: reply.info })
    }

    /// Creates a container; returns its id. If the outcome is unknown, the container may appear later under the name and
    /// attempt in `config`.
    pub async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> Result<String, CriError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let reply = unary(Rpc::CreateContainer, self.raw().create_container(request)).await?;
        non_empty_id(Rpc::CreateContainer, "container_id", reply.container_id)
    }

    /// Starts a created container.
    pub async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let request = StartContainerRequest { container_id: id.to_owned() };
        unary(Rpc::StartContainer, self.raw().start_container(request)).await?;
        Ok(())
    }

    /// Sends the stop signal, and SIGKILL after `timeout` seconds. Returns when the container has stopped.
    pub async fn stop_container(&self, id: &str, timeout: i64) -> Result<(), CriError> {
        let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        let deadline = self.connection.request_timeout().saturating_add(grace);
        let message = StopContainerRequest { container_id: id.to_owned(), timeout };
        let request = with_deadline(message, Some(deadline));
        unary(Rpc::StopContainer, self.raw().stop_container(request)).await?;
        Ok(())
    }

    /// Removes a container.
    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        unary(Rpc::RemoveContainer, self.raw().remove_container(request)).await?;
        Ok(())
    }

    /// The status of one container.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        let rpc = Rpc::ContainerStatus;
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let reply = unary(rpc, self.raw().container_status(request)).await?;
        match reply.status {
            Some(status) if status.metadata.is_some() && !status.id.is_empty() => Ok(status),
            Some(_) => {
                Err(CriError::invalid(rpc, format!("container {id} without id or metadata")))
            }
            None => Err(CriError::invalid(rpc, format!("no status of container {id}"))),
        }
    }

    /// The resource usage of a container.
    pub async fn container_stats(&self, id: &str) -> Result<ContainerStats, CriError> {
        let rpc = Rpc::ContainerStats;
        let request = ContainerStatsRequest { container_id: id.to_owned() };
        let reply = unary(rpc, self.raw().container_stats(request)).await?;
        let missing = || CriError::invalid(rpc, format!("no stats of container {id}"));
        reply.stats.ok_or_else(missing)
    }

    /// Changes a container's limits in place.
    pub async fn update_container_resources(
        &self,
        id: &str,
        linux: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        let rpc = Rpc::UpdateContainerResources;
        unary(rpc, self.raw().update_container_resources(request)).await?;
        Ok(())
    }

    /// Announces a resize of a pod. Runtimes that do not implement the call accept it.
    ///
    /// # Errors
    /// The runtime rejects the resize.
    pub async fn update_pod_sandbox_resources(
        &self,
        request: UpdatePodSandboxResourcesRequest,
    ) -> Result<(), CriError> {
        let rpc = Rpc::UpdatePodSandboxResources;
        match unary(rpc, self.raw().update_pod_sandbox_resources(request)).await {
            Err(CriError::Unimplemented { .. }) => Ok(()),
            // containerd 2.2 does not implement it.
            Err(CriError::Other { code: tonic::Code::Unknown, message, .. })
                if message.contains("not implemented") =>
            {
                Ok(())
            }
            reply => reply.map(drop),
        }
    }

    /// Makes the runtime open a container's log file again.
    pub async fn reopen_container_log(&self, id: &str) -> Result<(), CriError> {
        let request = ReopenContainerLogRequest { container_id: id.to_owned() };
        let rpc = Rpc::ReopenContainerLog;
        unary(rpc, self.raw().reopen_container_log(request)).await?;
        Ok(())
    }

    /// Writes the state of a running container to an archive at a path of the node. `limit` is the timeout for the
    /// runtime, rounded down to seconds; `None` sends none. The deadline of the call is `limit` plus the timeout of
    /// ordinary calls.
    pub async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        limit: Option<Duration>,
    ) -> Result<(), CriError> {
        let request_timeout = self.connection.request_timeout();
        let deadline = limit.map_or(request_timeout, |limit| request_timeout.saturating_add(limit));
        let seconds = limit.map_or(0, |limit| limit.as_secs());
        let message = CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.to_owned(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let request = with_deadline(message, Some(deadline));
        let rpc = Rpc::CheckpointContainer;
        unary(rpc, self.raw().checkpoint_container(request)).await?;
        Ok(())
    }

    /// Runs a command in a container and waits for it to exit; a timeout of zero means none. The runtime's timeout is
    /// in whole seconds, so others are rounded up. An output that is too large returns [`CriError::Exhausted`]. If
    /// the runtime killed the command after `timeout`, its message is the error.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput, CriError> {
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let deadline = if timeout.is_zero() {
            None
        } else {
            Some(self.connection.request_timeout().saturating_add(timeout))
        };
        let message = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: cmd.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let request = with_deadline(message, deadline);
        let mut client = self.raw().max_decoding_message_size(MAX_EXEC_REPLY);
        let reply = unary(Rpc::ExecSync, client.exec_sync(request)).await?;
        Ok(ExecOutput { stdout: reply.stdout, stderr: reply.stderr, exit_code: reply.exit_code })
    }
}

/// The ID in a reply; an error if it is empty.
pub(super) fn non_empty_id(rpc: Rpc, field: &str, id: String) -> Result<String, CriError> {
    if id.is_empty() { Err(CriError::invalid(rpc, format!("{field} is empty"))) } else { Ok(id) }
}
