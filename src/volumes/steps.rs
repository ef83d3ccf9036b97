//! The steps that tear down a pod's volumes. Pure.
//!
//! Volumes are recorded before they are created, and the record is removed in the last step, so that after a crash
//! during the teardown all steps are repeated.

use super::{PodDir, kinds};
use crate::host::MountEntry;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TearDownStep {
    /// Unmounts a mount of this kubelet.
    Unmount(PathBuf),
    /// Fails if anything is still mounted below the pod's directory.
    CheckMounts,
    /// Removes a directory tree.
    Remove(PathBuf),
    /// Releases the quota projects of removed volumes.
    ReleaseProjects,
    /// Removes the record.
    RemoveRecord,
}

/// The directories with this kubelet's mounts and volumes of a pod; sub-paths first, because they are mounts of
/// volumes.
pub(super) fn directories(pod: &PodDir) -> Vec<PathBuf> {
    let volumes = kinds::plugins().map(|plugin| pod.volumes_of(plugin));
    std::iter::once(pod.sub_paths()).chain(volumes).collect()
}

/// The steps for a pod. `mounts` are all mounts of the node, oldest first.
///
/// # Errors
/// Something that this kubelet did not mount is mounted below the pod's directory.
pub(super) fn tear_down(pod: &PodDir, mounts: &[MountEntry]) -> Result<Vec<TearDownStep>, PathBuf> {
    let directories = directories(pod);
    let is_own = |path: &MountEntry| directories.iter().any(|directory| path.is_beneath(directory));
    let below = || mounts.iter().filter(|mount| mount.is_beneath(pod.path()));
    if let Some(foreign) = below().find(|mount| !is_own(mount)) {
        return Err(foreign.mount_point.clone());
    }
    // The newest mount first, because mounts may be stacked.
    let unmount = |mount: &MountEntry| TearDownStep::Unmount(mount.mount_point.clone());
    let mut steps: Vec<_> = below().rev().map(unmount).collect();
    if !steps.is_empty() {
        steps.push(TearDownStep::CheckMounts);
    }
    // The markers are removed first, so that after a crash the volume is set up from scratch.
    let trees = std::iter::once(pod.empty_dir_markers()).chain(directories);
    steps.extend(trees.map(TearDownStep::Remove));
    steps.push(TearDownStep::ReleaseProjects);
    steps.push(TearDownStep::RemoveRecord);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn mount(path: &Path) -> MountEntry {
        MountEntry {
            mount_point: path.into(),
            device: "0:1".into(),
            root: "/".into(),
            fs_type: "tmpfs".into(),
            source: "tmpfs".into(),
        }
    }

    #[test]
    fn mounts_go_from_the_youngest_then_notes_then_volumes_and_the_record_is_last() {
        let pod = PodDir::at(Path::new("/k/pods/u1"));
        let secret = pod.volume(kinds::content::SECRET, "s").unwrap();
        let bound = pod.sub_path("s", "c", 0).unwrap();
        let elsewhere = Path::new("/k/pods/u10/volumes/x");
        let mounts = [&*secret, elsewhere, &*bound].map(mount);
        let steps = tear_down(&pod, &mounts).unwrap();
        use TearDownStep::{CheckMounts, ReleaseProjects, Remove, RemoveRecord, Unmount};
        let first = [
            Unmount(bound),
            Unmount(secret),
            CheckMounts,
            Remove(pod.empty_dir_markers()),
            Remove(pod.sub_paths()),
        ];
        assert_eq!(steps[..5], first);
        assert_eq!(steps[steps.len() - 2..], [ReleaseProjects, RemoveRecord]);
        let removed = |step: &&TearDownStep| matches!(step, Remove(_));
        assert_eq!(steps.iter().filter(removed).count(), 2 + kinds::plugins().count());
        let unmounted = tear_down(&pod, &[]).unwrap();
        assert_eq!(unmounted[0], Remove(pod.empty_dir_markers()));
    }

    #[test]
    fn what_others_mounted_stops_everything() {
        let pod = PodDir::at(Path::new("/k/pods/u1"));
        let foreign = pod.path().join("volumes/kubernetes.io~csi/x/mount");
        assert_eq!(tear_down(&pod, &[mount(&foreign)]), Err(foreign));
    }
}
