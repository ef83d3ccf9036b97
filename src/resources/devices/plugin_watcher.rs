//! Plugins that are found by their sockets (upstream's `pkg/kubelet/pluginmanager`). Of their types, only device
//! plugins are served.
//!
//! An event of the directory only triggers a scan of it; a socket that was made again is another one.

use super::{
    client::{dial, within},
    manager::DeviceManager,
    plugins::check_found,
    registration_proto::{
        InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
    },
    state::PluginId,
};
use crate::base::panics::{Place, contain};
use anyhow::Context as _;
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask, Watches};
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// The type of device plugins.
const DEVICE_PLUGIN: &str = "DevicePlugin";
/// Types that upstream serves and this kubelet does not yet.
const NOT_SERVED: [&str; 2] = ["CSIPlugin", "DRAPlugin"];
/// How long a plugin may take to say what it is, and to take the result.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before the next try doubles from the first to the second.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);
/// The longest time between two scans.
const RESCAN: Duration = Duration::from_secs(60);
/// Directories below each other, and sockets in all of them, that are scanned.
const MAX_DEPTH: usize = 8;
const MAX_SOCKETS: usize = 1000;

/// Tells a socket from another one of its path: device, inode and time of its last change.
type Identity = (u64, u64, i64, i64);

struct Socket {
    identity: Identity,
    /// The task of the plugin ends by itself once the plugin does not count any more.
    gone: CancellationToken,
}

/// Registers plugins whose sockets appear below the directory, until shutdown.
pub async fn run(
    manager: DeviceManager,
    directory: PathBuf,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        () = shutdown.cancelled() => {}
        watched = watch(&manager, &directory) => {
            if let Err(error) = watched {
                tracing::error!(path = %directory.display(), err = %format!("{error:#}"), "Failed to watch for plugins");
                shutdown.cancelled().await;
            }
        }
    }
    Ok(())
}

async fn watch(manager: &DeviceManager, directory: &Path) -> anyhow::Result<()> {
    let make = directory.to_owned();
    let made = move || {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(make)
    };
    tokio::task::spawn_blocking(made)
        .await?
        .context("cannot create it")?;
    let inotify = Inotify::init().context("inotify")?;
    let watches = inotify.watches();
    let mut events = inotify.into_event_stream([0; 4096]).context("inotify")?;
    let mut known = HashMap::<PathBuf, Socket>::new();
    loop {
        let (root, mut watches) = (directory.to_owned(), watches.clone());
        let scanning = move || {
            let mut found = BTreeMap::new();
            scan(&root, MAX_DEPTH, &mut watches, &mut found).map(|()| found)
        };
        match tokio::task::spawn_blocking(scanning).await? {
            Ok(found) => compare(manager, &mut known, found),
            Err(error) => {
                tracing::error!(path = %directory.display(), err = %error, "Failed to traverse plugin socket path");
            }
        }
        tokio::select! {
            event = events.next() => {
                event.context("the events ended")??;
            }
            () = sleep(RESCAN) => {}
        }
    }
}

/// All sockets below a directory. Directories are watched from now on.
fn scan(
    directory: &Path,
    depth: usize,
    watches: &mut Watches,
    found: &mut BTreeMap<PathBuf, Identity>,
) -> io::Result<()> {
    let mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::DELETE_SELF
        | WatchMask::ONLYDIR;
    // Before it is read: what comes later is an event.
    watches.add(directory, mask)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") || found.len() >= MAX_SOCKETS {
            continue;
        }
        // It may be gone again.
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            if depth > 0 {
                let _ = scan(&entry.path(), depth - 1, watches, found);
            }
            continue;
        }
        // Of a link, what it leads to.
        let Ok(meta) = entry.path().metadata() else {
            continue;
        };
        if meta.file_type().is_socket() {
            let identity = (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec());
            found.insert(entry.path(), identity);
        }
    }
    Ok(())
}

