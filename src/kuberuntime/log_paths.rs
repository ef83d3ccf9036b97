//! Where logs are. Pure.

use crate::model::{Pod, PodExt};
use crate::volumes::{UnsafeName, component};
use std::path::{Path, PathBuf};

/// Where links to container logs are gathered for log collectors.
pub const CONTAINER_LOGS_DIR: &str = "/var/log/containers";
/// Longest file name of the usual file systems, bytes.
const LONGEST_FILE_NAME: usize = 255;

/// `<podLogsDir>/<namespace>_<name>_<uid>`; fails for a pod that would lead elsewhere.
pub fn pod_logs_dir(pod_logs_dir: &Path, pod: &Pod) -> Result<PathBuf, UnsafeName> {
    let name = format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid());
    Ok(pod_logs_dir.join(component(&name)?))
}

/// Directory of a container's logs.
pub fn container_logs_dir(
    pod_logs_root: &Path,
    pod: &Pod,
    container: &str,
) -> Result<PathBuf, UnsafeName> {
    Ok(pod_logs_dir(pod_logs_root, pod)?.join(component(container)?))
}

/// The log file of one instance relative to the pod's directory: `NAME/ATTEMPT.log`.
pub fn container_log_path(container: &str, restart_count: u32) -> Result<String, UnsafeName> {
    Ok(format!("{}/{restart_count}.log", component(container)?))
}

/// The link for log collectors: `<pod>_<namespace>_<container>-<id>.log`, its name cut to what a
/// file system takes.
pub fn log_symlink(
    directory: &Path,
    pod: &Pod,
    container: &str,
    container_id: &str,
) -> Result<PathBuf, UnsafeName> {
    const SUFFIX: &str = ".log";
    let mut name = format!("{}_{container}-{container_id}", pod.full_name());
    name.truncate(name.floor_char_boundary(LONGEST_FILE_NAME - SUFFIX.len()));
    name.push_str(SUFFIX);
    Ok(directory.join(component(&name)?))
}

/// The restart count of the next instance by the files of earlier ones, rotated files included:
/// one more than the highest `<n>.log…`, else 0.
pub fn restart_count_from_logs<'a>(file_names: impl IntoIterator<Item = &'a str>) -> u32 {
    let counts = file_names.into_iter().filter_map(|name| {
        let (number, rest) = name.split_once('.')?;
        let is_log = rest == "log" || rest.starts_with("log.");
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        (is_log && digits).then(|| number.parse::<u32>().ok())?
    });
    counts.max().map_or(0, |highest| highest.saturating_add(1))
}
