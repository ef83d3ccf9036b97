//! The shutdown manager, from the configuration.

use super::Stores;
use crate::{
    base::{GoDuration, Tasks},
    config::{FeatureGate, KubeletConfig, kubelet_configuration::KubeletConfiguration},
    host::{LOGIND_CONFIG_DIRECTORY, Logind},
    node::shutdown::{
        ShutdownDeps, ShutdownManager,
        plan::{self, ShutdownPhase},
    },
    pods::pod_workers::PodWorkers,
    state::node_shutdown::NodeShutdownWriter,
};

/// Starts the task, unless no grace period is configured or its gate is off.
pub(super) fn start(
    config: &KubeletConfig,
    stores: &Stores,
    workers: &PodWorkers,
    shutting_down: NodeShutdownWriter,
    tasks: &mut Tasks,
) {
    let phases = phases(&config.effective);
    if phases.is_empty() || !config.is_on(FeatureGate::GracefulNodeShutdown) {
        return;
    }
    let manager = ShutdownManager::new(
        ShutdownDeps {
            node_name: config.node_name.clone(),
            phases,
            root: config.root_dir.clone(),
            logind_config: LOGIND_CONFIG_DIRECTORY.into(),
            logind: Logind::new(stores.system.bus.clone()),
            pods: stores.pods.clone(),
            workers: workers.clone(),
            events: stores.events.clone(),
            shutting_down,
            reports: config.kubeconfig.is_some(),
        },
        &stores.metrics,
    );
    tasks.spawn("node.shutdown", manager.run(tasks.shutdown()));
}

fn phases(config: &KubeletConfiguration) -> Vec<ShutdownPhase> {
    let periods = config
        .shutdown_grace_period_by_pod_priority
        .iter()
        .flatten();
    let by_priority = periods.map(|period| ShutdownPhase {
        priority: period.priority.unwrap_or_default(),
        grace: period.shutdown_grace_period_seconds.unwrap_or_default(),
    });
    let time = |given: Option<GoDuration>| given.unwrap_or_default().to_std();
    plan::phases(
        by_priority.collect(),
        time(config.shutdown_grace_period),
        time(config.shutdown_grace_period_critical_pods),
    )
}
