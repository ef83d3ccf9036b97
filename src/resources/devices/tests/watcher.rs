//! Plugins that are found by their sockets.

use super::{GPU, World, plugin::FakePlugin, until};
use crate::resources::plugin_manager::{
    self, PluginHandlers,
    registration_proto::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
};
use parking_lot::Mutex;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::UnixListener, time::sleep};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status, transport::Server};

#[derive(Clone)]
struct Registrar {
    info: PluginInfo,
    infos: Arc<Mutex<usize>>,
    results: Arc<Mutex<Vec<RegistrationStatus>>>,
}

impl Registrar {
    fn listen(socket: &Path, kind: &str, name: &str, endpoint: &Path) -> Registrar {
        let registrar = Registrar {
            info: PluginInfo {
                r#type: kind.into(),
                name: name.into(),
                endpoint: endpoint.to_str().unwrap().into(),
                supported_versions: vec!["v1beta1".into()],
            },
            infos: Arc::default(),
            results: Arc::default(),
        };
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let service = RegistrationServer::new(registrar.clone());
        tokio::spawn(Server::builder().serve_with_incoming(service, incoming));
        registrar
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        *self.infos.lock() += 1;
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.results.lock().push(request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

fn watch(world: &World) -> (PathBuf, DropGuard) {
    let directory = world.root.path().join("plugins_registry");
    std::fs::create_dir(&directory).unwrap();
    let stop = CancellationToken::new();
    let mut handlers = PluginHandlers::new();
    handlers.insert("DevicePlugin", Arc::new(world.manager.clone()));
    let watching = plugin_manager::run(handlers, directory.clone(), stop.clone());
    tokio::spawn(watching);
    (directory, stop.drop_guard())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_types_that_are_not_served_yet_are_left_unanswered() {
    let world = World::start().await;
    let (directory, _stop) = watch(&world);
    let socket = directory.join("csi.sock");
    let registrar = Registrar::listen(&socket, "CSIPlugin", "driver.example", &socket);
    until("it is called for what it is", || {
        *registrar.infos.lock() > 0
    })
    .await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(*registrar.results.lock(), []);
    assert_eq!(*registrar.infos.lock(), 1, "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_is_registered_by_its_socket_or_a_link_to_it_until_that_is_gone() {
    let world = World::start().await;
    let plugin = FakePlugin::listen(world.root.path(), "gpu.sock");
    plugin.send(&["a"]);
    let elsewhere = world.root.path().join("registration.sock");
    let registrar = Registrar::listen(&elsewhere, "DevicePlugin", GPU, &plugin.socket);
    let (directory, _stop) = watch(&world);
    let link = directory.join("link.sock");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    world.until_amount(GPU, 1, 1).await;
    until("it knows", || registrar.results.lock().len() == 1).await;
    assert!(registrar.results.lock()[0].plugin_registered);
    std::fs::remove_file(&link).unwrap();
    world.until_amount(GPU, 1, 0).await;
}
