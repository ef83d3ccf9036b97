//! The files of container logs: removals, and symlinks for log collectors.

use super::generate::container_files::link_log;
use super::log_paths;
use crate::base::if_exists;
use crate::base::panics::PanicScope;
use crate::model::{ContainerId, ContainerStatus, Pod, PodUid};
use crate::state::pod_cache::PodRef;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};
use tokio::time::timeout;

/// How long the start of a container waits for its link; it is made even if that takes longer.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);

/// Manages the pod log directories and `/var/log/containers`.
pub(super) struct ContainerLogFiles {
    logs: PathBuf,
    links: Option<PathBuf>,
}

impl ContainerLogFiles {
    pub(super) fn new(logs: PathBuf, links: Option<PathBuf>) -> Self {
        Self { logs, links }
    }

    /// Removes all logs of a UID, whatever the names of the pods that had it, and dead links to them.
    pub(super) async fn remove_logs_of(&self, uid: &PodUid) {
        let (logs, links, uid) = (self.logs.clone(), self.links.clone(), uid.clone());
        let path = logs.display().to_string();
        blocking("remove logs of a removed pod", path, move || {
            remove_pod_logs(&logs, links.as_deref(), &uid)
        })
        .await;
    }

    /// Links the log that a container is going to write.
    pub(super) async fn add_link(&self, pod: &Pod, name: &str, id: &ContainerId, log_path: &str) {
        let Some(links) = &self.links else { return };
        let pod_ref = PodRef::of(pod);
        let paths = log_paths::pod_logs_dir(&self.logs, &pod_ref).and_then(|dir| {
            Ok((dir.join(log_path), log_paths::log_symlink(links, &pod_ref, name, id.as_str())?))
        });
        let Ok((log, link)) = paths else { return };
        let path = link.display().to_string();
        // In a task of its own: work on the thread of this one would hold the pod's sync for as long as the disk hangs.
        let linking = blocking("link a log", path.clone(), move || link_log(&log, &link));
        let linking = crate::base::spawn(PanicScope::Other, linking);
        if timeout(LINK_TIMEOUT, linking).await.is_err() {
            tracing::warn!(path, "Timed out linking a log, going on without it");
        }
    }

    /// Removes the log of a container whose creation failed, if empty: a log file raises the next restart count.
    pub(super) async fn remove_unused(&self, pod: &Pod, log_path: &str) {
        let Ok(directory) = log_paths::pod_logs_dir(&self.logs, &PodRef::of(pod)) else {
            return;
        };
        let log = directory.join(log_path);
        let path = log.display().to_string();
        blocking("remove an unused log", path, move || remove_empty(&log)).await;
    }

    /// Removes the link alone.
    pub(super) async fn remove_link(&self, pod_ref: &PodRef, container: &ContainerStatus) {
        let Some(link) = self.link_of(pod_ref, container) else {
            return;
        };
        let path = link.display().to_string();
        blocking("remove a link to a log", path, move || {
            if_exists(fs::remove_file(link)).map(drop)
        })
        .await;
    }

    /// Removes the log of one instance, rotated files included, and its link.
    pub(super) async fn remove_container_logs(
        &self,
        pod_ref: &PodRef,
        container: &ContainerStatus,
    ) {
        let restart_count = container.restart_count;
        let select = move |number| number == restart_count;
        self.remove("remove logs", pod_ref, container, select).await;
    }

    /// Removes the link of an instance whose log is kept, and the logs of earlier instances.
    pub(super) async fn retire_container_logs(
        &self,
        pod_ref: &PodRef,
        container: &ContainerStatus,
    ) {
        let kept = container.restart_count;
        let select = move |number| number < kept;
        self.remove("remove old logs", pod_ref, container, select).await;
    }

    /// Removes an instance's link and the logs with matching restart counts.
    async fn remove(
        &self,
        what: &'static str,
        pod_ref: &PodRef,
        container: &ContainerStatus,
        select: impl Fn(u32) -> bool + Send + 'static,
    ) {
        let Ok(directory) = log_paths::container_logs_dir(&self.logs, pod_ref, &container.name)
        else {
            return;
        };
        let link = self.link_of(pod_ref, container);
        let path = directory.display().to_string();
        blocking(what, path, move || {
            if let Some(link) = link {
                if_exists(fs::remove_file(link))?;
            }
            remove_logs(&directory, select)
        })
        .await;
    }

    fn link_of(&self, pod_ref: &PodRef, container: &ContainerStatus) -> Option<PathBuf> {
        let links = self.links.as_ref()?;
        log_paths::log_symlink(links, pod_ref, &container.name, container.id.as_str()).ok()
    }
}

