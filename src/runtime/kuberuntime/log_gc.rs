//! Removes pod log directories and the links to them.

use super::log_paths::pod_of_logs;
use crate::{
    base::{if_exists, run_file_io},
    state::pod_cache::PodRef,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Removes the log directories of the pods that `select` returns true for, and dead links to their logs.
pub(super) async fn remove_logs(
    logs: PathBuf,
    links: Option<PathBuf>,
    select: impl Fn(&PodRef) -> bool + Send + 'static,
) {
    let removed = run_file_io(move || {
        let directories = directories(&logs)?.into_iter();
        for (path, _) in directories.filter(|(_, pod_ref)| select(pod_ref)) {
            tracing::info!(path = %path.display(), "Removing logs of a removed pod");
            fs::remove_dir_all(path)?;
        }
        for (link, target, pod_ref) in log_links(links.as_deref(), &logs)? {
            if select(&pod_ref) && is_gone(&target) {
                fs::remove_file(link)?;
            }
        }
        io::Result::Ok(())
    });
    let error = match removed.await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(err = error, "Failed to remove logs of a removed pod");
}

/// The directories of pods below the one for logs. Links and entries without a pod's name are left out.
fn directories(logs: &Path) -> io::Result<Vec<(PathBuf, PodRef)>> {
    let mut found = Vec::new();
    for entry in entries(logs)? {
        let entry = entry?;
        let pod_ref = pod_of_logs(&entry.file_name().to_string_lossy());
        if let Some(pod_ref) = pod_ref
            && entry.file_type()?.is_dir()
        {
            found.push((entry.path(), pod_ref));
        }
    }
    Ok(found)
}

/// The links to logs of pods, with their targets.
fn log_links(links: Option<&Path>, logs: &Path) -> io::Result<Vec<(PathBuf, PathBuf, PodRef)>> {
    let mut found = Vec::new();
    let Some(links) = links else {
        return Ok(found);
    };
    for entry in entries(links)? {
        let link = entry?.path();
        // Anything but a link belongs to another program.
        let Ok(target) = fs::read_link(&link) else {
            continue;
        };
        let directory = target
            .strip_prefix(logs)
            .ok()
            .and_then(|below| below.iter().next());
        if let Some(pod_ref) = directory.and_then(|name| pod_of_logs(&name.to_string_lossy())) {
            found.push((link, target, pod_ref));
        }
    }
    Ok(found)
}

fn entries(directory: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    Ok(if_exists(fs::read_dir(directory))?.into_iter().flatten())
}

fn is_gone(path: &Path) -> bool {
    matches!(if_exists(path.symlink_metadata()), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, os::unix::fs::symlink};

    /// UIDs of pods that have a log directory, or links to logs that are gone.
    fn pods_with_logs(logs: &Path, links: Option<&Path>) -> Vec<String> {
        let directories = directories(logs).unwrap().into_iter();
        let dead = log_links(links, logs).unwrap().into_iter();
        let dead = dead.filter(|(_, target, _)| is_gone(target));
        let owners = directories
            .map(|(_, pod_ref)| pod_ref)
            .chain(dead.map(|(_, _, pod_ref)| pod_ref));
        let uids: BTreeSet<_> = owners.map(|pod_ref| pod_ref.uid.to_string()).collect();
        uids.into_iter().collect()
    }

    #[tokio::test]
    async fn only_logs_of_pods_are_found_and_removed_with_their_links() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, links) = (dir.path().join("pods"), dir.path().join("containers"));
        for name in [
            "shop_a_u1/main",
            "shop_b_u2/main",
            "lost+found",
            "two_parts",
        ] {
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
        assert_eq!(pods_with_logs(&logs, Some(&links)), ["u1", "u2", "u5"]);
        for uid in ["u1", "u3", "u4", "u5", "u6"] {
            let select = move |pod_ref: &PodRef| pod_ref.uid == uid.into();
            remove_logs(logs.clone(), Some(links.clone()), select).await;
        }
        assert_eq!(pods_with_logs(&logs, Some(&links)), ["u2"]);
        for left in [
            "shop_b_u2/main/0.log",
            "lost+found",
            "two_parts",
            "shop_file_u3",
            "shop_link_u4",
        ] {
            assert!(logs.join(left).symlink_metadata().is_ok(), "{left}");
        }
        let names = fs::read_dir(&links)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["elsewhere", "file", "live"]);
        assert!(pods_with_logs(&dir.path().join("no"), None).is_empty());
    }
}
