//! From a kubeconfig file to a client, which is built again when the file, or one that it refers to, changes.

use super::transport::Transport;
use crate::base::{FileVersion, Reloaded, SecretUrl};
use anyhow::Context as _;
use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{runtime::Handle, task::spawn_blocking};

/// The connections of one identity, and the files of its credentials.
pub(super) struct Connection {
    pub(super) transport: Transport,
    /// The URL of the API server.
    pub(super) url: SecretUrl,
    /// Host and port, as in metrics.
    pub(super) host: Arc<str>,
    /// Files that the kubeconfig refers to: certificate, key, token and authorities.
    named: Vec<(PathBuf, FileVersion)>,
}

impl Connection {
    /// Whether one of these files has changed. Blocking.
    fn is_stale(&self) -> bool {
        let mut named = self.named.iter();
        named.any(|(path, version)| FileVersion::of(path) != *version)
    }
}

/// Reads the kubeconfig and the files that it refers to, relative to its directory. A new version of any of
/// them makes a new client, so that no connection keeps the old credentials.
///
/// # Errors
/// What cannot be read or used, with the path of the kubeconfig.
pub(super) async fn open(path: &Path) -> anyhow::Result<Reloaded<Connection>> {
    let own = path.to_owned();
    let handle = Handle::current();
    let read = move || {
        let read = handle.block_on(read(&own));
        read.with_context(|| format!("cannot use kubeconfig {}", own.display()))
    };
    let files = vec![path.to_owned()];
    let open = move || Reloaded::open("the kubeconfig", files, read, Connection::is_stale);
    spawn_blocking(open).await?
}

async fn read(path: &Path) -> anyhow::Result<Connection> {
    let file = Kubeconfig::read_from(path)?;
    let (cluster, user) = current(&file);
    let proxy = cluster.and_then(|cluster| cluster.proxy_url.as_deref());
    anyhow::ensure!(
        proxy.is_none_or(str::is_empty),
        "proxy-url of the cluster is not supported"
    );
    // Recorded before they are read, so that a change in between is read again.
    let named = named(cluster, user);
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let url = SecretUrl::from(config.cluster_url.to_string());
    let host = config.cluster_url.authority().map_or("", |at| at.as_str());
    let host = host.rsplit('@').next().unwrap_or_default().into();
    Ok(Connection {
        transport: Transport::new(config)?,
        url,
        host,
        named,
    })
}

/// The cluster and the user of the current context.
fn current(file: &Kubeconfig) -> (Option<&Cluster>, Option<&AuthInfo>) {
    let name = file.current_context.as_ref();
    let context = file.contexts.iter().find(|one| Some(&one.name) == name);
    let Some(context) = context.and_then(|context| context.context.as_ref()) else {
        return (None, None);
    };
    let mut clusters = file.clusters.iter();
    let cluster = clusters.find(|one| one.name == context.cluster);
    let mut users = file.auth_infos.iter();
    let user = users.find(|one| Some(&one.name) == context.user.as_ref());
    (
        cluster.and_then(|one| one.cluster.as_ref()),
        user.and_then(|one| one.auth_info.as_ref()),
    )
}

fn named(cluster: Option<&Cluster>, user: Option<&AuthInfo>) -> Vec<(PathBuf, FileVersion)> {
    let authorities = cluster.map(|cluster| &cluster.certificate_authority);
    let user = user.map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    let paths = authorities.into_iter().chain(user.into_iter().flatten());
    paths
        .flatten()
        .map(PathBuf::from)
        .map(|path| (path.clone(), FileVersion::of(&path)))
        .collect()
}
