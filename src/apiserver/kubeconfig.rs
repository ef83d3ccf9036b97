//! From a kubeconfig file to a client.

use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Client,
    client::ConfigExt as _,
    config::{Config, KubeConfigOptions, Kubeconfig},
};
use std::{
    error::Error,
    path::{Path, PathBuf},
};
use tokio::runtime::Handle;
use tower::{BoxError, ServiceBuilder};

/// Why a kubeconfig file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// It, or a file it names, cannot be read, or it makes no sense.
    #[error("cannot use kubeconfig {}", path.display())]
    Unusable {
        /// The kubeconfig file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It asks for a proxy.
    #[error("kubeconfig {}: proxy-url of the cluster is not supported", path.display())]
    Proxy {
        /// The kubeconfig file.
        path: PathBuf,
    },
}

/// Reads the file and the certificates it names, of which relative names are beside it, and makes a client of
/// them with the address of its server.
pub(super) async fn client(path: &Path) -> Result<(Client, String), KubeconfigError> {
    let own = path.to_owned();
    // Files are read in several places of this, and the system's certificates where the file names none.
    let handle = Handle::current();
    let read = tokio::task::spawn_blocking(move || handle.block_on(read(own)));
    let read = read.await.unwrap_or_else(|error| Err(error.into()));
    read.map_err(|source| match source.is::<WantsProxy>() {
        true => KubeconfigError::Proxy {
            path: path.to_owned(),
        },
        false => KubeconfigError::Unusable {
            path: path.to_owned(),
            source,
        },
    })
}

#[derive(Debug, thiserror::Error)]
#[error("it wants a proxy")]
struct WantsProxy;

async fn read(path: PathBuf) -> Result<(Client, String), Box<dyn Error + Send + Sync>> {
    let file = Kubeconfig::read_from(path)?;
    if wants_proxy(&file) {
        return Err(WantsProxy.into());
    }
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let url = config.cluster_url.to_string();
    // Not kube's own stack: that logs every failure, tries again by itself, and takes its proxy from the
    // environment. Whoever asks here does the first two.
    let connector = config.rustls_https_connector()?;
    let pool = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(pool);
    Ok((Client::new(service, config.default_namespace), url))
}

/// Whether the cluster of the current context is behind a proxy.
fn wants_proxy(file: &Kubeconfig) -> bool {
    let current = file.current_context.as_deref();
    let mut contexts = file.contexts.iter();
    let context = contexts.find(|context| Some(context.name.as_str()) == current);
    let name = context.and_then(|context| context.context.as_ref().map(|inner| &inner.cluster));
    let mut clusters = file.clusters.iter();
    let cluster = clusters.find(|cluster| Some(&cluster.name) == name);
    let cluster = cluster.and_then(|cluster| cluster.cluster.as_ref());
    let proxy = cluster.and_then(|cluster| cluster.proxy_url.as_deref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}
