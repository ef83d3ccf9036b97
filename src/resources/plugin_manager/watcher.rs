//! Finds plugins by their sockets (upstream's `pluginwatcher`).
//!
//! An inotify event only triggers a scan. A socket that was replaced counts as another plugin.

use super::connection::{call_with_timeout, dial};
use super::registration_proto::registration_client::RegistrationClient;
use super::registration_proto::{InfoRequest, RegistrationStatus};
use super::{Deregister, PluginHandlers, RegisteredPlugin};
use crate::base::panics::PanicScope;
use crate::base::{if_exists, spawn, spawn_blocking};
use anyhow::Context as _;
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask, Watches};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// The plugin type that may be without a handler.
const UNSUPPORTED_TYPE: &str = "CSIPlugin";
/// Timeout of `GetInfo` and `NotifyRegistrationStatus`.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before a retry, doubling from `FIRST_DELAY` to the maximum.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);
/// Maximum interval between two scans.
const RESCAN_INTERVAL: Duration = Duration::from_secs(60);
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
    let mut watcher = PluginWatcher { handlers: Arc::new(handlers), known: HashMap::new(), stop };
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
        let made = move || fs::DirBuilder::new().recursive(true).mode(0o750).create(make);
        spawn_blocking(made).await?.context("cannot create the directory")?;
        let inotify = Inotify::init().context("inotify")?;
        let watches = inotify.watches();
        let mut events = inotify.into_event_stream([0; 4096]).context("inotify")?;
        loop {
            let (root, mut watches) = (directory.to_owned(), watches.clone());
            let scanning = move || {
                let mut found = FoundSockets::default();
                let scanned = scan(&root, MAX_DEPTH, &mut watches, &mut found);
                found.note(scanned);
                found
            };
            let found = spawn_blocking(scanning).await?;
            if let Some(error) = &found.error {
                tracing::error!(path = %directory.display(), err = %error, "Failed to traverse plugin socket path");
            }
            self.reconcile(found);
            tokio::select! {
                event = events.next() => {
                    event.context("the inotify event stream ended")??;
                }
                () = sleep(RESCAN_INTERVAL) => {}
            }
        }
    }

    /// Registers the plugins of new sockets, and deregisters those of sockets that are gone: after an error, only of
    /// those that were replaced.
    fn reconcile(&mut self, found: FoundSockets) {
        self.known.retain(|path, socket| {
            let stays = match found.sockets.get(path) {
                Some(identity) => *identity == socket.identity,
                None => found.error.is_some(),
            };
            if !stays {
                socket.gone.cancel();
            }
            stays
        });
        for (path, identity) in found.sockets {
            if self.known.contains_key(&path) || self.known.len() >= MAX_SOCKETS {
                continue;
            }
            let gone = CancellationToken::new();
            let work = manage_plugin(self.handlers.clone(), path.clone(), gone.clone());
            let stop = self.stop.clone();
            spawn(PanicScope::Connection, stop.run_until_cancelled_owned(work));
            self.known.insert(path, PluginSocket { identity, gone });
        }
    }
}

/// The result of a scan.
#[derive(Default)]
struct FoundSockets {
    sockets: BTreeMap<PathBuf, SocketIdentity>,
    /// The first error, other than that of a file that was removed meanwhile: sockets may be missing.
    error: Option<io::Error>,
}

impl FoundSockets {
    /// Keeps an error.
    fn note<T>(&mut self, result: io::Result<T>) -> Option<T> {
        if_exists(result).unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            None
        })
    }
}

/// Finds all sockets below a directory, and watches it and its subdirectories.
fn scan(
    directory: &Path,
    depth: usize,
    watches: &mut Watches,
    found: &mut FoundSockets,
) -> io::Result<()> {
    let mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::DELETE_SELF
        | WatchMask::ONLYDIR;
    // Watched before it is read, so that later changes cause events. Without a watch the next scan finds them.
    if let Err(error) = if_exists(watches.add(directory, mask).map(drop)) {
        tracing::error!(path = %directory.display(), err = %error, "Failed to watch plugin socket path");
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Some(kind) = found.note(entry.file_type()) else {
            continue;
        };
        if kind.is_dir() {
            if depth > 0 {
                let scanned = scan(&entry.path(), depth - 1, watches, found);
                found.note(scanned);
            }
            continue;
        }
        // `metadata` follows symbolic links.
        let Some(meta) = found.note(entry.path().metadata()) else {
            continue;
        };
        if !meta.file_type().is_socket() {
            continue;
        }
        if found.sockets.len() >= MAX_SOCKETS {
            return Err(io::Error::other(format!("there are more than {MAX_SOCKETS} sockets")));
        }
        let identity = (meta.dev(), meta.ino(), meta.created().ok());
        found.sockets.insert(entry.path(), identity);
    }
    Ok(())
}

