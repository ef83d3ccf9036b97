//! A CSI driver: real gRPC servers on Unix sockets, with Identity, Controller and Node service and a registrar. It is
//! strict, keeps a journal of its calls, and lies on demand.
//!
//! Its volumes are directories, or file systems of their size ([`Mounts::Tmpfs`]). With [`Mounts::Bind`], which needs
//! root, they are bind-mounted to the staging path and from there to the target path, and may be devices (`disks`); with
//! [`Mounts::None`] only the target directories are made.

mod controller;
pub(crate) mod disks;
mod journal;
mod kept;
mod node;
mod script;
mod server;
mod volumes;

use super::registrar::FakeRegistrar;
use super::registration_proto::RegistrationStatus;
use super::{connections, proto};
use server::SocketServer;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tonic::{Code, Response, Status};

pub(crate) use journal::{Journal, JournalEntry};
pub(crate) use script::{Behaviour, Script};
pub(crate) use volumes::{DriverVolume, DriverVolumes, Mounts};

/// What the driver is and can do.
#[derive(Clone)]
pub(crate) struct DriverConfig {
    pub(crate) name: String,
    pub(crate) node_id: String,
    pub(crate) versions: Vec<String>,
    /// For its socket and its volumes.
    pub(crate) base: PathBuf,
    /// The kubelet's path of `base`, if it is another one.
    pub(crate) known_as: Option<PathBuf>,
    /// The directory of registration sockets; without one the driver is not registered.
    pub(crate) registry: Option<PathBuf>,
    /// Whether the registration socket serves the driver as well.
    pub(crate) is_one_socket: bool,
    pub(crate) mounts: Mounts,
    /// Whether a driver of another process finds the volumes as this one left them, and the journal goes on: both are
    /// files in `base` then.
    pub(crate) is_kept: bool,
    pub(crate) stage_unstage: bool,
    pub(crate) volume_mount_group: bool,
    pub(crate) single_node_multi_writer: bool,
    pub(crate) volume_stats: bool,
    pub(crate) expand: bool,
    /// Whether statistics have the condition of the volume.
    pub(crate) volume_condition: bool,
    /// Whether volumes have to be attached by the controller.
    pub(crate) attach: bool,
    pub(crate) max_volumes: i64,
    pub(crate) topology: BTreeMap<String, String>,
}

impl DriverConfig {
    /// A driver that stages volumes, without registration and mounts.
    pub(crate) fn new(name: &str, base: &Path) -> Self {
        Self {
            name: name.into(),
            node_id: "node-1".into(),
            versions: vec!["1.0.0".into()],
            base: base.into(),
            known_as: None,
            registry: None,
            is_one_socket: false,
            mounts: Mounts::None,
            is_kept: false,
            stage_unstage: true,
            volume_mount_group: false,
            single_node_multi_writer: false,
            volume_stats: false,
            expand: false,
            volume_condition: false,
            attach: false,
            max_volumes: 0,
            topology: BTreeMap::new(),
        }
    }

    /// The driver's own socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.base.join("csi.sock")
    }

    /// Where the journal is written to, if it is kept.
    pub(crate) fn journal(&self) -> PathBuf {
        self.base.join("journal")
    }

    fn registration_socket(&self) -> Option<PathBuf> {
        let registry = self.registry.as_ref()?;
        Some(registry.join(format!("{}-reg.sock", self.name)))
    }

    fn endpoint(&self) -> PathBuf {
        match self.registration_socket() {
            // An empty endpoint is the registration socket.
            Some(_) if self.is_one_socket => PathBuf::new(),
            _ => self.known_as.as_ref().unwrap_or(&self.base).join("csi.sock"),
        }
    }
}

/// The driver with what outlives its processes.
pub(crate) struct CsiDriver {
    config: DriverConfig,
    pub(crate) journal: Journal,
    pub(crate) script: Script,
    pub(crate) volumes: DriverVolumes,
    registrar: FakeRegistrar,
    driver: Option<SocketServer>,
    registration: Option<SocketServer>,
}

impl CsiDriver {
    /// Starts the driver and its registrar.
    pub(crate) fn start(config: DriverConfig) -> Self {
        let journal =
            if config.is_kept { Journal::kept_in(&config.journal()) } else { Journal::default() };
        let mut driver = Self {
            journal,
            script: Script::default(),
            volumes: DriverVolumes::new(&config),
            registrar: registrar(&config),
            config,
            driver: None,
            registration: None,
        };
        driver.serve_driver();
        driver.serve_registration();
        driver
    }

    pub(crate) fn config(&self) -> &DriverConfig {
        &self.config
    }

    /// Adds a volume with this handle, as if it had been created by the controller.
    pub(crate) fn add_volume(&self, handle: &str) {
        self.volumes.create(handle, 1 << 30, false);
    }