/// Removes the log directories of a UID, and the dead links to its logs.
fn remove_pod_logs(logs: &Path, links: Option<&Path>, uid: &PodUid) -> io::Result<()> {
    let is_of_pod = |directory: &OsStr| {
        let pod_ref = log_paths::pod_of_logs(&directory.to_string_lossy());
        pod_ref.is_some_and(|pod_ref| pod_ref.uid == *uid)
    };
    for entry in entries(logs)? {
        let entry = entry?;
        if is_of_pod(&entry.file_name()) && entry.file_type()?.is_dir() {
            let path = entry.path();
            tracing::debug!(path = %path.display(), "Removing logs of a removed pod");
            fs::remove_dir_all(path)?;
        }
    }
    let Some(links) = links else { return Ok(()) };
    for entry in entries(links)? {
        let link = entry?.path();
        // Anything but a link belongs to another program.
        let Ok(target) = fs::read_link(&link) else {
            continue;
        };
        let below = target.strip_prefix(logs).ok();
        let directory = below.and_then(|below| below.iter().next());
        if directory.is_some_and(is_of_pod)
            && matches!(if_exists(target.symlink_metadata()), Ok(None))
        {
            fs::remove_file(link)?;
        }
    }
    Ok(())
}

/// Removes the logs of instances by their numbers, rotated files included.
fn remove_logs(directory: &Path, select: impl Fn(u32) -> bool) -> io::Result<()> {
    for entry in entries(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if log_paths::restart_count_of_log(&name.to_string_lossy()).is_some_and(&select) {
            if_exists(fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    Ok(if_exists(fs::read_dir(directory))?.into_iter().flatten())
}

fn remove_empty(log: &Path) -> io::Result<()> {
    match fs::symlink_metadata(log) {
        Ok(found) if found.is_file() && found.len() == 0 => {
            if_exists(fs::remove_file(log)).map(drop)
        }
        found => if_exists(found).map(drop),
    }
}

async fn blocking(
    what: &'static str,
    path: String,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) {
    let done = crate::base::run_file_io(work).await;
    if let Ok(Err(error)) = done {
        tracing::warn!(path, err = %error, "Failed to {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_logs_of_pods_are_removed_with_their_links() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, links) = (dir.path().join("pods"), dir.path().join("containers"));
        for name in ["shop_a_u1/main", "shop_b_u2/main", "lost+found", "two_parts"] {
            fs::create_dir_all(logs.join(name)).unwrap();
        }
        fs::create_dir(&links).unwrap();
        fs::write(logs.join("shop_file_u3"), "").unwrap();
        symlink(dir.path(), logs.join("shop_link_u4")).unwrap();
        fs::write(logs.join("shop_b_u2/main/0.log"), "x").unwrap();
        let link = |name: &str, to: &Path| symlink(to, links.join(name)).unwrap();
        link("dead", &logs.join("shop_c_u5/main/0.log"));
        link("live", &logs.join("shop_b_u2/main/0.log"));
        link("elsewhere", Path::new("/nowhere/shop_d_u6/main/0.log"));
        fs::write(links.join("file"), "").unwrap();
        for uid in ["u1", "u3", "u4", "u5", "u6"] {
            remove_pod_logs(&logs, Some(&links), &uid.into()).unwrap();
        }
        assert!(!logs.join("shop_a_u1").exists());
        for left in
            ["shop_b_u2/main/0.log", "lost+found", "two_parts", "shop_file_u3", "shop_link_u4"]
        {
            assert!(logs.join(left).symlink_metadata().is_ok(), "{left}");
        }
        let names = fs::read_dir(&links).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["elsewhere", "file", "live"]);
        remove_pod_logs(&dir.path().join("no"), None, &"u1".into()).unwrap();
    }

    #[test]
    fn a_log_that_nothing_was_written_to_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [empty, used] = ["0.log", "1.log"].map(|name| dir.path().join(name));
        fs::write(&empty, "").unwrap();
        fs::write(&used, "x").unwrap();
        for log in [&empty, &used, &dir.path().join("2.log")] {
            remove_empty(log).unwrap();
        }
        assert!(!empty.exists() && used.exists());
    }

    #[test]
    fn an_instances_logs_go_with_their_rotated_files_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["1.log", "1.log.20260101-000000", "1.log.20260101-000000.gz", "11.log", "0.log"]
        {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        remove_logs(dir.path(), |number| number == 1).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["0.log", "11.log"]);
        remove_logs(&dir.path().join("missing"), |_| true).unwrap();
        remove_logs(dir.path(), |number| number < 11).unwrap();
        assert!(!dir.path().join("0.log").exists() && dir.path().join("11.log").exists());
    }
}
