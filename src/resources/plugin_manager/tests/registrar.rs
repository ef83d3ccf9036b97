//! The registration service of a plugin that the kubelet finds by its socket.

use super::connections;
use super::registration_proto::registration_server::{Registration, RegistrationServer};
use super::registration_proto::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Within which the kubelet registers the plugin.
const LIMIT: Duration = Duration::from_secs(90);

/// Describes a plugin, and keeps what the kubelet reports of its registration.
#[derive(Clone)]
pub(crate) struct FakeRegistrar {
    info: PluginInfo,
    infos: watch::Sender<usize>,
    statuses: watch::Sender<Vec<RegistrationStatus>>,
    silent: bool,
}

impl FakeRegistrar {
    pub(crate) fn new(kind: &str, name: &str, endpoint: &Path, versions: &[&str]) -> Self {
        Self {
            info: PluginInfo {
                r#type: kind.into(),
                name: name.into(),
                endpoint: endpoint.to_str().unwrap().into(),
                supported_versions: versions.iter().map(|one| (*one).to_owned()).collect(),
            },
            infos: watch::Sender::default(),
            statuses: watch::Sender::default(),
            silent: false,
        }
    }

    /// Receives statuses, and never responds to them.
    pub(crate) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    /// Serves nothing but registrations.
    pub(crate) fn listen(self, socket: &Path) -> Self {
        // The Go kubelet sends the socket's path as `:authority`.
        let incoming = connections("registrar", UnixListener::bind(socket).unwrap());
        tokio::spawn(Server::builder().serve_with_incoming(self.server(), incoming));
        self
    }

    /// The service, for a server that has others as well.
    pub(crate) fn server(&self) -> RegistrationServer<Self> {
        RegistrationServer::new(self.clone())
    }

    /// How often the kubelet has asked what the plugin is.
    pub(crate) fn infos(&self) -> usize {
        *self.infos.borrow()
    }

    /// All statuses that the kubelet has reported.
    pub(crate) fn statuses(&self) -> Vec<RegistrationStatus> {
        self.statuses.borrow().clone()
    }

    /// Waits until the kubelet reports a status; the newest one.
    pub(crate) async fn registered(&self) -> RegistrationStatus {
        let mut statuses = self.statuses.subscribe();
        let reported = timeout(LIMIT, statuses.wait_for(|all| !all.is_empty())).await;
        let reported = reported.expect("a registration in time").unwrap();
        reported.last().unwrap().clone()
    }
}

#[tonic::async_trait]
impl Registration for FakeRegistrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.infos.send_modify(|infos| *infos += 1);
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.statuses.send_modify(|all| all.push(status));
        if self.silent {
            return std::future::pending().await;
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
