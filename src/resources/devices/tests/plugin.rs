//! A device plugin: a real gRPC server on a Unix socket.

use super::proto::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::proto::registration_client::RegistrationClient;
use super::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// The version of the interface.
pub(crate) const VERSION: &str = "v1beta1";

/// What the plugin answers to Allocate; `None` for nothing at all.
pub(crate) type Allocates =
    Arc<dyn Fn(&[String]) -> Option<ContainerAllocateResponse> + Send + Sync>;

struct Behaviour {
    options: DevicePluginOptions,
    allocates: Allocates,
    /// The devices of each call of Allocate.
    calls: Vec<Vec<String>>,
}

#[derive(Clone)]
struct Service {
    devices: watch::Sender<Option<Vec<Device>>>,
    /// Whether it responds to GetDevicePluginOptions and Allocate.
    answers: watch::Sender<bool>,
    behaviour: Arc<Mutex<Behaviour>>,
    gone: CancellationToken,
}

/// A plugin that serves until it is dropped.
pub(crate) struct FakePlugin {
    service: Service,
    pub(crate) socket: PathBuf,
}

impl Drop for FakePlugin {
    fn drop(&mut self) {
        self.service.gone.cancel();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A healthy device.
pub(crate) fn device(id: &str) -> Device {
    Device { id: id.into(), health: "Healthy".into(), topology: None }
}

impl FakePlugin {
    /// A plugin that listens in a directory and has not sent any devices.
    pub(crate) fn listen(directory: &Path, name: &str) -> FakePlugin {
        let socket = directory.join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let service = Service {
            devices: watch::Sender::new(None),
            answers: watch::Sender::new(true),
            behaviour: Arc::new(Mutex::new(Behaviour {
                options: DevicePluginOptions::default(),
                allocates: Arc::new(|devices| Some(response(devices))),
                calls: Vec::new(),
            })),
            gone: CancellationToken::new(),
        };
        let (serving, gone) = (service.clone(), service.gone.clone());
        tokio::spawn(gone.run_until_cancelled_owned(async move {
            let incoming = UnixListenerStream::new(listener);
            let server =
                Server::builder().serve_with_incoming(DevicePluginServer::new(serving), incoming);
            server.await.unwrap();
        }));
        FakePlugin { service, socket }
    }

    /// Sends healthy devices with these ids.
    pub(crate) fn send(&self, ids: &[&str]) {
        self.send_devices(ids.iter().map(|id| device(id)).collect());
    }

    pub(crate) fn send_devices(&self, devices: Vec<Device>) {
        self.service.devices.send_replace(Some(devices));
    }

    /// Whether it responds to GetDevicePluginOptions and Allocate.
    pub(crate) fn answer(&self, answers: bool) {
        self.service.answers.send_replace(answers);
    }

    pub(crate) fn options(&self, options: DevicePluginOptions) {
        self.service.behaviour.lock().unwrap().options = options;
    }

    pub(crate) fn allocates(&self, allocates: Allocates) {
        self.service.behaviour.lock().unwrap().allocates = allocates;
    }

    /// The devices of each call of Allocate.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        self.service.behaviour.lock().unwrap().calls.clone()
    }

    /// Ends its streams, as the end of its process does.
    pub(crate) fn end_streams(&self) {
        self.service.gone.cancel();
    }

    /// Registers with the kubelet that listens in the directory of the plugin's socket.
    pub(crate) async fn register(&self, resource: &str, version: &str) -> Result<(), Status> {
        let kubelet = self.socket.with_file_name("kubelet.sock");
        let mut client = RegistrationClient::new(dial(&kubelet).await);
        let endpoint = self.socket.file_name().unwrap();
        let request = RegisterRequest {
            version: version.into(),
            endpoint: endpoint.to_str().unwrap().into(),
            resource_name: resource.into(),
            options: None,
        };
        client.register(request).await.map(|_| ())
    }
}

/// What a well-behaved plugin answers: everything that a container can get of it.
pub(crate) fn response(devices: &[String]) -> ContainerAllocateResponse {
    ContainerAllocateResponse {
        envs: [("DEVICES".to_owned(), devices.join(","))].into(),
        ..ContainerAllocateResponse::default()
    }
}

/// Connects to a gRPC server on a Unix socket, once there is one.
pub(crate) async fn dial(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = socket.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    for _ in 0..500 {
        if let Ok(channel) = endpoint.connect_with_connector(connector.clone()).await {
            return channel;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("nobody listens");
}

impl Service {
    async fn answering(&self) {
        let mut answers = self.answers.subscribe();
        let _ = answers.wait_for(|answers| *answers).await;
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.answering().await;
        Ok(Response::new(self.behaviour.lock().unwrap().options))
    }

    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut devices = self.devices.subscribe();
        devices.mark_changed();
        let lists = futures::stream::unfold(devices, |mut devices| async move {
            loop {
                devices.changed().await.ok()?;
                let list = devices.borrow_and_update().clone();
                if let Some(devices_now) = list {
                    let list = ListAndWatchResponse { devices: devices_now };
                    return Some((Ok(list), devices));
                }
            }
        });
        let gone = self.gone.clone();
        Ok(Response::new(lists.take_until(async move { gone.cancelled().await }).boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        // The last ones: the kubelet by itself takes the first.
        let requests = request.into_inner().container_requests.into_iter();
        let chosen = requests.map(|request| {
            let size = usize::try_from(request.allocation_size).unwrap();
            let all = request.available_device_i_ds.into_iter().rev();
            ContainerPreferredAllocationResponse { device_i_ds: all.take(size).collect() }
        });
        Ok(Response::new(PreferredAllocationResponse { container_responses: chosen.collect() }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut responses = Vec::new();
        for request in request.into_inner().container_requests {
            let allocates = {
                let mut behaviour = self.behaviour.lock().unwrap();
                behaviour.calls.push(request.devices_ids.clone());
                behaviour.allocates.clone()
            };
            match allocates(&request.devices_ids) {
                Some(response) => responses.push(response),
                None => std::future::pending().await,
            }
        }
        self.answering().await;
        Ok(Response::new(AllocateResponse { container_responses: responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
