//! The `Registration` service of device plugins.

use super::manager::DeviceManager;
use super::plugins::{check_request, socket_of};
use super::proto::registration_server::{Registration, RegistrationServer};
use super::proto::{Empty, RegisterRequest};
use crate::base::{connections, if_exists, spawn_blocking};
use crate::host::unix_socket::{SocketFile, listen_in};
use anyhow::Context as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Name of the socket, as upstream's.
const SOCKET: &str = "kubelet.sock";
/// Maximum number of concurrent registrations.
const MAX_CONCURRENT: usize = 16;

impl DeviceManager {
    /// Serves registrations until shutdown. If the socket cannot be created, an error is logged, and no plugin can
    /// register here.
    ///
    /// # Errors
    /// The gRPC server fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let _stop = self.0.stop.clone().drop_guard();
        let directory = self.0.directory.clone();
        let bound = spawn_blocking(move || bind(&directory)).await?;
        let socket = match bound {
            Ok((listener, socket_file)) => {
                let listener = UnixListener::from_std(listener)?;
                Some((connections("device plugin registry", listener), socket_file))
            }
            Err(error) => {
                tracing::error!(
                    err = format!("{error:#}"),
                    "Failed to listen to socket while starting device plugin registry"
                );
                None
            }
        };
        let serving = async {
            let Some((incoming, _socket_file)) = socket else {
                return std::future::pending().await;
            };
            let service = RegistrationService {
                manager: self.clone(),
                permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            };
            let service = RegistrationServer::new(service);
            Server::builder().serve_with_incoming(service, incoming).await
        };
        tokio::select! {
            served = serving => served.context("device plugin registration server"),
            () = self.run_housekeeping() => Ok(()),
            () = shutdown.cancelled() => Ok(()),
        }
    }
}

/// Creates the socket, and removes those of plugins, which watch for that and register again.
fn bind(directory: &Path) -> anyhow::Result<(std::os::unix::net::UnixListener, SocketFile)> {
    remove_sockets(directory)
        .with_context(|| format!("cannot clean up {}", directory.display()))?;
    listen_in(&directory.join(SOCKET))
}

fn remove_sockets(directory: &Path) -> io::Result<()> {
    for entry in if_exists(fs::read_dir(directory))?.into_iter().flatten() {
        let path = entry?.path();
        // `metadata` follows symbolic links.
        let is_socket = match fs::metadata(&path) {
            Ok(meta) => meta.file_type().is_socket(),
            Err(error) => {
                tracing::error!(path = %path.display(), err = %error, "Failed to stat file");
                false
            }
        };
        if is_socket {
            if_exists(fs::remove_file(&path))?;
        }
    }
    Ok(())
}

struct RegistrationService {
    manager: DeviceManager,
    permits: Arc<Semaphore>,
}

impl RegistrationService {
    async fn accept(&self, request: &RegisterRequest) -> Result<(), String> {
        let resource = &request.resource_name;
        self.manager.0.metrics.registered(resource);
        check_request(&request.version, resource)?;
        let socket = socket_of(&self.manager.0.directory, &request.endpoint)?;
        let permit = self.permits.try_acquire();
        let _permit = permit.map_err(|_| "too many registrations are in progress".to_owned())?;
        if !self.manager.state().has_room_for(resource) {
            return Err("too many resources have been registered".into());
        }
        self.manager.connect(resource, &socket).await?;
        Ok(())
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        tracing::info!(
            resourceName = request.resource_name,
            "Got registration request from device plugin with resource"
        );
        match self.accept(&request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::error!(
                    resourceName = request.resource_name,
                    err = error,
                    "Bad registration request from device plugin with resource"
                );
                Err(Status::unknown(error))
            }
        }
    }
}
