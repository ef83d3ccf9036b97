//! A server on a Unix socket in a runtime of its own, so that its connections end with it.

use super::proto::controller_server::ControllerServer;
use super::proto::identity_server::IdentityServer;
use super::proto::node_server::NodeServer;
use super::{DriverService, FakeRegistrar, connections};
use std::path::Path;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::transport::Server;
use tower::Service as _;

/// Serves until it is dropped; the socket stays then, as after a crash.
pub(super) struct SocketServer(Option<Runtime>);

impl Drop for SocketServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl SocketServer {
    /// Serves the driver, and its registrar if there is one. A socket that was left is replaced.
    pub(super) fn serve(
        socket: &Path,
        service: DriverService,
        registrar: Option<FakeRegistrar>,
    ) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(socket);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        let dispatch = tower::service_fn(move |request: http::Request<Body>| {
            let (service, registrar) = (service.clone(), registrar.clone());
            async move {
                let path = request.uri().path();
                if path.starts_with("/csi.v1.Node/") {
                    NodeServer::new(service).call(request).await
                } else if path.starts_with("/csi.v1.Controller/") {
                    ControllerServer::new(service).call(request).await
                } else if let Some(registrar) =
                    registrar.filter(|_| path.starts_with("/pluginregistration."))
                {
                    registrar.server().call(request).await
                } else {
                    IdentityServer::new(service).call(request).await
                }
            }
        });
        // The Go kubelet sends the socket's path as `:authority`.
        let incoming = connections("csi driver", listener);
        runtime.spawn(Server::builder().serve_with_incoming(dispatch, incoming));
        Self(Some(runtime))
    }
}