/// Registers the plugin at a socket, and deregisters it when the socket is gone.
async fn manage_plugin(handlers: Arc<PluginHandlers>, socket: PathBuf, gone: CancellationToken) {
    let mut delay = FIRST_DELAY;
    let deregister = loop {
        let Some(discovered) = gone.run_until_cancelled(get_info(&socket)).await else {
            return;
        };
        let registered = match discovered {
            Ok(discovered) => register(&handlers, &socket, discovered, &gone).await,
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
struct DiscoveredPlugin {
    kind: String,
    plugin: RegisteredPlugin,
    client: RegistrationClient<Channel>,
}

/// Connects to a plugin and calls `GetInfo`; texts as upstream's.
async fn get_info(socket: &Path) -> Result<DiscoveredPlugin, String> {
    let path = socket.display();
    let channel = dial(socket).await.map_err(|error| {
        format!("RegisterPlugin error -- dial failed at socket {path}, err: {error}")
    })?;
    let mut client = RegistrationClient::new(channel);
    let info = call_with_timeout(INFO_TIMEOUT, client.get_info(InfoRequest {})).await;
    let info = info.map_err(|error| {
        format!("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: {error}")
    })?;
    let plugin = RegisteredPlugin {
        endpoint: match info.endpoint.as_str() {
            "" => socket.to_owned(),
            endpoint => PathBuf::from(endpoint),
        },
        name: info.name,
        versions: info.supported_versions,
    };
    Ok(DiscoveredPlugin { kind: info.r#type, plugin, client })
}

/// Registers a plugin and reports the result to it; texts as upstream's. Returns the plugin's name and deregistration.
/// `None` for a CSI driver if there is no handler of CSI drivers: it gets no response, because an error would
/// make some plugins exit and restart forever.
///
/// Must not be cancelled, because the deregistration has to run once the handler has registered the plugin. When the
/// socket is `gone`, only the wait for the plugin's response is aborted.
async fn register(
    handlers: &PluginHandlers,
    socket: &Path,
    discovered: DiscoveredPlugin,
    gone: &CancellationToken,
) -> Result<Option<(String, Deregister)>, String> {
    let DiscoveredPlugin { kind, plugin, mut client } = discovered;
    let (path, name) = (socket.display(), plugin.name.clone());
    if kind == UNSUPPORTED_TYPE && !handlers.contains_key(UNSUPPORTED_TYPE) {
        tracing::warn!(%path, plugin = name, r#type = kind, "Plugins of this type are not supported here");
        return Ok(None);
    }
    let registered = accept(handlers, socket, &kind, plugin).await;
    let error = registered.as_ref().err().cloned().unwrap_or_default();
    let notified = gone.run_until_cancelled(notify(&mut client, error)).await;
    let deregister = registered?;
    if let Some(Err(error)) = notified {
        deregister.await;
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {path}, err: {error}"
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
    let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
    let notified =
        call_with_timeout(NOTIFY_TIMEOUT, client.notify_registration_status(status)).await;
    notified.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_whose_mode_changes_is_the_same_and_one_that_is_made_again_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a.sock");
        let mut watches = Inotify::init().unwrap().watches();
        let mut found = || {
            let mut found = FoundSockets::default();
            scan(dir.path(), MAX_DEPTH, &mut watches, &mut found).unwrap();
            found.sockets
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

    #[test]
    fn a_part_that_cannot_be_read_is_an_error_and_a_file_that_is_gone_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut watches = Inotify::init().unwrap().watches();
        let mut error = || {
            let mut found = FoundSockets::default();
            scan(dir.path(), MAX_DEPTH, &mut watches, &mut found).unwrap();
            found.error
        };
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(error().is_none());
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("link", &link).unwrap();
        assert!(error().is_some());
    }

    #[tokio::test]
    async fn after_an_error_no_plugin_is_deregistered_unless_its_socket_was_replaced() {
        let mut watcher = PluginWatcher {
            handlers: Arc::default(),
            known: HashMap::new(),
            stop: CancellationToken::new(),
        };
        let gone = CancellationToken::new();
        let (path, identity) = (PathBuf::from("/nowhere/a.sock"), (1, 2, None));
        let known = PluginSocket { identity, gone: gone.clone() };
        watcher.known.insert(path.clone(), known);
        let failed = |sockets: &[(PathBuf, SocketIdentity)]| FoundSockets {
            sockets: sockets.iter().cloned().collect(),
            error: Some(io::ErrorKind::PermissionDenied.into()),
        };
        watcher.reconcile(failed(&[]));
        assert!(!gone.is_cancelled());
        watcher.reconcile(failed(&[(path.clone(), (1, 3, None))]));
        assert!(gone.is_cancelled());
        let replaced = watcher.known[&path].gone.clone();
        watcher.reconcile(FoundSockets::default());
        assert!(replaced.is_cancelled());
    }
}
