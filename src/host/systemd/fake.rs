//! A fake systemd and logind on their own bus; units are kept in memory.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::PipeReader;
use std::path::PathBuf;
use std::sync::Arc;
use zbus::object_server::SignalEmitter;
use zbus::{Guid, ObjectPath, OwnedVariant, connection, fdo, interface};

const LOGIN: &str = "/org/freedesktop/login1";

type Properties = Vec<(String, OwnedVariant)>;

/// The fake's state: the calls that it received, and its responses.
#[derive(Debug, Default)]
pub(crate) struct FakeState {
    /// Calls, with the unit and the properties as text.
    pub(crate) calls: Vec<String>,
    /// The existing units, with their properties.
    pub(crate) units: BTreeMap<String, BTreeMap<String, String>>,
    /// The result of the next job; `None` for `done`.
    pub(crate) result: Option<&'static str>,
    /// How many of the next jobs never end.
    pub(crate) silent: u32,
    jobs: u32,
    /// logind's `InhibitDelayMaxUSec`, in microseconds.
    pub(crate) inhibit_delay: u64,
    /// The file from which a reload reads that delay.
    pub(crate) logind_config: Option<PathBuf>,
    /// Whether the machine is shutting down.
    pub(crate) preparing: bool,
    /// The other ends of inhibitor locks.
    pub(crate) locks: Vec<PipeReader>,
}

/// The fake service; stopped when dropped.
pub(crate) struct FakeSystemd {
    pub(crate) state: Arc<Mutex<FakeState>>,
    pub(crate) address: String,
    connections: Arc<Mutex<Vec<zbus::Connection>>>,
    _directory: tempfile::TempDir,
}

impl FakeSystemd {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bus");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let state = Arc::new(Mutex::new(FakeState::default()));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (shared, kept) = (state.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let manager = Manager(shared.clone());
                let served = connection::Builder::unix_stream(stream.into_std().unwrap())
                    .server(Guid::generate())
                    .p2p()
                    .serve_at("/org/freedesktop/systemd1", manager)
                    .serve_at(LOGIN, Login(shared.clone()))
                    .build();
                if let Ok(connection) = served.await {
                    kept.lock().push(connection);
                }
            }
        });
        let address = format!("unix:path={}", path.display());
        Self { state, address, connections, _directory: directory }
    }

    /// Sends the `PrepareForShutdown` signal.
    pub(crate) async fn prepare_for_shutdown(&self, begins: bool) {
        self.state.lock().preparing = begins;
        let connections = self.connections.lock().clone();
        for connection in connections {
            let login = connection.object_server().interface::<_, Login>(LOGIN);
            let login = login.await.unwrap();
            let emitter = login.signal_emitter();
            // An error means that the client has disconnected.
            let _ = Login::prepare_for_shutdown(emitter, begins).await;
        }
    }

    /// Closes all connections.
    pub(crate) async fn disconnect(&self) {
        let connections = std::mem::take(&mut *self.connections.lock());
        for connection in connections {
            connection.close().await.unwrap();
        }
    }
}

struct Manager(Arc<Mutex<FakeState>>);

fn shown(properties: &Properties) -> Vec<(String, String)> {
    let pairs = properties.iter();
    pairs.map(|(name, value)| (name.clone(), format!("{:?}", **value))).collect()
}

impl Manager {
    /// A job that ends immediately: its signal is sent before the response with its path.
    async fn job(&self, emitter: &SignalEmitter<'_>, unit: &str) -> ObjectPath<'static> {
        let (number, result) = {
            let mut state = self.0.lock();
            state.jobs += 1;
            let silent = state.silent > 0;
            state.silent = state.silent.saturating_sub(1);
            let result = state.result.take().unwrap_or("done");
            (state.jobs, (!silent).then_some(result))
        };
        let path = ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{number}")).unwrap();
        if let Some(result) = result {
            let emitted = Self::job_removed(emitter, number, path.clone(), unit, result);
            emitted.await.unwrap();
        }
        path
    }
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn subscribe(&self) {}

    #[zbus(property)]
    fn version(&self) -> String {
        "252.39-1~deb12u1".to_owned()
    }

    async fn start_transient_unit(
        &self,
        name: String,
        mode: String,
        properties: Properties,
        _aux: Vec<(String, Properties)>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<ObjectPath<'static>, Error> {
        {
            let mut state = self.0.lock();
            state.calls.push(format!("start {name} {mode}"));
            if state.units.contains_key(&name) {
                return Err(Error::UnitExists(format!("Unit {name} was already loaded.")));
            }
            let properties = shown(&properties).into_iter().collect();
            state.units.insert(name.clone(), properties);
        }
        Ok(self.job(&emitter, &name).await)
    }

    async fn stop_unit(
        &self,
        name: String,
        mode: String,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<ObjectPath<'static>, Error> {
        {
            let mut state = self.0.lock();
            state.calls.push(format!("stop {name} {mode}"));
            if state.units.remove(&name).is_none() {
                return Err(Error::NoSuchUnit(format!("Unit {name} not loaded.")));
            }
        }
        Ok(self.job(&emitter, &name).await)
    }

    fn set_unit_properties(
        &self,
        name: String,
        runtime: bool,
        properties: Properties,
    ) -> Result<(), Error> {
        let mut state = self.0.lock();
        let until = if runtime { "runtime" } else { "for good" };
        let texts = shown(&properties);
        let pairs: Vec<_> = texts.iter().map(|(name, value)| format!("{name}={value}")).collect();
        state.calls.push(format!("set {name} {until} {}", pairs.join(" ")));
        let Some(unit) = state.units.get_mut(&name) else {
            return Err(Error::NoSuchUnit(format!("Unit {name} not found.")));
        };
        unit.extend(texts);
        Ok(())
    }

    fn kill_unit(&self, name: String, whom: String, signal: i32) {
        let mut state = self.0.lock();
        state.calls.push(format!("kill {name} {whom} {signal}"));
        let file = state.logind_config.as_ref().map(|dir| dir.join("99-kubelet.conf"));
        let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let seconds = text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec="));
        if let Some(seconds) = seconds {
            state.inhibit_delay = seconds.parse::<u64>().unwrap() * 1_000_000;
        }
    }

    fn reset_failed_unit(&self, name: String) -> fdo::Result<()> {
        Err(fdo::Error::Failed(format!("Unit {name} not loaded.")))
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

struct Login(Arc<Mutex<FakeState>>);

#[interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        self.0.lock().inhibit_delay
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        self.0.lock().preparing
    }

    fn inhibit(
        &self,
        what: String,
        who: String,
        _why: String,
        mode: String,
    ) -> fdo::Result<zbus::OwnedFd> {
        let (ours, theirs) = std::io::pipe().unwrap();
        let mut state = self.0.lock();
        if state.preparing {
            let text = "The operation inhibition has been requested for is already running";
            return Err(fdo::Error::Failed(text.to_owned()));
        }
        state.calls.push(format!("inhibit {what} {who} {mode}"));
        state.locks.push(ours);
        Ok(std::os::fd::OwnedFd::from(theirs).into())
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Error {
    UnitExists(String),
    NoSuchUnit(String),
}
