//! The directories that a volume needs because other volumes are mounted inside it. Pure.
//!
//! Containers mount these volumes read-only, so the runtime cannot create the directories.

use crate::model::{Pod, PodExt};
use anyhow::bail;
use std::path::{Component, Path, PathBuf};

/// The directories relative to the volume; of nested ones only the outermost (upstream's `getNestedMountpoints`).
pub(super) fn mount_points(pod: &Pod, volume: &str) -> anyhow::Result<Vec<String>> {
    let mut points = Vec::new();
    for container in pod.containers().iter().chain(pod.init_containers()) {
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        let mut all: Vec<PathBuf> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
        all.sort();
        for own in mounts.iter().filter(|mount| mount.name == volume) {
            let own = clean(&own.mount_path);
            if own.starts_with("..") {
                bail!("invalid container mount point {}", own.display());
            }
            add_outermost(&own, &all, &mut points);
        }
    }
    Ok(points)
}

fn add_outermost(own: &Path, all: &[PathBuf], points: &mut Vec<String>) {
    let mut outermost: Vec<&Path> = Vec::new();
    for path in all {
        let Ok(within) = path.strip_prefix(own) else {
            continue;
        };
        if within.as_os_str().is_empty() || outermost.iter().any(|outer| within.starts_with(outer))
        {
            continue;
        }
        outermost.push(within);
        let point = within.display().to_string();
        if !points.contains(&point) {
            points.push(point);
        }
    }
}

/// Removes `.` and resolves `..` lexically.
fn clean(path: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => match out.components().next_back() {
                Some(Component::Normal(_)) => {
                    out.pop();
                }
                Some(Component::RootDir) => {}
                _ => out.push(".."),
            },
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn points(mounts: &[(&str, &str)]) -> anyhow::Result<Vec<String>> {
        let mount = |(name, path): &(&str, &str)| json!({"name": name, "mountPath": path});
        let mounts: Vec<Value> = mounts.iter().map(mount).collect();
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [{"name": "c", "volumeMounts": mounts}]},
        }))
        .unwrap();
        mount_points(&pod, "v")
    }

    #[test]
    fn only_the_outermost_of_what_is_mounted_within_is_made() {
        for (mounts, expected) in [
            (&[("v", "/etc/v"), ("w", "/etc/w")][..], &[][..]),
            (&[("v", "/etc"), ("w", "/etc/w"), ("x", "/etc/w/x")], &["w"]),
            (&[("v", "/etc"), ("w", "/etc/a/b"), ("x", "/etc/ab")], &["a/b", "ab"]),
            (&[("v", "/a/"), ("w", "/a/./b//c/../d")], &["b/d"]),
            (&[("v", "/a"), ("w", "/ab")], &[]),
            (&[("w", "/a"), ("v", "/a/b")], &[]),
            (&[("v", "/a"), ("v", "/b"), ("w", "/a/x"), ("w", "/b/x")], &["x"]),
            (&[("v", "/a"), ("w", "/a/../../b")], &[]),
        ] {
            assert_eq!(points(mounts).unwrap(), expected, "{mounts:?}");
        }
    }

    #[test]
    fn a_place_outside_of_the_container_is_refused() {
        let error = points(&[("v", "../x"), ("w", "../x/y")]).unwrap_err();
        assert_eq!(error.to_string(), "invalid container mount point ../x");
    }
}
