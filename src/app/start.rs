//! Starts each area once the runtime has responded, bottom to top.

use super::open::Opened;
use super::{Periods, pod_certificates, settings};
use crate::base::{Tasks, spawn_blocking};
use crate::config::{FeatureGate, KubeletConfig};
use crate::cri::{RuntimeFeatures, RuntimeInfo, features_store};
use crate::host::{System, memory, own_address};
use crate::model::validation::sysctl_allowlist::Allowlist;
use crate::model::{Pod, PodExt as _, is_terminal};
use crate::node::csi_node::{NodeInfoDeps, NodeInfoManager};
use crate::node::{self, NodeDeps};
use crate::pods::sync_loop::AdmissionDeps;
use crate::pods::{self, PodsDeps, PodsHandles, PodsReader};
use crate::resources::plugin_manager::PluginHandler;
use crate::resources::{self, Deps, PluginDeps, PodSetReader};
use crate::runtime::kuberuntime::log_paths::log_path;
use crate::runtime::kuberuntime::{KubeGenericRuntimeManager, RuntimeManagerDeps, UserNamespaces};
use crate::runtime::logs::rotation::Rotation;
use crate::state::Stores;
use crate::state::node_object::HostIps;
use std::sync::Arc;

/// Starts every task; the sync loop is the last.
///
/// # Errors
/// State that cannot be read, and settings that this machine or the runtime does not support.
pub(super) async fn start(
    config: &KubeletConfig,
    periods: Periods,
    system: System,
    opened: Opened,
    info: &RuntimeInfo,
    tasks: &mut Tasks,
) -> anyhow::Result<PodsHandles> {
    let Opened { metrics, tracer, machine, stores, writers, images, volumes, .. } = opened;
    let reader = opened.pods;
    let (features_writer, features) = features_store(RuntimeFeatures::of(&info.status));
    let known_services = config.root_dir.join("services.json");
    opened.objects.start(known_services, tasks);

    // Before the Node object is reported: it has to have the volumes in use.
    let csi = volumes.csi().clone();
    let found = csi.clone();
    spawn_blocking(move || found.recover()).await?;

    let store = stores.state_store.clone();
    tasks.spawn("pod_state_store", store.run(tasks.shutdown()));

    let deps = Deps {
        node_name: config.node_name.clone(),
        root_dir: config.root_dir.clone(),
        machine: machine.clone(),
        system: system.clone(),
        api: opened.api.clone(),
        runtime: opened.runtime.clone(),
        cache: stores.pod_cache.clone(),
        events: stores.events.clone(),
        metrics: metrics.clone(),
        all_sources_seen: reader.all_sources_seen.clone(),
        active_pods: active_pods(&stores, &reader),
    };
    let resources = resources::start(settings::resources(config, &machine), &deps, tasks).await?;
    opened.pods_cgroup.send_replace(resources.cgroups.all_pods());

    if let Some(notices) = opened.certificate_notices {
        pod_certificates::start(notices, stores.events.clone(), tasks);
    }

    images.recover_pulls().await;

    let own = own_address(config.ipv6_first);
    let host_ips = HostIps::new(stores.node_object.clone(), &config.node_ips, own);
    let containers = settings::containers(
        config,
        opened.root.clone(),
        resources.enforcement,
        opened.facts.clone(),
        host_ips.clone(),
    );
    let runtime = KubeGenericRuntimeManager::new(RuntimeManagerDeps {
        runtime: opened.runtime.clone(),
        images: images.manager(&config.images, stores.events.clone(), &metrics),
        stores: stores.clone(),
        volumes: volumes.clone(),
        user_namespaces: UserNamespaces::of_node(opened.root, config.user_namespaces).await?,
        resources: resources.clone(),
        features: features.clone(),
        cluster_objects: opened.objects,
        settings: containers,
        metrics: metrics.clone(),
        config: settings::runtime(config),
    });
    if let Some(rotation) = config.log_rotation {
        let path = log_path(config.pod_logs_dir.clone());
        let (client, cache) = (opened.runtime.clone(), stores.pod_cache.clone());
        let rotation = Rotation::new(client, cache, path, rotation);
        tasks.spawn("logs.rotation", rotation.run(tasks.shutdown()));
    }

    let profile = settings::profile(config);
    let node = match opened.api {
        Some(_) => stores.node_object.clone(),
        None => node::standalone_node(&profile, &machine, system.sys.clone()).await?,
    };
    let admission = AdmissionDeps {
        resources: resources.managers.clone(),
        sysctls: Allowlist::new(
            &machine.kernel_release,
            &config.containers.allowed_unsafe_sysctls,
        )?,
        app_armor: machine.app_armor,
        pressure: stores.pressure.clone(),
        shutting_down: stores.shutting_down.clone(),
        features,
        standalone: opened.api.is_none(),
        node,
        initial_node: profile.initial_node(),
    };
    let enforcement = &resources.enforcement;
    let (api, facts) = (opened.api.clone(), &opened.facts);
    let (pods, pods_tasks) = pods::build(
        settings::pods(config, periods, api, &stores, &machine, enforcement, facts),
        &reader,
        opened.pods_writers,
        PodsDeps {
            api: opened.api.clone(),
            client: opened.runtime.clone(),
            info,
            features: features_writer,
            stores: &stores,
            cache: writers.pod_cache,
            pod_manager: writers.pod_manager,
            results: writers.probe_results,
            resources: &resources,
            volumes,
            runtime,
            admission,
            host_ips,
            started_at: opened.started_at,
            metrics: &metrics,
            probe_metrics: &opened.probe_metrics,
            tracer: &tracer,
        },
    )?;

    let sources = csi.sources();
    let csi_node = opened.api.clone().map(|api| {
        NodeInfoManager::new(NodeInfoDeps {
            api,
            node_name: config.node_name.clone(),
            node: stores.node_object.clone(),
            csi_drivers: sources.objects.clone(),
            table: Arc::new(sources.drivers.clone()),
            full_drivers: sources.full_drivers.clone(),
        })
    });
    let registration = csi_node.clone();
    let registration = registration.map(|csi_node| Arc::new(csi_node) as Arc<dyn PluginHandler>);
    let deps = NodeDeps {
        api: opened.api,
        client: opened.runtime,
        info,
        images: &images,
        stores: &stores,
        events: opened.events,
        csi_node,
        node_object: writers.node_object,
        pressure: writers.pressure,
        shutting_down: writers.shutting_down,
        machine: &machine,
        system: &system,
        resources: &resources,
        pods: &pods,
        stats: opened.stats,
        volumes_are_undone: Arc::new(move || csi.is_undone()),
        metrics: &metrics,
        tracer: &tracer,
    };
    node::start(settings::node(config), deps, tasks).await?;
    let changes = reader.statuses.subscribe();
    let trimming = memory::trim_after_bursts(changes, tasks.shutdown());
    tasks.spawn("memory", trimming);

    // From here on pods are started.
    let (pod_manager, workers) = (stores.pod_manager, pods.workers.clone());
    resources.serve_plugins(
        PluginDeps {
            root_dir: config.root_dir.clone(),
            pods: Arc::new(move || pod_manager.pods()),
            is_active: Arc::new(move |pod| workers.is_active(pod)),
            list_inactive: !config.is_on(FeatureGate::KubeletPodResourcesListUseActivePods),
            csi_drivers: registration,
            socket: opened.pod_resources,
            metrics,
        },
        tasks,
    );
    pods_tasks.start(tasks);
    Ok(pods)
}

/// Desired pods whose status is not terminal. Unlike those of `node::active_pods`, none is a Failed pod whose containers
/// are still being stopped.
fn active_pods(stores: &Stores, pods: &PodsReader) -> PodSetReader {
    let (pod_manager, statuses) = (stores.pod_manager.clone(), pods.statuses.clone());
    Arc::new(move || {
        let mut pods = pod_manager.pods();
        let has_terminal_status = |pod: &Arc<Pod>| {
            let status = statuses.get(&pod.uid());
            status.is_some_and(|status| is_terminal(&status))
        };
        pods.retain(|pod| !has_terminal_status(pod));
        pods
    })
}
