//! Where logs are. Pure.

use crate::runtime::logs::LogPathFn;
use crate::state::pod_cache::PodRef;
use crate::volumes::{UnsafeName, component};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where links to container logs are gathered for log collectors.
pub const CONTAINER_LOGS_DIR: &str = "/var/log/containers";
/// Where pod logs are unless the configuration says otherwise.
const DEFAULT_POD_LOGS_DIR: &str = "/var/log/pods";
/// Longest file name of the usual file systems, bytes.
const MAX_FILE_NAME: usize = 255;

/// The log of each instance below this directory.
pub fn log_path(pod_logs_root: PathBuf) -> LogPathFn {
    Arc::new(move |pod_ref, container| {
        let attempt = container.restart_count;
        container_log_file(&pod_logs_root, pod_ref, &container.name, attempt).ok()
    })
}

/// The directory of log links. It is beside the pod logs if those are not in the default directory.
pub fn log_links_dir(pod_logs_root: &Path) -> PathBuf {
    if pod_logs_root == Path::new(DEFAULT_POD_LOGS_DIR) {
        return PathBuf::from(CONTAINER_LOGS_DIR);
    }
    let beside = pod_logs_root.parent().map(|dir| dir.join("containers"));
    beside.unwrap_or_else(|| PathBuf::from(CONTAINER_LOGS_DIR))
}

/// `<podLogsDir>/<namespace>_<name>_<uid>`; fails if the name is not a single path component.
pub fn pod_logs_dir(pod_logs_dir: &Path, pod: &PodRef) -> Result<PathBuf, UnsafeName> {
    let name = format!("{}_{}_{}", pod.namespace, pod.name, pod.uid);
    Ok(pod_logs_dir.join(component(&name)?))
}

/// The pod whose logs a directory holds, by the directory's name; `None` for one that no kubelet created.
pub fn pod_of_logs(directory: &str) -> Option<PodRef> {
    // Only the UID may contain an underscore.
    let mut parts = directory.splitn(3, '_').filter(|part| !part.is_empty());
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    Some(PodRef { uid: uid.into(), name: name.into(), namespace: namespace.into() })
}

/// Directory of a container's logs.
pub fn container_logs_dir(
    pod_logs_root: &Path,
    pod: &PodRef,
    container: &str,
) -> Result<PathBuf, UnsafeName> {
    Ok(pod_logs_dir(pod_logs_root, pod)?.join(component(container)?))
}

/// The log file of one instance relative to the pod's directory: `NAME/ATTEMPT.log`.
pub fn container_log_path(container: &str, restart_count: u32) -> Result<String, UnsafeName> {
    Ok(format!("{}/{restart_count}.log", component(container)?))
}

/// The log file of one instance: the `log_directory` of its sandbox joined with its `log_path`, as the runtime does.
pub fn container_log_file(
    pod_logs_root: &Path,
    pod: &PodRef,
    container: &str,
    restart_count: u32,
) -> Result<PathBuf, UnsafeName> {
    let file = container_log_path(container, restart_count)?;
    Ok(pod_logs_dir(pod_logs_root, pod)?.join(file))
}

/// The link for log collectors: `<pod>_<namespace>_<container>-<id>.log`, its name cut to what a
/// file system takes.
pub fn log_symlink(
    directory: &Path,
    pod: &PodRef,
    container: &str,
    container_id: &str,
) -> Result<PathBuf, UnsafeName> {
    const SUFFIX: &str = ".log";
    let mut name = format!("{}_{}_{container}-{container_id}", pod.name, pod.namespace);
    name.truncate(name.floor_char_boundary(MAX_FILE_NAME - SUFFIX.len()));
    name.push_str(SUFFIX);
    Ok(directory.join(component(&name)?))
}

/// The restart count of the next instance by the files of earlier ones, rotated files included:
/// one more than the highest `<n>.log…`, else 0.
pub fn restart_count_from_logs<'a>(file_names: impl IntoIterator<Item = &'a str>) -> u32 {
    let counts = file_names.into_iter().filter_map(restart_count_of_log);
    counts.max().map_or(0, |highest| highest.saturating_add(1))
}

/// The restart count in a log file's name, rotated or not.
pub fn restart_count_of_log(file_name: &str) -> Option<u32> {
    let (number, rest) = file_name.split_once('.')?;
    let is_log = rest == "log" || rest.starts_with("log.");
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    (is_log && digits).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::kuberuntime::fixtures::pod;
    use serde_json::json;

    #[test]
    fn logs_are_where_collectors_look_for_them() {
        let pod = pod(json!({"containers": []}));
        let root = Path::new("/var/log/pods");
        assert_eq!(
            container_logs_dir(root, &PodRef::of(&pod), "c").unwrap(),
            Path::new("/var/log/pods/shop_web_u-1/c")
        );
        assert_eq!(container_log_path("c", 7).unwrap(), "c/7.log");
        assert_eq!(
            log_symlink(Path::new(CONTAINER_LOGS_DIR), &PodRef::of(&pod), "c", "abc").unwrap(),
            Path::new("/var/log/containers/web_shop_c-abc.log")
        );
    }

    #[test]
    fn a_pod_is_parsed_from_its_log_directory() {
        let pod_ref = pod_of_logs("shop_web-n1_a_uid-of-a-user").unwrap();
        assert_eq!((&*pod_ref.namespace, &*pod_ref.name), ("shop", "web-n1"));
        assert_eq!(pod_ref.uid.as_str(), "a_uid-of-a-user");
        for other in ["", "shop", "shop_web", "shop_web_", "_web_u", "shop__u", "web.log"] {
            assert_eq!(pod_of_logs(other), None, "{other}");
        }
    }

    #[test]
    fn a_long_link_name_is_cut_to_what_file_systems_take() {
        let pod = pod(json!({"containers": []}));
        let link = log_symlink(Path::new("/l"), &PodRef::of(&pod), &"é".repeat(200), "id").unwrap();
        let name = link.file_name().unwrap().to_str().unwrap();
        assert!(name.len() <= 255 && name.len() > 250, "{}", name.len());
        assert!(name.ends_with(".log"));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let mut pod = pod(json!({"containers": []}));
        assert!(container_log_path("../c", 0).is_err());
        assert!(container_log_path("", 0).is_err());
        pod.metadata.uid = Some("x/../../../etc".into());
        assert!(pod_logs_dir(Path::new("/var/log/pods"), &PodRef::of(&pod)).is_err());
        assert!(log_symlink(Path::new("/l"), &PodRef::of(&pod), "a/b", "id").is_err());
    }

    #[test]
    fn the_next_restart_count_is_one_more_than_the_highest_log() {
        for (names, count) in [
            (&[][..], 0),
            (&["0.log"], 1),
            (&["0.log", "10.log", "2.log"], 11),
            (&["3.log.20240101-000000", "1.log"], 4),
            (&["3.log.gz", "3.logs", "x.log", "-1.log", "+5.log", ".log", "7.txt"], 4),
            (&["99999999999999999999.log"], 0),
            (&["4294967295.log"], u32::MAX),
        ] {
            assert_eq!(restart_count_from_logs(names.iter().copied()), count, "{names:?}");
        }
    }
}
