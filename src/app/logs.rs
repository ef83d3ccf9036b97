//! Paths of container logs, and log rotation.

use crate::{
    config::KubeletConfig,
    cri::RuntimeClient,
    runtime::kuberuntime::log_paths,
    runtime::logs::{LogPath, rotation},
    state::pod_cache::PodCache,
};
use std::{path::PathBuf, sync::Arc};

/// The directory of log links, which collectors read, for pod logs in the default directory.
const LOG_LINKS: &str = "/var/log/containers";

/// The path of a container's log.
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
    let policy = rotation::RotationPolicy {
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

/// The directory of log links. It is beside the pod logs if those are not in the default directory.
pub(super) fn links(logs: &std::path::Path) -> PathBuf {
    match (logs == std::path::Path::new("/var/log/pods"), logs.parent()) {
        (false, Some(parent)) => parent.join("containers"),
        _ => PathBuf::from(LOG_LINKS),
    }
}