    /// Kills the driver; its socket and its registrar stay.
    pub(crate) fn kill(&mut self) {
        self.driver = None;
    }

    /// Kills the driver and starts it again on the same socket, changed. Work in progress is lost.
    pub(crate) fn restart(&mut self, change: impl FnOnce(&mut DriverConfig)) {
        self.kill();
        change(&mut self.config);
        self.serve_driver();
    }

    /// Removes the registration socket, as a registrar does that ends.
    pub(crate) fn deregister(&mut self) {
        self.registration = None;
        if let Some(socket) = self.config.registration_socket() {
            let _ = std::fs::remove_file(socket);
        }
    }

    /// Starts a new registrar, with a new socket.
    pub(crate) fn register(&mut self) {
        self.deregister();
        self.registrar = registrar(&self.config);
        self.serve_registration();
    }

    /// Waits until the kubelet reports the result of the registration.
    pub(crate) async fn registered(&self) -> RegistrationStatus {
        self.registrar.registered().await
    }

    fn serve_driver(&mut self) {
        let socket = self.config.socket();
        self.driver = Some(SocketServer::serve(&socket, self.service(), None));
    }

    fn serve_registration(&mut self) {
        let Some(socket) = self.config.registration_socket() else {
            return;
        };
        let registrar = Some(self.registrar.clone());
        let server = SocketServer::serve(&socket, self.service(), registrar);
        self.registration = Some(server);
    }

    fn service(&self) -> DriverService {
        DriverService {
            config: Arc::new(self.config.clone()),
            journal: self.journal.clone(),
            script: self.script.clone(),
            volumes: self.volumes.clone(),
            busy: Arc::default(),
        }
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        self.kill();
        self.deregister();
        let _ = std::fs::remove_file(self.config.socket());
        if !self.config.is_kept {
            // Of a test that failed.
            disks::detach_below(&self.config.base);
        }
    }
}

fn registrar(config: &DriverConfig) -> FakeRegistrar {
    let versions: Vec<_> = config.versions.iter().map(String::as_str).collect();
    FakeRegistrar::new("CSIPlugin", &config.name, &config.endpoint(), &versions)
}

/// The three services of one process.
#[derive(Clone)]
struct DriverService {
    config: Arc<DriverConfig>,
    journal: Journal,
    script: Script,
    volumes: DriverVolumes,
    /// The volumes with an operation in progress.
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// Marks a volume as busy.
struct BusyGuard(Arc<Mutex<BTreeSet<String>>>, String);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

impl DriverService {
    /// Carries out a call as the script says. It goes on without its caller, as in most drivers.
    async fn run<T: Default + Send + 'static>(
        &self,
        entry: JournalEntry,
        work: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let service = self.clone();
        let running = tokio::spawn(async move {
            let (method, volume) = (entry.method, entry.volume.clone());
            // Before the journal shows the call and the work its effect: a release that follows either counts.
            let release = service.script.next_release();
            let number = service.journal.begin(entry);
            let result = service.scripted(method, &volume, release, work).await;
            let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
            service.journal.end(number, code);
            result.map(Response::new)
        });
        let failed = |error| Err(Status::internal(format!("{error}")));
        running.await.unwrap_or_else(failed)
    }

    async fn scripted<T: Default>(
        &self,
        method: &'static str,
        volume: &str,
        release: impl Future<Output = ()>,
        work: impl FnOnce(&Self) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let _busy = self.begin(volume)?;
        match self.script.take(method, volume) {
            Behaviour::Honest => work(self),
            Behaviour::Fail(code, text) => Err(Status::new(code, text)),
            Behaviour::Delay(delay) => {
                tokio::time::sleep(delay).await;
                work(self)
            }
            Behaviour::Hang => {
                release.await;
                work(self)
            }
            Behaviour::HangThenFail(code, text) => {
                release.await;
                Err(Status::new(code, text))
            }
            Behaviour::Skip => Ok(T::default()),
            Behaviour::DoThenFail(code, text) => {
                work(self)?;
                Err(Status::new(code, text))
            }
            Behaviour::DoThenHang => {
                let done = work(self);
                release.await;
                done
            }
        }
    }

    fn begin(&self, volume: &str) -> Result<Option<BusyGuard>, Status> {
        if volume.is_empty() {
            return Ok(None);
        }
        if !self.busy.lock().unwrap().insert(volume.to_owned()) {
            let text = format!("an operation of volume {volume} is in progress");
            return Err(Status::aborted(text));
        }
        Ok(Some(BusyGuard(self.busy.clone(), volume.to_owned())))
    }

    /// An error of a call that the specification forbids. It is kept as a violation.
    fn violation(&self, text: String) -> Status {
        self.journal.violation(text.clone());
        Status::failed_precondition(text)
    }
}

/// An error if a required field is empty.
fn required(field: &str, value: &str) -> Result<(), Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is empty")));
    }
    Ok(())
}
