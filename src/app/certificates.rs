//! The kubelet's identity: the client of the API server, and the tasks that keep certificates current.

use super::Stores;
use crate::{
    apiserver::{ApiServer, ClientIdentity},
    base::{Tasks, metrics::Metrics},
    config::KubeletConfig,
    host::own_address,
    node::certificates::{
        Bootstrap, CLIENT, CertificateManager, CertificateMetrics, FileStore, Purpose, SERVER,
        Template,
    },
    server::tls::ServingCertificate,
    state::node_object::NodeObject,
};
use tokio::task::spawn_blocking;

/// The client of the API server, unless this is a node of its own.
///
/// # Errors
/// The kubeconfig is unusable, and nothing will write another one.
pub(super) async fn open_api(
    config: &KubeletConfig,
    metrics: &Metrics,
) -> anyhow::Result<Option<ApiServer>> {
    let Some(kubeconfig) = config.kubeconfig.clone() else {
        return Ok(None);
    };
    let identity = &config.identity;
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

/// Starts the tasks that the configuration wants.
pub(super) fn start(config: &KubeletConfig, stores: &Stores, tasks: &mut Tasks) {
    let (Some(api), Some(kubeconfig)) = (&stores.api, &config.kubeconfig) else {
        return;
    };
    let (identity, node_name) = (&config.identity, config.node_name.clone());
    let store = |name| FileStore::new(&identity.cert_dir, name);
    let bootstrap_kubeconfig = identity.bootstrap_kubeconfig.clone();
    let bootstrap = bootstrap_kubeconfig.map(|bootstrap_kubeconfig| Bootstrap {
        bootstrap_kubeconfig,
        kubeconfig: kubeconfig.clone(),
        store: store(CLIENT),
        rotates: identity.rotate_certificates,
        node_name: node_name.clone(),
    });
    if let Some(bootstrap) = bootstrap.clone() {
        tasks.spawn("certificates.bootstrap", bootstrap.run(tasks.shutdown()));
    }
    let manager = |purpose, store, template: Box<dyn Fn() -> Option<Template> + Send + Sync>| {
        let metrics = CertificateMetrics::new(purpose, &stores.metrics);
        CertificateManager::new(purpose, api.clone(), store, template, metrics)
            .after(bootstrap.clone())
    };
    if identity.rotate_certificates {
        let template = Template::client(&node_name);
        let template = Box::new(move || Some(template.clone()));
        let manager =
            manager(Purpose::Client, store(CLIENT), template).beginning_with(kubeconfig.clone());
        tasks.spawn("certificates.client", manager.run(tasks.shutdown()));
    }
    let issued = matches!(
        config.server.tls.certificate,
        ServingCertificate::Issued { .. }
    );
    if issued && config.server.enabled {
        let template = serving(config, stores.node_object.clone());
        let manager = manager(Purpose::Serving, store(SERVER), Box::new(template));
        tasks.spawn("certificates.serving", manager.run(tasks.shutdown()));
    }
}

/// What the serving certificate says: the addresses of the Node object, which a cloud provider may set. Those of this
/// machine while it has none; nothing before the object is known, so that a restart requests nothing in vain.
fn serving(
    config: &KubeletConfig,
    node: NodeObject,
) -> impl Fn() -> Option<Template> + Send + Sync + 'static {
    let (name, given) = (config.node_name.clone(), config.node_ips.clone());
    let ipv6_first = config.ipv6_first;
    move || {
        let node = node.borrow().clone()?;
        let status = node.status.as_ref();
        let known = status.and_then(|status| status.addresses.as_deref());
        match known.unwrap_or_default() {
            [] if given.is_empty() => {
                Template::serving(&name, [name.clone()], own_address(ipv6_first))
            }
            [] => Template::serving(&name, [name.clone()], given.iter().copied()),
            known => Template::of_node(&name, known),
        }
    }
}
