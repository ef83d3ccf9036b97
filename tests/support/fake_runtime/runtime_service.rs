//! The runtime service: each call is recorded, meets its faults, and then works on the world.

use std::sync::Arc;
use std::time::Duration;

use kubelet::cri::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use v1::runtime_service_server::RuntimeService;

use super::behaviour::OnTerm;
use super::calls::{Rpc, Subject};
use super::exec::{ExecCall, StreamCall};
use super::views::{self, Bend};
use super::{Shared, stats};

type Answer<T> = Result<Response<T>, Status>;
type Items<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

pub struct Runtime(pub Arc<Shared>);

impl Runtime {
    fn sandbox_subject(&self, id: &str) -> Subject {
        self.0.world.lock().subject_of_sandbox(id)
    }

    fn container_subject(&self, id: &str) -> Subject {
        self.0.world.lock().subject_of_container(id)
    }

    fn sandboxes(&self, filter: Option<&v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let mut items = views::list_sandboxes(&self.0.world.lock(), filter);
        self.0.distortions.lock().iter().for_each(|distort| items.bend(distort));
        items
    }

    fn containers(&self, filter: Option<&v1::ContainerFilter>) -> Vec<v1::Container> {
        let mut items = views::list_containers(&self.0.world.lock(), filter);
        self.0.distortions.lock().iter().for_each(|distort| items.bend(distort));
        items
    }

    fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatusResponse, Status> {
        let mut status = views::sandbox_status(self.0.world.lock().sandbox(id)?);
        self.0.distortions.lock().iter().for_each(|distort| status.bend(distort));
        Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    fn container_status(&self, id: &str) -> Result<v1::ContainerStatusResponse, Status> {
        let mut status = views::container_status(self.0.world.lock().container(id)?);
        self.0.distortions.lock().iter().for_each(|distort| status.bend(distort));
        Ok(v1::ContainerStatusResponse { status: Some(status), info: Default::default() })
    }

    fn start(&self, id: &str) -> Result<v1::StartContainerResponse, Status> {
        let started = self.0.world.lock().start_container(id, self.0.now())?;
        if let Some((after, code)) = started.exit {
            self.0.end_later(id, after, code);
        }
        Ok(v1::StartContainerResponse {})
    }

    /// Signals the container, waits, and kills it after the timeout.
    async fn stop(&self, id: &str, timeout: i64) -> Result<v1::StopContainerResponse, Status> {
        let (ended, reaction) = {
            let mut world = self.0.world.lock();
            let Some(container) = world.containers.get_mut(id) else {
                return Ok(v1::StopContainerResponse {});
            };
            if container.state != v1::ContainerState::ContainerRunning {
                return Ok(v1::StopContainerResponse {});
            }
            let first = timeout > 0 && !container.asked_to_end;
            container.asked_to_end |= first;
            (container.ended.clone(), first.then_some(container.life.on_term))
        };
        if let Some(OnTerm::Exit { after, code }) = reaction {
            self.0.end_later(id, after, code);
        }
        let grace = Duration::from_secs(timeout.max(0).unsigned_abs());
        if tokio::time::timeout(grace, ended.cancelled()).await.is_err() {
            self.0.kill(id);
        }
        Ok(v1::StopContainerResponse {})
    }

    async fn exec(
        &self,
        request: v1::ExecSyncRequest,
        subject: Subject,
    ) -> Result<v1::ExecSyncResponse, Status> {
        let id = request.container_id;
        let state = self.0.world.lock().container(&id)?.state;
        if state != v1::ContainerState::ContainerRunning {
            return Err(Status::unknown(format!("container is in {} state", state.as_str_name())));
        }
        let call = ExecCall { subject, command: request.cmd };
        let script = self.0.exec.lock().clone();
        let outcome = script(&call);
        let timeout = Duration::from_secs(request.timeout.max(0).unsigned_abs());
        if !timeout.is_zero() && outcome.delay > timeout {
            tokio::time::sleep(timeout).await;
            let text = format!(
                "failed to exec in container: timeout {timeout:?} exceeded: context deadline exceeded"
            );
            return Err(Status::deadline_exceeded(text));
        }
        tokio::time::sleep(outcome.delay).await;
        let (stdout, stderr) = (outcome.stdout.into_bytes(), outcome.stderr.into_bytes());
        Ok(v1::ExecSyncResponse { stdout, stderr, exit_code: outcome.exit_code })
    }

    fn stream(&self, call: StreamCall) -> Result<String, Status> {
        let script = self.0.streams.lock().clone();
        script(&call)
    }
}

fn command_text(config: Option<&v1::ContainerConfig>) -> String {
    let Some(config) = config else {
        return String::new();
    };
    let image = config.image.clone().unwrap_or_default().image;
    format!(
        "image={image} command={:?} args={:?} log={}",
        config.command, config.args, config.log_path
    )
}

fn unsupported<T>(what: &str) -> Answer<T> {
    Err(Status::unimplemented(format!(
        "unknown method {what} for service runtime.v1.RuntimeService"
    )))
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    type StreamPodSandboxesStream = Items<v1::StreamPodSandboxesResponse>;
    type StreamContainersStream = Items<v1::StreamContainersResponse>;
    type StreamContainerStatsStream = Items<v1::StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Items<v1::StreamPodSandboxStatsResponse>;
    type GetContainerEventsStream = ReceiverStream<Result<v1::ContainerEventResponse, Status>>;
    type StreamPodSandboxMetricsStream = Items<v1::StreamPodSandboxMetricsResponse>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        let work = async {
            Ok(v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "fake".to_owned(),
                runtime_version: "1.0.0".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        };
        self.0.call(Rpc::Version, Subject::default(), String::new(), work).await
    }

    async fn run_pod_sandbox(
        &self,
        r: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let request = r.into_inner();
        let metadata = request.config.clone().unwrap_or_default().metadata.unwrap_or_default();
        let detail = format!("attempt={} handler={}", metadata.attempt, request.runtime_handler);
        let subject = Subject {
            namespace: metadata.namespace,
            pod: metadata.name,
            uid: metadata.uid,
            ..Subject::default()
        };
        let work = async {
            let pod_sandbox_id = self.0.world.lock().run_sandbox(request, self.0.now())?;
            Ok(v1::RunPodSandboxResponse { pod_sandbox_id })
        };
        self.0.call(Rpc::RunPodSandbox, subject, detail, work).await
    }

    async fn stop_pod_sandbox(
        &self,
        r: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = r.into_inner().pod_sandbox_id;
        let work = async {
            self.0.world.lock().stop_sandbox(&id, self.0.now());
            Ok(v1::StopPodSandboxResponse {})
        };
        self.0.call(Rpc::StopPodSandbox, self.sandbox_subject(&id), String::new(), work).await
    }

    async fn remove_pod_sandbox(
        &self,
        r: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = r.into_inner().pod_sandbox_id;
        let work = async {
            self.0.world.lock().remove_sandbox(&id, self.0.now());
            Ok(v1::RemovePodSandboxResponse {})
        };
        self.0.call(Rpc::RemovePodSandbox, self.sandbox_subject(&id), String::new(), work).await
    }

    async fn pod_sandbox_status(
        &self,
        r: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let id = r.into_inner().pod_sandbox_id;
        let work = async { self.sandbox_status(&id) };
        self.0.call(Rpc::PodSandboxStatus, self.sandbox_subject(&id), String::new(), work).await
    }

    async fn list_pod_sandbox(
        &self,
        r: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = r.into_inner().filter;
        let detail = filter.as_ref().map_or_else(String::new, |filter| format!("{filter:?}"));
        let work =
            async { Ok(v1::ListPodSandboxResponse { items: self.sandboxes(filter.as_ref()) }) };
        self.0.call(Rpc::ListPodSandbox, Subject::default(), detail, work).await
    }

    async fn stream_pod_sandboxes(
        &self,
        r: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        self.0.require_streaming()?;
        let filter = r.into_inner().filter;
        let work = async {
            let chunks = super::chunks(self.sandboxes(filter.as_ref()));
            let items =
                chunks.map(|pod_sandboxes| Ok(v1::StreamPodSandboxesResponse { pod_sandboxes }));
            Ok(tokio_stream::iter(items.collect::<Vec<_>>()))
        };
        self.0.call(Rpc::StreamPodSandboxes, Subject::default(), String::new(), work).await
    }

    async fn create_container(
        &self,
        r: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = r.into_inner();
        let mut subject = self.sandbox_subject(&request.pod_sandbox_id);
        subject.container =
            request.config.clone().unwrap_or_default().metadata.unwrap_or_default().name;
        let detail = command_text(request.config.as_ref());
        let work = async {
            let container_id = self.0.world.lock().create_container(request, self.0.now())?;
            Ok(v1::CreateContainerResponse { container_id })
        };
        self.0.call(Rpc::CreateContainer, subject, detail, work).await
    }

    async fn start_container(
        &self,
        r: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let id = r.into_inner().container_id;
        let work = async { self.start(&id) };
        self.0.call(Rpc::StartContainer, self.container_subject(&id), String::new(), work).await
    }

    async fn stop_container(
        &self,
        r: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let v1::StopContainerRequest { container_id: id, timeout } = r.into_inner();
        let work = self.stop(&id, timeout);
        self.0
            .call(
                Rpc::StopContainer,
                self.container_subject(&id),
                format!("timeout={timeout}"),
                work,
            )
            .await
    }

    async fn remove_container(
        &self,
        r: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = r.into_inner().container_id;
        let work = async {
            self.0.world.lock().remove_container(&id, self.0.now());
            Ok(v1::RemoveContainerResponse {})
        };
        self.0.call(Rpc::RemoveContainer, self.container_subject(&id), String::new(), work).await
    }

    async fn list_containers(
        &self,
        r: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let filter = r.into_inner().filter;
        let detail = filter.as_ref().map_or_else(String::new, |filter| format!("{filter:?}"));
        let work = async {
            Ok(v1::ListContainersResponse { containers: self.containers(filter.as_ref()) })
        };
        self.0.call(Rpc::ListContainers, Subject::default(), detail, work).await
    }

    async fn stream_containers(
        &self,
        r: Request<v1::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        self.0.require_streaming()?;
        let filter = r.into_inner().filter;
        let work = async {
            let chunks = super::chunks(self.containers(filter.as_ref()));
            let items = chunks.map(|containers| Ok(v1::StreamContainersResponse { containers }));
            Ok(tokio_stream::iter(items.collect::<Vec<_>>()))
        };
        self.0.call(Rpc::StreamContainers, Subject::default(), String::new(), work).await
    }

    async fn container_status(
        &self,
        r: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = r.into_inner().container_id;
        let work = async { self.container_status(&id) };
        self.0.call(Rpc::ContainerStatus, self.container_subject(&id), String::new(), work).await
    }

    async fn update_container_resources(
        &self,
        r: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let request = r.into_inner();
        let detail = format!("{:?}", request.linux);
        let subject = self.container_subject(&request.container_id);
        let work = async {
            let mut world = self.0.world.lock();
            world.container(&request.container_id)?;
            if let Some(container) = world.containers.get_mut(&request.container_id) {
                let known = container.resources.get_or_insert_default();
                merge(known, request.linux.unwrap_or_default());
            }
            Ok(v1::UpdateContainerResourcesResponse {})
        };
        self.0.call(Rpc::UpdateContainerResources, subject, detail, work).await
    }

    async fn reopen_container_log(
        &self,
        r: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        let id = r.into_inner().container_id;
        let work = async {
            let mut world = self.0.world.lock();
            if world.container(&id)?.state != v1::ContainerState::ContainerRunning {
                return Err(Status::unknown("container is not running"));
            }
            if let Some(log) =
                world.containers.get_mut(&id).and_then(|container| container.log.as_mut())
            {
                log.reopen();
            }
            Ok(v1::ReopenContainerLogResponse {})
        };
        self.0.call(Rpc::ReopenContainerLog, self.container_subject(&id), String::new(), work).await
    }

    async fn exec_sync(&self, r: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let request = r.into_inner();
        let subject = self.container_subject(&request.container_id);
        let detail = format!("{:?} timeout={}", request.cmd, request.timeout);
        let work = self.exec(request, subject.clone());
        self.0.call(Rpc::ExecSync, subject, detail, work).await
    }

    async fn exec(&self, r: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let request = r.into_inner();
        let subject = self.container_subject(&request.container_id);
        let (stdin, stdout) = (request.stdin, request.stdout);
        let (stderr, tty) = (request.stderr, request.tty);
        let detail =
            format!("{:?} stdin={stdin} stdout={stdout} stderr={stderr} tty={tty}", request.cmd);
        let call = StreamCall {
            subject: subject.clone(),
            rpc: Rpc::Exec,
            command: request.cmd,
            ports: Vec::new(),
        };
        let work = async {
            self.0.world.lock().container(&request.container_id)?;
            let url = self.stream(call)?;
            Ok(v1::ExecResponse { url })
        };
        self.0.call(Rpc::Exec, subject, detail, work).await
    }

    async fn attach(&self, r: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let request = r.into_inner();
        let subject = self.container_subject(&request.container_id);
        let (stdin, stdout) = (request.stdin, request.stdout);
        let (stderr, tty) = (request.stderr, request.tty);
        let detail = format!("stdin={stdin} stdout={stdout} stderr={stderr} tty={tty}");
        let call = StreamCall {
            subject: subject.clone(),
            rpc: Rpc::Attach,
            command: Vec::new(),
            ports: Vec::new(),
        };
        let work = async {
            self.0.world.lock().container(&request.container_id)?;
            let url = self.stream(call)?;
            Ok(v1::AttachResponse { url })
        };
        self.0.call(Rpc::Attach, subject, detail, work).await
    }

    async fn port_forward(
        &self,
        r: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let request = r.into_inner();
        let subject = self.sandbox_subject(&request.pod_sandbox_id);
        let detail = format!("{:?}", request.port);
        let call = StreamCall {
            subject: subject.clone(),
            rpc: Rpc::PortForward,
            command: Vec::new(),
            ports: request.port,
        };
        let work = async {
            self.0.world.lock().sandbox(&request.pod_sandbox_id)?;
            let url = self.stream(call)?;
            Ok(v1::PortForwardResponse { url })
        };
        self.0.call(Rpc::PortForward, subject, detail, work).await
    }

    async fn container_stats(
        &self,
        r: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let id = r.into_inner().container_id;
        let work = async {
            let stats = stats::of_container(self.0.world.lock().container(&id)?, self.0.now());
            Ok(v1::ContainerStatsResponse { stats: Some(stats) })
        };
        self.0.call(Rpc::ContainerStats, self.container_subject(&id), String::new(), work).await
    }

    async fn list_container_stats(
        &self,
        r: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let filter = r.into_inner().filter;
        let work = async {
            let stats = stats::list(&self.0.world.lock(), filter, self.0.now());
            Ok(v1::ListContainerStatsResponse { stats })
        };
        self.0.call(Rpc::ListContainerStats, Subject::default(), String::new(), work).await
    }

    async fn stream_container_stats(
        &self,
        _: Request<v1::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        unsupported("StreamContainerStats")
    }

    async fn pod_sandbox_stats(
        &self,
        _: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        unsupported("PodSandboxStats")
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        unsupported("ListPodSandboxStats")
    }

    async fn stream_pod_sandbox_stats(
        &self,
        _: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        unsupported("StreamPodSandboxStats")
    }

    async fn update_runtime_config(
        &self,
        _: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let work = async { Ok(v1::UpdateRuntimeConfigResponse {}) };
        self.0.call(Rpc::UpdateRuntimeConfig, Subject::default(), String::new(), work).await
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let work = async {
            let features = self.0.features.lock().clone();
            Ok(self.0.conditions.lock().answer(&features))
        };
        self.0.call(Rpc::Status, Subject::default(), String::new(), work).await
    }

    async fn checkpoint_container(
        &self,
        request: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        let request = request.into_inner();
        let detail = format!("{} {}", request.location, request.timeout);
        let work = async {
            std::fs::write(&request.location, "state")
                .map_err(|e| Status::internal(e.to_string()))?;
            Ok(v1::CheckpointContainerResponse {})
        };
        let subject = self.container_subject(&request.container_id);
        self.0.call(Rpc::CheckpointContainer, subject, detail, work).await
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        let work = async {
            let features = self.0.features.lock().clone();
            if !features.events {
                return unsupported("GetContainerEvents").map(Response::into_inner);
            }
            if features.event_streams_end {
                return Ok(ReceiverStream::new(mpsc::channel(1).1));
            }
            Ok(ReceiverStream::new(self.0.world.lock().subscribers.subscribe()))
        };
        self.0.call(Rpc::GetContainerEvents, Subject::default(), String::new(), work).await
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        unsupported("ListMetricDescriptors")
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        unsupported("ListPodSandboxMetrics")
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        unsupported("StreamPodSandboxMetrics")
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        let work = async {
            let Some(driver) = self.0.features.lock().cgroup_driver else {
                return unsupported("RuntimeConfig").map(Response::into_inner);
            };
            let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
            Ok(v1::RuntimeConfigResponse { linux: Some(linux) })
        };
        self.0.call(Rpc::RuntimeConfig, Subject::default(), String::new(), work).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        r: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        let request = r.into_inner();
        let detail = format!("{:?} {:?}", request.overhead, request.resources);
        let id = request.pod_sandbox_id;
        let work = async {
            self.0.world.lock().sandbox(&id)?;
            Ok(v1::UpdatePodSandboxResourcesResponse {})
        };
        let subject = self.sandbox_subject(&id);
        self.0.call(Rpc::UpdatePodSandboxResources, subject, detail, work).await
    }
}

/// As runtimes do: what is zero or empty stays as it is.
fn merge(known: &mut v1::LinuxContainerResources, new: v1::LinuxContainerResources) {
    for (known, new) in [
        (&mut known.cpu_period, new.cpu_period),
        (&mut known.cpu_quota, new.cpu_quota),
        (&mut known.cpu_shares, new.cpu_shares),
        (&mut known.memory_limit_in_bytes, new.memory_limit_in_bytes),
        (&mut known.memory_swap_limit_in_bytes, new.memory_swap_limit_in_bytes),
    ] {
        if new != 0 {
            *known = new;
        }
    }
    for (known, new) in
        [(&mut known.cpuset_cpus, new.cpuset_cpus), (&mut known.cpuset_mems, new.cpuset_mems)]
    {
        if !new.is_empty() {
            *known = new;
        }
    }
    known.unified.extend(new.unified);
}
