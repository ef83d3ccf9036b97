//! The eviction manager, from the configuration.

use crate::{
    base::{GoDuration, Tasks, metrics::Metrics},
    config::KubeletConfig,
    node::eviction::{
        EvictionDeps, EvictionManager, EvictionSettings,
        thresholds::{thresholds, with_allocatable},
    },
};
use std::collections::BTreeMap;

/// Starts the task, unless there is nothing to watch.
pub(super) fn start(
    config: &KubeletConfig,
    deps: EvictionDeps,
    metrics: &Metrics,
    tasks: &mut Tasks,
) {
    let settings = settings(config);
    if settings.thresholds.is_empty() && !settings.local_storage {
        return;
    }
    let manager = EvictionManager::new(settings, deps, metrics);
    tasks.spawn("node.eviction", manager.run(tasks.shutdown()));
}

fn settings(config: &KubeletConfig) -> EvictionSettings {
    let given = &config.effective;
    let map = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
    let grace = map(&given.eviction_soft_grace_period);
    let grace = grace.into_iter().filter_map(|(signal, period)| {
        let period = period.parse::<GoDuration>().ok()?;
        Some((signal, period.to_std()))
    });
    let mut thresholds = thresholds(
        &map(&given.eviction_hard),
        &map(&given.eviction_soft),
        &grace.collect(),
        &map(&given.eviction_minimum_reclaim),
    );
    if config.cgroups.enforce_pods {
        thresholds = with_allocatable(thresholds);
    }
    let transition = given.eviction_pressure_transition_period;
    EvictionSettings {
        node_name: config.node_name.clone(),
        thresholds,
        transition: transition.map(GoDuration::to_std).unwrap_or_default(),
        max_grace: given.eviction_max_pod_grace_period.unwrap_or(0).into(),
        local_storage: config.node.local_storage_isolation,
    }
}
