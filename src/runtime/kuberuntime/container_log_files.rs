//! The files of container logs: removals, and symlinks for log collectors.

use super::{generate::container_files::link_log, log_gc, log_paths};
use crate::{
    base::if_exists,
    model::{ContainerId, ContainerStatus, Pod, PodUid},
    state::pod_cache::PodRef,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Manages the pod log directories and `/var/log/containers`.
pub(super) struct ContainerLogFiles {
    logs: PathBuf,
    links: Option<PathBuf>,
}

impl ContainerLogFiles {
    pub(super) fn new(logs: PathBuf, links: Option<PathBuf>) -> Self {
        Self { logs, links }
    }

    /// Removes all logs of a UID, whatever the names of the pods that had it.
    pub(super) async fn remove_logs_of(&self, uid: &PodUid) {
        let uid = uid.clone();
        let select = move |pod_ref: &PodRef| pod_ref.uid == uid;
        log_gc::remove_logs(self.logs.clone(), self.links.clone(), select).await;
    }

    /// Links the log that a container is going to write.
    pub(super) async fn add_link(&self, pod: &Pod, name: &str, id: &ContainerId, log_path: &str) {
        let Some(links) = &self.links else { return };
        let pod_ref = PodRef::of(pod);
        let paths = log_paths::pod_logs_dir(&self.logs, &pod_ref).and_then(|dir| {
            Ok((
                dir.join(log_path),
                log_paths::log_symlink(links, &pod_ref, name, id.as_str())?,
            ))
        });
        let Ok((log, link)) = paths else { return };
        let path = link.display().to_string();
        blocking("link a log", path, move || link_log(&log, &link)).await;
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
        self.remove("remove old logs", pod_ref, container, select)
            .await;
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

    /// Removes the log directory of a pod that is gone.
    pub(super) async fn remove_pod_logs(&self, pod_ref: &PodRef) {
        let Ok(directory) = log_paths::pod_logs_dir(&self.logs, pod_ref) else {
            return;
        };
        let path = directory.display().to_string();
        blocking("remove a pod's logs", path, move || {
            if_exists(fs::remove_dir_all(directory)).map(drop)
        })
        .await;
    }
}

/// Removes the logs of instances by their numbers, rotated files included.
fn remove_logs(directory: &Path, select: impl Fn(u32) -> bool) -> io::Result<()> {
    for entry in if_exists(fs::read_dir(directory))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        if log_paths::restart_count_of_log(&name.to_string_lossy()).is_some_and(&select) {
            if_exists(fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
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
        for name in [
            "1.log",
            "1.log.20260101-000000",
            "1.log.20260101-000000.gz",
            "11.log",
            "0.log",
        ] {
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
