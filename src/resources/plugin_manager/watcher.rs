//! Finds plugins by their sockets (upstream's `pluginwatcher`).
//!
//! An inotify event only triggers a scan. A socket that was replaced counts as another plugin.

use super::{
    Deregister, PluginHandlers, RegisteredPlugin,
    connection::{dial, within},
    registration_proto::{
        InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use crate::base::{panics::PanicScope, spawn};
use anyhow::Context as _;
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask, Watches};
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// The plugin type that upstream handles but this kubelet does not yet.
const NOT_SERVED: &str = "CSIPlugin";
/// Timeout of `GetInfo` and `NotifyRegistrationStatus`.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before a retry, doubling from `FIRST_DELAY` to the maximum.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);
/// Maximum interval between two scans.
const RESCAN: Duration = Duration::from_secs(60);
/// Maximum depth of directories, and maximum number of sockets.
const MAX_DEPTH: usize = 8;
const MAX_SOCKETS: usize = 1000;

/// Distinguishes sockets that were created at the same path: device, inode, and the birth time, if the file system has
/// it. The change time would not do, because `chmod` changes it.
type SocketIdentity = (u64, u64, Option<SystemTime>);

struct PluginSocket {
    identity: SocketIdentity,
    /// Cancelled when the socket is gone; the task then deregisters the plugin and ends.
    gone: CancellationToken,
}

/// The plugins of a directory.
struct PluginWatcher {
    handlers: Arc<PluginHandlers>,
    known: HashMap<PathBuf, PluginSocket>,
    /// Cancelled at shutdown.
    stop: CancellationToken,
}

/// Registers plugins whose sockets are below the directory, until shutdown.
///
/// # Errors
/// Never fails: if the directory cannot be used, an error is logged and no plugin is found.
pub async fn run(
    handlers: PluginHandlers,
    directory: PathBuf,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let stop = shutdown.child_token();
    let _stop = stop.clone().drop_guard();
    let mut watcher = PluginWatcher {
        handlers: Arc::new(handlers),
        known: HashMap::new(),
        stop,
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        watched = watcher.watch(&directory) => {
            if let Err(error) = watched {
                tracing::error!(path = %directory.display(), err = format!("{error:#}"), "Failed to watch for plugins");
                shutdown.cancelled().await;
            }
        }
    }
    Ok(())
}

impl PluginWatcher {
    async fn watch(&mut self, directory: &Path) -> anyhow::Result<()> {
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
        loop {
            let (root, mut watches) = (directory.to_owned(), watches.clone());
            let scanning = move || {
                let mut found = BTreeMap::new();
                scan(&root, MAX_DEPTH, &mut watches, &mut found).map(|()| found)
            };
            match tokio::task::spawn_blocking(scanning).await? {
                Ok(found) => self.compare(found),
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

    fn compare(&mut self, found: BTreeMap<PathBuf, SocketIdentity>) {
        self.known.retain(|path, socket| {
            let stays = found.get(path) == Some(&socket.identity);
            if !stays {
                socket.gone.cancel();
            }
            stays
        });
        for (path, identity) in found {
            if self.known.contains_key(&path) {
                continue;
            }
            let gone = CancellationToken::new();
            let work = serve(self.handlers.clone(), path.clone(), gone.clone());
            let stop = self.stop.clone();
            spawn(PanicScope::Connection, stop.run_until_cancelled_owned(work));
            self.known.insert(path, PluginSocket { identity, gone });
        }
    }
}

/// Finds all sockets below a directory, and watches it and its subdirectories.
fn scan(
    directory: &Path,
    depth: usize,
    watches: &mut Watches,
    found: &mut BTreeMap<PathBuf, SocketIdentity>,
) -> io::Result<()> {
    let mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::DELETE_SELF
        | WatchMask::ONLYDIR;
    // Watched before it is read, so that later changes cause events.
    watches.add(directory, mask)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") || found.len() >= MAX_SOCKETS {
            continue;
        }
        // The file may have been removed.
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            if depth > 0 {
                let _ = scan(&entry.path(), depth - 1, watches, found);
            }
            continue;
        }
        // `metadata` follows symbolic links.
        let Ok(meta) = entry.path().metadata() else {
            continue;
        };
        if meta.file_type().is_socket() {
            let identity = (meta.dev(), meta.ino(), meta.created().ok());
            found.insert(entry.path(), identity);
        }
    }
    Ok(())
}

/// Registers the plugin at a socket, and deregisters it when the socket is gone.
async fn serve(handlers: Arc<PluginHandlers>, socket: PathBuf, gone: CancellationToken) {
    let mut delay = FIRST_DELAY;
    let deregister = loop {
        let Some(introduced) = gone.run_until_cancelled(introduce(&socket)).await else {
            return;
        };
        let registered = match introduced {
            Ok(introduced) => register(&handlers, &socket, introduced, &gone).await,
            Err(error) => Err(error),
        };
        match registered {
            Ok(deregister) => break deregister,
            Err(error) => {
                tracing::error!(path = %socket.display(), err = error, "RegisterPlugin failed");
            }
        }
        if gone.run_until_cancelled(sleep(delay)).await.is_none() {
            return;
        }
        delay = (delay * 2).min(MAX_DELAY);
    };
    gone.cancelled().await;
    let Some((plugin, deregister)) = deregister else {
        return;
    };
    tracing::info!(plugin, path = %socket.display(), "Deregistering plugin");
    deregister.await;
}

/// A plugin that has responded to `GetInfo`.
struct Introduced {
    kind: String,
    plugin: RegisteredPlugin,
    client: RegistrationClient<Channel>,
}

/// Connects to a plugin and calls `GetInfo`; texts as upstream's.
async fn introduce(socket: &Path) -> Result<Introduced, String> {
    let shown = socket.display();
    let channel = dial(socket).await.map_err(|error| {
        format!("RegisterPlugin error -- dial failed at socket {shown}, err: {error}")
    })?;
    let mut client = RegistrationClient::new(channel);
    let info = within(INFO_TIMEOUT, client.get_info(InfoRequest {})).await;
    let info = info.map_err(|error| {
        format!("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {shown}, err: {error}")
    })?;
    let plugin = RegisteredPlugin {
        endpoint: match info.endpoint.as_str() {
            "" => socket.to_owned(),
            endpoint => PathBuf::from(endpoint),
        },
        name: info.name,
        versions: info.supported_versions,
    };
    Ok(Introduced {
        kind: info.r#type,
        plugin,
        client,
    })
}

/// Registers a plugin and reports the result to it; texts as upstream's. Returns the plugin's name and deregistration.
/// `None` for a plugin that gets no response, because an error would make some plugins exit and restart forever.
///
/// Must not be cancelled, because the deregistration has to run once the handler has registered the plugin. When the
/// socket is `gone`, only the wait for the plugin's response is aborted.
async fn register(
    handlers: &PluginHandlers,
    socket: &Path,
    introduced: Introduced,
    gone: &CancellationToken,
) -> Result<Option<(String, Deregister)>, String> {
    let Introduced {
        kind,
        plugin,
        mut client,
    } = introduced;
    let (shown, name) = (socket.display(), plugin.name.clone());
    if kind == NOT_SERVED {
        tracing::warn!(path = %shown, plugin = name, r#type = kind, "Plugins of this type are not served yet");
        return Ok(None);
    }
    let registered = accept(handlers, socket, &kind, plugin).await;
    let error = registered.as_ref().err().cloned().unwrap_or_default();
    let notified = gone.run_until_cancelled(notify(&mut client, error)).await;
    let deregister = registered?;
    if let Some(Err(error)) = notified {
        deregister.await;
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {shown}, err: {error}"
        ));
    }
    Ok(Some((name, deregister)))
}

async fn accept(
    handlers: &PluginHandlers,
    socket: &Path,
    kind: &str,
    plugin: RegisteredPlugin,
) -> Result<Deregister, String> {
    let handler = handlers.get(kind).ok_or_else(|| {
        format!(
            "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {}",
            socket.display()
        )
    })?;
    handler.validate(&plugin).map_err(|error| {
        format!("RegisterPlugin error -- plugin validation failed with err: {error}")
    })?;
    handler.register(plugin).await.map_err(|error| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::PermissionsExt as _, net::UnixListener};

    #[test]
    fn a_socket_whose_mode_changes_is_the_same_and_one_that_is_made_again_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a.sock");
        let mut watches = Inotify::init().unwrap().watches();
        let mut found = || {
            let mut found = BTreeMap::new();
            scan(dir.path(), MAX_DEPTH, &mut watches, &mut found).unwrap();
            found
        };
        let first = UnixListener::bind(&socket).unwrap();
        let before = found();
        assert_eq!(before.len(), 1);
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(found(), before);
        fs::remove_file(&socket).unwrap();
        drop(first);
        fs::write(dir.path().join("other"), "").unwrap();
        let _second = UnixListener::bind(&socket).unwrap();
        assert_ne!(found(), before);
    }
}
