//! Objects of the API server that pods refer to, and the volumes made of them.

use super::Stores;
use crate::{
    apiserver::{
        claim::ApiPersistentVolumeClaims, configmap_secret::Objects, runtime_class::RuntimeClasses,
        service::Services, token::Tokens, trust_bundle::TrustBundles,
    },
    base::Tasks,
    config::KubeletConfig,
    host::own_address,
    resources::NodeFacts,
    state::node_object::HostIps,
    volumes::{Cluster, HostMounter, VolumeManager},
};
use std::sync::Arc;

/// Readers of such objects. On a standalone node there are none but the local ConfigMaps and Secrets.
pub(super) struct ClusterObjects {
    pub(super) services: Services,
    pub(super) runtime_classes: RuntimeClasses,
    pub(super) volumes: VolumeManager,
    pub(super) host_ips: HostIps,
}

/// Builds the readers, and starts the tasks that watch Services and RuntimeClasses.
pub(super) fn start(
    config: &KubeletConfig,
    stores: &Stores,
    node: Arc<NodeFacts>,
    tasks: &mut Tasks,
) -> ClusterObjects {
    let objects = Objects::new(config.local_objects_dir.clone(), stores.api.clone());
    let services = Services::new(stores.api.clone(), objects.changes());
    let runtime_classes = RuntimeClasses::new(stores.api.clone(), objects.changes());
    if stores.api.is_some() {
        let known = config.root_dir.join("services.json");
        tasks.spawn("services", services.clone().run(known, tasks.shutdown()));
        let classes = runtime_classes.clone();
        tasks.spawn("runtime_classes", classes.run(tasks.shutdown()));
    }
    let cluster = Cluster {
        tokens: Tokens::new(stores.api.clone(), objects.changes()),
        bundles: TrustBundles::new(stores.api.clone(), objects.changes()),
        claims: ApiPersistentVolumeClaims::new(stores.api.clone(), objects.changes()),
        node: stores.node_object.clone(),
    };
    let root = stores.root.clone();
    ClusterObjects {
        services,
        runtime_classes,
        volumes: VolumeManager::in_cluster(root, node, objects, cluster, HostMounter),
        host_ips: HostIps::new(
            stores.node_object.clone(),
            &config.node_ips,
            own_address(config.ipv6_first),
        ),
    }
}
