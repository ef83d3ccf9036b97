//! A driver of claims: a real gRPC server on a Unix socket, in a runtime of its own, so that its connections end with
//! it.

use super::health_proto::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use super::health_proto::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
};
use super::proto::dra_plugin_server::{DraPlugin, DraPluginServer};
use super::proto::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use super::registrar::FakeRegistrar;
use super::registration_proto::RegistrationStatus;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::Service as _;

/// The service that drivers of v1.36 have.
pub(crate) const V1: &str = "v1.DRAPlugin";

/// The devices that the driver prepares for a claim, or why it does not.
pub(crate) type Prepares = Arc<dyn Fn(&Claim) -> Result<Vec<Device>, String> + Send + Sync>;

#[derive(Clone)]
struct Service {
    registrar: FakeRegistrar,
    prepares: Arc<Mutex<Prepares>>,
    unprepares: Arc<Mutex<Result<(), String>>>,
    /// Calls in order: `prepare NAME` and `unprepare NAME`.
    calls: Arc<Mutex<Vec<String>>>,
    health: watch::Sender<Option<Vec<DeviceHealth>>>,
}

/// A driver that serves until it is dropped.
pub(crate) struct FakeDriver {
    service: Service,
    pub(crate) socket: PathBuf,
    runtime: Option<Runtime>,
}

impl Drop for FakeDriver {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A device of the pool `pool` that the runtime knows as `example.com/dra=NAME`, for all requests of a claim.
pub(crate) fn device(name: &str) -> Device {
    Device {
        request_names: Vec::new(),
        pool_name: "pool".into(),
        device_name: name.into(),
        cdi_device_ids: vec![format!("example.com/dra={name}")],
        share_id: None,
    }
}

impl FakeDriver {
    /// Serves at a socket of this directory, where the kubelet finds it.
    pub(crate) fn listen(directory: &Path, name: &str, versions: &[&str]) -> Self {
        Self::listen_as(directory, directory, name, versions)
    }

    /// The same for a kubelet that knows the directory by another path.
    pub(crate) fn listen_as(
        directory: &Path,
        known_as: &Path,
        name: &str,
        versions: &[&str],
    ) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let file = format!("{name}-reg.sock");
        let (socket, endpoint) = (directory.join(&file), known_as.join(&file));
        let prepares: Prepares = Arc::new(|claim| Ok(vec![device(&claim.name)]));
        let service = Service {
            registrar: FakeRegistrar::new("DRAPlugin", name, &endpoint, versions),
            prepares: Arc::new(Mutex::new(prepares)),
            unprepares: Arc::new(Mutex::new(Ok(()))),
            calls: Arc::default(),
            health: watch::Sender::new(None),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        let of_all = service.clone();
        let dispatch = tower::service_fn(move |request: http::Request<Body>| {
            let service = of_all.clone();
            async move {
                match request.uri().path() {
                    path if path.contains("Registration/") => {
                        service.registrar.server().call(request).await
                    }
                    path if path.contains("Health/") => {
                        DraResourceHealthServer::new(service).call(request).await
                    }
                    _ => DraPluginServer::new(service).call(request).await,
                }
            }
        });
        let incoming = UnixListenerStream::new(listener);
        runtime.spawn(Server::builder().serve_with_incoming(dispatch, incoming));
        Self { service, socket, runtime: Some(runtime) }
    }

    pub(crate) fn prepares(&self, prepares: Prepares) {
        *self.service.prepares.lock().unwrap() = prepares;
    }

    pub(crate) fn unprepares(&self, result: Result<(), String>) {
        *self.service.unprepares.lock().unwrap() = result;
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.service.calls.lock().unwrap().clone()
    }

    /// Reports the health of devices, and `text` with it.
    pub(crate) fn reports(&self, devices: &[(&str, HealthStatus)], text: &str) {
        let devices = devices.iter().map(|(name, health)| DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: "pool".into(),
                device_name: (*name).into(),
            }),
            health: (*health).into(),
            last_updated_time: 0,
            health_check_timeout_seconds: 600,
            message: text.into(),
        });
        self.service.health.send_replace(Some(devices.collect()));
    }

    /// Waits until the kubelet reports the result of the registration.
    pub(crate) async fn registered(&self) -> RegistrationStatus {
        self.service.registrar.registered().await
    }
}

impl Service {
    fn note(&self, call: &str, claims: &[Claim]) {
        let mut calls = self.calls.lock().unwrap();
        calls.extend(claims.iter().map(|claim| format!("{call} {}", claim.name)));
    }
}

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("prepare", &claims);
        let prepares = self.prepares.lock().unwrap().clone();
        let prepared = claims.iter().map(|claim| {
            let (devices, error) = match prepares(claim) {
                Ok(devices) => (devices, String::new()),
                Err(error) => (Vec::new(), error),
            };
            let response = NodePrepareResourceResponse { devices, error };
            (claim.uid.clone(), response)
        });
        let claims: HashMap<_, _> = prepared.collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("unprepare", &claims);
        let error = self.unprepares.lock().unwrap().clone();
        let error = error.err().unwrap_or_default();
        let results = claims.into_iter().map(|claim| {
            let error = error.clone();
            (claim.uid, NodeUnprepareResourceResponse { error })
        });
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: results.collect() }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Service {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut health = self.health.subscribe();
        health.mark_changed();
        let reports = stream::unfold(health, |mut health| async {
            health.changed().await.ok()?;
            let devices = health.borrow_and_update().clone();
            let report = NodeWatchResourcesResponse { devices: devices.unwrap_or_default() };
            Some((Ok(report), health))
        });
        Ok(Response::new(reports.boxed()))
    }
}