fn compare(
    manager: &DeviceManager,
    known: &mut HashMap<PathBuf, Socket>,
    found: BTreeMap<PathBuf, Identity>,
) {
    known.retain(|path, socket| {
        let stays = found.get(path) == Some(&socket.identity);
        if !stays {
            socket.gone.cancel();
        }
        stays
    });
    for (path, identity) in found {
        if known.contains_key(&path) {
            continue;
        }
        let gone = CancellationToken::new();
        let (stop, work) = (
            manager.0.stop.clone(),
            serve(manager.clone(), path.clone(), gone.clone()),
        );
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let _ = contain(Place::Connection, work).await;
        }));
        known.insert(path, Socket { identity, gone });
    }
}

/// Registers the plugin at a socket, until the socket is gone.
async fn serve(manager: DeviceManager, socket: PathBuf, gone: CancellationToken) {
    let registering = async {
        let mut delay = FIRST_DELAY;
        loop {
            match register(&manager, &socket).await {
                Ok(outcome) => return outcome,
                Err(error) => {
                    tracing::error!(path = %socket.display(), err = error, "RegisterPlugin failed");
                    sleep(delay).await;
                    delay = (delay * 2).min(MAX_DELAY);
                }
            }
        }
    };
    let Some(outcome) = gone.run_until_cancelled(registering).await else {
        return;
    };
    gone.cancelled().await;
    let Outcome::Registered(resource, id) = outcome else {
        return;
    };
    tracing::info!(plugin = resource, path = %socket.display(), "Deregistering plugin");
    manager.disconnect(&resource, id).await;
}

/// What became of a plugin.
enum Outcome {
    Registered(String, PluginId),
    /// It waits: a registration that fails makes some plugins end and start again without end.
    Unanswered,
}

/// Registers a plugin and sends it the result; texts as upstream's.
async fn register(manager: &DeviceManager, socket: &Path) -> Result<Outcome, String> {
    let shown = socket.display();
    let channel = dial(socket).await.map_err(|error| {
        format!("RegisterPlugin error -- dial failed at socket {shown}, err: {error}")
    })?;
    let mut client = RegistrationClient::new(channel);
    let info = within(INFO_TIMEOUT, client.get_info(InfoRequest {})).await;
    let info = info.map_err(|error| {
        format!("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {shown}, err: {error}")
    })?;
    if NOT_SERVED.contains(&info.r#type.as_str()) {
        tracing::warn!(path = %shown, plugin = info.name, r#type = info.r#type, "Plugins of this type are not served yet");
        return Ok(Outcome::Unanswered);
    }
    let registered = accept(manager, socket, &info).await;
    let error = registered.as_ref().err().cloned().unwrap_or_default();
    let notified = notify(&mut client, error).await;
    let id = registered?;
    if let Err(error) = notified {
        manager.disconnect(&info.name, id).await;
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {shown}, err: {error}"
        ));
    }
    Ok(Outcome::Registered(info.name, id))
}

async fn accept(
    manager: &DeviceManager,
    socket: &Path,
    info: &PluginInfo,
) -> Result<PluginId, String> {
    if info.r#type != DEVICE_PLUGIN {
        return Err(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}",
            info.r#type,
            socket.display()
        ));
    }
    check_found(&info.supported_versions, &info.name).map_err(|error| {
        format!("RegisterPlugin error -- plugin validation failed with err: {error}")
    })?;
    let endpoint = match info.endpoint.as_str() {
        "" => socket,
        endpoint => Path::new(endpoint),
    };
    manager
        .connect(&info.name, endpoint)
        .await
        .map_err(|error| {
            format!("RegisterPlugin error -- plugin registration failed with err: {error}")
        })
}

async fn notify(client: &mut RegistrationClient<Channel>, error: String) -> Result<(), String> {
    let status = RegistrationStatus {
        plugin_registered: error.is_empty(),
        error,
    };
    let notified = within(NOTIFY_TIMEOUT, client.notify_registration_status(status)).await;
    notified.map(|_| ())
}
