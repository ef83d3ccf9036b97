//! Opens the API client with the kubelet's credentials, and starts the tasks that rotate certificates.

use super::{
    Bootstrap, CLIENT, CertificateManager, CertificateMetrics, FileStore, Purpose, SERVER, Template,
};
use crate::apiserver::{ApiServer, ClientIdentity};
use crate::base::metrics::Metrics;
use crate::base::proxy::ProxyEnvironment;
use crate::base::{Tasks, spawn_blocking};
use crate::host::own_address;
use crate::state::node_object::NodeObject;
use std::net::IpAddr;
use std::path::PathBuf;

/// Configuration of the API client and the client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityConfig {
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// `rotateCertificates`.
    pub rotate_certificates: bool,
    /// `kubeAPIQPS`: average requests per second; zero means no limit.
    pub qps: u32,
    /// `kubeAPIBurst`.
    pub burst: u32,
    /// The environment that names proxies; `None` for the one of this process.
    pub proxies: Option<ProxyEnvironment>,
}

/// Opens the API client; `None` in standalone mode.
///
/// # Errors
/// The kubeconfig cannot be used, and no bootstrap will replace it.
pub async fn open_api(
    kubeconfig: Option<PathBuf>,
    identity: &IdentityConfig,
    metrics: &Metrics,
) -> anyhow::Result<Option<ApiServer>> {
    let Some(kubeconfig) = kubeconfig else {
        return Ok(None);
    };
    let store = FileStore::new(&identity.cert_dir, CLIENT);
    // Before the certificate is read by the client.
    spawn_blocking(move || store.recover()).await?;
    let api = ApiServer::open(client_identity(kubeconfig, identity));
    let api = api.await?.limited(identity.qps, identity.burst);
    Ok(Some(api.measured(metrics)))
}

/// The files with the kubelet's credentials.
pub fn client_identity(kubeconfig: PathBuf, identity: &IdentityConfig) -> ClientIdentity {
    let renewed = FileStore::new(&identity.cert_dir, CLIENT).current_path();
    ClientIdentity {
        kubeconfig,
        certificate: identity.rotate_certificates.then_some(renewed),
        is_awaited: identity.bootstrap_kubeconfig.is_some(),
        proxies: identity.proxies.clone(),
    }
}

/// Dependencies of the certificate managers.
#[derive(Clone)]
pub struct CertificateDeps {
    /// The API server that receives the requests.
    pub api: ApiServer,
    /// `--kubeconfig`, which a bootstrap writes.
    pub kubeconfig: PathBuf,
    /// The configuration.
    pub config: IdentityConfig,
    /// The node's name.
    pub node_name: String,
    /// `--node-ip`.
    pub node_ips: Vec<IpAddr>,
    /// Whether IPv6 comes before IPv4.
    pub ipv6_first: bool,
    /// Whether the serving certificate is requested from the cluster (`serverTLSBootstrap`).
    pub server_tls_bootstrap: bool,
}

/// Starts the configured tasks. The serving certificate follows the addresses of `node`.
pub fn start(deps: CertificateDeps, node: NodeObject, metrics: &Metrics, tasks: &mut Tasks) {
    let CertificateDeps { api, kubeconfig, config: settings, node_name, .. } = deps.clone();
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
        tasks.spawn_until_shutdown("certificates.bootstrap", bootstrap.run());
    }
    let manager = |purpose, store, template: Box<dyn Fn() -> Option<Template> + Send + Sync>| {
        let metrics = CertificateMetrics::new(purpose, metrics);
        CertificateManager::new(purpose, api.clone(), store, template, metrics)
            .after_bootstrap(bootstrap.clone())
    };
    if settings.rotate_certificates {
        let template = Template::client(&node_name);
        let template = Box::new(move || Some(template.clone()));
        let manager = manager(Purpose::Client, store(CLIENT), template)
            .with_initial_certificate(kubeconfig.clone());
        tasks.spawn_until_shutdown("certificates.client", manager.run());
    }
    if deps.server_tls_bootstrap {
        let template = serving(deps, node);
        let manager = manager(Purpose::Serving, store(SERVER), Box::new(template));
        tasks.spawn_until_shutdown("certificates.serving", manager.run());
    }
}

/// The content of the serving certificate: the addresses of the Node object, which a cloud provider may set, or, while
/// it has none, those of this machine. `None` until the object is known, so that a restart sends no needless request.
fn serving(
    deps: CertificateDeps,
    node: NodeObject,
) -> impl Fn() -> Option<Template> + Send + Sync + 'static {
    let (name, given) = (deps.node_name, deps.node_ips);
    move || {
        let node = node.borrow().clone()?;
        let status = node.status.as_ref();
        let known = status.and_then(|status| status.addresses.as_deref());
        match known.unwrap_or_default() {
            [] if given.is_empty() => {
                Template::serving(&name, [name.clone()], own_address(deps.ipv6_first))
            }
            [] => Template::serving(&name, [name.clone()], given.iter().copied()),
            known => Template::of_node(&name, known),
        }
    }
}
