//! The runtime manager, from the configuration.

use super::{
    Stores, cgroups, cluster_objects::ClusterObjects,
    container_resources::ContainerResourceManagers, images, logs,
};
use crate::{
    config::KubeletConfig,
    cri::FeaturesReader,
    resources::NodeFacts,
    runtime::handlers::{Hooks, runtime_exec},
    runtime::kuberuntime::{
        Config, GcPolicy, KubeGenericRuntimeManager, RuntimeManagerDeps, SpecSettings, StartMetrics,
    },
    state::probe_results::ProbeResults,
};
use std::sync::Arc;

/// Builds the runtime manager.
pub(super) fn manager(
    config: &KubeletConfig,
    stores: &Stores,
    node: Arc<NodeFacts>,
    cluster: &ClusterObjects,
    resources: &ContainerResourceManagers,
    features: FeaturesReader,
    results: ProbeResults,
) -> KubeGenericRuntimeManager {
    KubeGenericRuntimeManager::new(RuntimeManagerDeps {
        runtime: stores.runtime.clone(),
        images: images::manager(config, stores),
        cache: stores.cache.clone(),
        events: stores.events.clone(),
        pod_history: stores.pod_history.clone(),
        state_store: stores.state_store.clone(),
        results,
        hooks: Hooks::new(
            runtime_exec(stores.runtime.clone()),
            stores.events.clone(),
            &stores.metrics,
        ),
        volumes: cluster.volumes.clone(),
        user_namespaces: resources.user_namespaces.clone(),
        devices: resources.devices.clone(),
        cgroups: resources.cgroups.clone(),
        features,
        resources: resources.managers.clone(),
        allocations: resources.allocations.clone(),
        resize_metrics: resources.resize_metrics.clone(),
        services: cluster.services.clone(),
        runtime_classes: cluster.runtime_classes.clone(),
        metrics: StartMetrics::new(&stores.metrics),
        config: runtime_config(config),
        settings: SpecSettings {
            root: stores.root.clone(),
            pod_logs_dir: config.container_logs.pod_logs_dir.clone(),
            cluster_dns: config.dns.cluster_dns.clone(),
            cluster_domain: config.dns.cluster_domain.clone(),
            seccomp_default: config.containers.seccomp_default,
            cpu: cgroups::cpu_enforcement(config, &stores.machine),
            node,
            host_ips: cluster.host_ips.clone(),
        },
    })
}

fn runtime_config(config: &KubeletConfig) -> Config {
    let containers = &config.containers;
    Config {
        max_restart_back_off: containers.max_restart_back_off,
        gc_policy: GcPolicy {
            min_age: containers.min_dead_age,
            max_per_container: containers.max_dead_per_container.map(|n| n as usize),
            max_containers: containers.max_dead_total.map(|n| n as usize),
        },
        resolv_conf: config.dns.resolv_conf.clone(),
        log_links: Some(logs::links(&config.container_logs.pod_logs_dir)),
    }
}
