//! Where the logs of containers are, and their rotation.

use crate::{
    config::KubeletConfig,
    cri::RuntimeClient,
    runtime::kuberuntime::log_paths,
    runtime::logs::{LogPath, rotation},
    state::pod_cache::PodCache,
};
use std::{path::PathBuf, sync::Arc};

/// Where collectors read logs while pod logs are in their usual place.
const LOG_LINKS: &str = "/var/log/containers";

/// Where the logs of containers are.
pub(super) fn path(config: &KubeletConfig) -> LogPath {
    let root = config.container_logs.pod_logs_dir.clone();
    Arc::new(move |owner, container| {
        log_paths::container_log_file(&root, owner, &container.name, container.restart_count).ok()
    })
}

/// Rotation of the logs, unless it is off.
pub(super) fn rotation(
    config: &KubeletConfig,
    runtime: &RuntimeClient,
    cache: &PodCache,
) -> Option<rotation::Rotation> {
    let logs = &config.container_logs;
    let policy = rotation::Policy {
        max_size: logs.max_size?,
        max_files: logs.max_files,
    };
    let settings = rotation::Config {
        policy,
        workers: logs.max_workers,
        interval: logs.monitor_interval,
    };
    let path = path(config);
    Some(rotation::Rotation::new(
        runtime.clone(),
        cache.clone(),
        path,
        settings,
    ))
}

/// Links for collectors are beside the pod logs when those are not in their usual place.
pub(super) fn links(logs: &std::path::Path) -> PathBuf {
    match (logs == std::path::Path::new("/var/log/pods"), logs.parent()) {
        (false, Some(parent)) => parent.join("containers"),
        _ => PathBuf::from(LOG_LINKS),
    }
}
