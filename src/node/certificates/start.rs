//! The kubelet's identity: the client of the API server, and the tasks that keep certificates current.

use super::{
    Bootstrap, CLIENT, CertificateManager, CertificateMetrics, FileStore, Purpose, SERVER, Template,
};
use crate::{
    apiserver::{ApiServer, ClientIdentity},
    base::{Tasks, metrics::Metrics},
    host::own_address,
    state::node_object::NodeObject,
};
use std::{net::IpAddr, path::PathBuf};
use tokio::task::spawn_blocking;

/// How the kubelet is known to the API server, and how often it sends requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityConfig {
    /// How to get a client certificate while the kubeconfig has none that is valid.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates that the cluster issues are.
    pub cert_dir: PathBuf,
    /// Whether the client certificate is renewed.
    pub rotate_certificates: bool,
    /// Requests a second on average; zero means no limit.
    pub qps: u32,
    /// Requests at once.
    pub burst: u32,
}

/// The client of the API server, unless this is a node of its own.
///
/// # Errors
/// The kubeconfig is unusable, and nothing will write another one.
pub async fn open_api(
    kubeconfig: Option<PathBuf>,
    identity: &IdentityConfig,
    metrics: &Metrics,
) -> anyhow::Result<Option<ApiServer>> {
    let Some(kubeconfig) = kubeconfig else {
        return Ok(None);
    };
    let store = FileStore::new(&identity.cert_dir, CLIENT);
    let renewed = store.current_path();
    // Before it is read.
    spawn_blocking(move || store.recover()).await?;
    let api = ApiServer::open(ClientIdentity {
        kubeconfig,
        certificate: identity.rotate_certificates.then_some(renewed),
        is_awaited: identity.bootstrap_kubeconfig.is_some(),
    });
    let api = api.await?.limited(identity.qps, identity.burst);
    Ok(Some(api.measured(metrics)))
}

/// What certificates are requested for.
#[derive(Clone)]
pub struct Identity {
    /// The API server that issues them.
    pub api: ApiServer,
    /// How it is reached; a bootstrap writes this file.
    pub kubeconfig: PathBuf,
    /// The rest of the configuration.
    pub config: IdentityConfig,
    /// The node's name.
    pub node_name: String,
    /// Addresses given for the node.
    pub node_ips: Vec<IpAddr>,
    /// Whether IPv6 comes before IPv4.
    pub ipv6_first: bool,
    /// Whether the cluster issues the serving certificate.
    pub serves: bool,
}

/// Starts the tasks that the configuration wants. The serving certificate follows the addresses of `node`.
pub fn start(identity: Identity, node: NodeObject, metrics: &Metrics, tasks: &mut Tasks) {
    let Identity {
        api,
        kubeconfig,
        config: settings,
        node_name,
        ..
    } = identity.clone();
    let store = |name| FileStore::new(&settings.cert_dir, name);
    let bootstrap_kubeconfig = settings.bootstrap_kubeconfig.clone();
    let bootstrap = bootstrap_kubeconfig.map(|bootstrap_kubeconfig| Bootstrap {
        bootstrap_kubeconfig,
        kubeconfig: kubeconfig.clone(),
        store: store(CLIENT),
        rotates: settings.rotate_certificates,
        node_name: node_name.clone(),
    });
    if let Some(bootstrap) = bootstrap.clone() {
        tasks.spawn("certificates.bootstrap", bootstrap.run(tasks.shutdown()));
    }
    let manager = |purpose, store, template: Box<dyn Fn() -> Option<Template> + Send + Sync>| {
        let metrics = CertificateMetrics::new(purpose, metrics);
        CertificateManager::new(purpose, api.clone(), store, template, metrics)
            .after(bootstrap.clone())
    };
    if settings.rotate_certificates {
        let template = Template::client(&node_name);
        let template = Box::new(move || Some(template.clone()));
        let manager =
            manager(Purpose::Client, store(CLIENT), template).beginning_with(kubeconfig.clone());
        tasks.spawn("certificates.client", manager.run(tasks.shutdown()));
    }
    if identity.serves {
        let template = serving(identity, node);
        let manager = manager(Purpose::Serving, store(SERVER), Box::new(template));
        tasks.spawn("certificates.serving", manager.run(tasks.shutdown()));
    }
}

/// What the serving certificate says: the addresses of the Node object, which a cloud provider may set. Those of this
/// machine while it has none; nothing before the object is known, so that a restart requests nothing in vain.
fn serving(
    identity: Identity,
    node: NodeObject,
) -> impl Fn() -> Option<Template> + Send + Sync + 'static {
    let (name, given) = (identity.node_name, identity.node_ips);
    move || {
        let node = node.borrow().clone()?;
        let status = node.status.as_ref();
        let known = status.and_then(|status| status.addresses.as_deref());
        match known.unwrap_or_default() {
            [] if given.is_empty() => {
                Template::serving(&name, [name.clone()], own_address(identity.ipv6_first))
            }
            [] => Template::serving(&name, [name.clone()], given.iter().copied()),
            known => Template::of_node(&name, known),
        }
    }
}
