//! The steps that take a pod's volumes down. Pure.
//!
//! What they are about was recorded before it was made; the record goes with the last step, so that after a crash
//! between two of them the steps are taken again.

use super::{PodDir, paths::VolumePlugin};
use crate::host::MountEntry;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TearDownStep {
    /// What this kubelet mounted is unmounted.
    Unmount(PathBuf),
    /// Nothing is mounted below the pod's directory any more, or the steps end here.
    CheckMounts,
    /// A tree is removed.
    Remove(PathBuf),
    /// The projects of volumes that are gone are given back.
    ReleaseProjects,
    /// The record is removed.
    Forget,
}

/// Where this kubelet mounts and makes things for a pod; sub-paths first, as they are mounted from
/// volumes.
pub(super) fn places(pod: &PodDir) -> Vec<PathBuf> {
    let volumes = VolumePlugin::ALL.map(|plugin| pod.volumes_of(plugin));
    std::iter::once(pod.sub_paths()).chain(volumes).collect()
}

/// The steps for a pod, by all mounts of the node, oldest first.
///
/// # Errors
/// Something is mounted there that this kubelet did not mount.
pub(super) fn tear_down(pod: &PodDir, mounts: &[MountEntry]) -> Result<Vec<TearDownStep>, PathBuf> {
    let places = places(pod);
    let is_own = |path: &MountEntry| places.iter().any(|place| path.is_beneath(place));
    let below = || mounts.iter().filter(|mount| mount.is_beneath(pod.path()));
    if let Some(foreign) = below().find(|mount| !is_own(mount)) {
        return Err(foreign.mount_point.clone());
    }
    // The youngest first: mounts on mounts.
    let unmount = |mount: &MountEntry| TearDownStep::Unmount(mount.mount_point.clone());
    let mut steps: Vec<_> = below().rev().map(unmount).collect();
    if !steps.is_empty() {
        steps.push(TearDownStep::CheckMounts);
    }
    // The notes go first: after a crash in between, a volume is set up afresh.
    let trees = std::iter::once(pod.empty_dir_notes()).chain(places);
    steps.extend(trees.map(TearDownStep::Remove));
    steps.push(TearDownStep::ReleaseProjects);
    steps.push(TearDownStep::Forget);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn mount(path: &Path) -> MountEntry {
        MountEntry {
            mount_point: path.into(),
            root: "/".into(),
            fs_type: "tmpfs".into(),
            source: "tmpfs".into(),
        }
    }

    #[test]
    fn mounts_go_from_the_youngest_then_notes_then_volumes_and_the_record_is_last() {
        let pod = PodDir::at(Path::new("/k/pods/u1"));
        let secret = pod.volume(VolumePlugin::Secret, "s").unwrap();
        let bound = pod.sub_path("s", "c", 0).unwrap();
        let elsewhere = Path::new("/k/pods/u10/volumes/x");
        let mounts = [&*secret, elsewhere, &*bound].map(mount);
        let steps = tear_down(&pod, &mounts).unwrap();
        use TearDownStep::{CheckMounts, Forget, ReleaseProjects, Remove, Unmount};
        let first = [
            Unmount(bound),
            Unmount(secret),
            CheckMounts,
            Remove(pod.empty_dir_notes()),
            Remove(pod.sub_paths()),
        ];
        assert_eq!(steps[..5], first);
        assert_eq!(steps[steps.len() - 2..], [ReleaseProjects, Forget]);
        let removed = |step: &&TearDownStep| matches!(step, Remove(_));
        assert_eq!(
            steps.iter().filter(removed).count(),
            2 + VolumePlugin::ALL.len()
        );
        let unmounted = tear_down(&pod, &[]).unwrap();
        assert_eq!(unmounted[0], Remove(pod.empty_dir_notes()));
    }

    #[test]
    fn what_others_mounted_stops_everything() {
        let pod = PodDir::at(Path::new("/k/pods/u1"));
        let foreign = pod.path().join("volumes/kubernetes.io~csi/x/mount");
        assert_eq!(tear_down(&pod, &[mount(&foreign)]), Err(foreign));
    }
}
