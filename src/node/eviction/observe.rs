//! Measures the eviction signals.

use super::decide::{Observation, Observations};
use super::rank::Layout;
use super::thresholds::Signal;
use crate::host::cgroup::{CgroupFs, Depth, Handles, MemoryUsage, Scratch};
use crate::host::{FilesystemUsage, filesystem_usage, proc};
use crate::images::gc::Mounts;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The directories and cgroups to measure.
#[derive(Clone, Debug)]
pub struct MeasuredPlaces {
    /// The kubelet's directory.
    pub root: PathBuf,
    /// The directories of images and of writable layers, once the runtime has returned them.
    pub images: Option<Mounts>,
    /// Cgroup v2 is used.
    pub cgroup_v2: bool,
    /// The cgroup of all pods, with `cgroupsPerQOS`.
    pub pods: Option<String>,
}

/// A measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredSignals {
    /// By signal.
    pub observations: Observations,
    /// What shares a disk.
    pub layout: Layout,
}

/// Measures memory and processes. Blocking.
pub fn memory_and_pids(places: &MeasuredPlaces) -> Observations {
    let of_pods = places.pods.as_deref();
    let of_pods = of_pods.and_then(|path| memory_of_pods(path, places.cgroup_v2));
    let measured = [
        (Signal::MemoryAvailable, memory(places.cgroup_v2)),
        (Signal::AllocatableMemoryAvailable, of_pods),
        (Signal::PidAvailable, pids()),
    ];
    let known = measured.into_iter();
    known
        .filter_map(|(signal, seen)| Some((signal, seen?)))
        .collect()
}

/// Measures the disks. Blocking; may hang on a file system that does not answer.
pub fn disks(places: &MeasuredPlaces) -> MeasuredSignals {
    let mut measured = MeasuredSignals::default();
    let node = filesystem_usage(&places.root).ok();
    let signals = (Signal::NodeFsAvailable, Signal::NodeFsInodesFree);
    observe_filesystem(&mut measured.observations, node, signals);
    if let Some(images) = &places.images {
        let signals = (Signal::ImageFsAvailable, Signal::ImageFsInodesFree);
        observe_filesystem(
            &mut measured.observations,
            filesystem_usage(&images.images).ok(),
            signals,
        );
        measured.layout = Layout::of(
            device(&places.root),
            device(&images.images),
            images.layers.as_deref().and_then(device),
        );
    }
    measured
}

fn observe_filesystem(
    observations: &mut Observations,
    usage: Option<FilesystemUsage>,
    signals: (Signal, Signal),
) {
    let Some(usage) = usage else {
        return;
    };
    let mut add = |signal, available, capacity| {
        let of = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
        let observation = Observation {
            available: of(available),
            capacity: of(capacity),
        };
        observations.insert(signal, observation);
    };
    add(signals.0, usage.available, usage.capacity);
    // Some file systems have no fixed number of inodes.
    if usage.inodes > 0 {
        add(signals.1, usage.inodes_free, usage.inodes);
    }
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// Available memory of the node: capacity minus the working set, which excludes page cache that the kernel can reclaim.
fn memory(v2: bool) -> Option<Observation> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let info = proc::parse_meminfo(&info);
    let cgroups = CgroupFs::new(CGROUPS, v2);
    let used = if v2 {
        cgroups.memory_of_machine(&info, &mut Scratch::default())
    } else {
        memory_of(&cgroups, "/", &mut Scratch::default())?
    };
    Some(left_of(info.total, &used))
}

/// Available memory of all pods; `None` if their cgroup has no limit.
fn memory_of_pods(path: &str, v2: bool) -> Option<Observation> {
    let cgroups = CgroupFs::new(CGROUPS, v2);
    let mut scratch = Scratch::default();
    let limit = cgroups.limits(path, &mut scratch).memory?;
    Some(left_of(limit, &memory_of(&cgroups, path, &mut scratch)?))
}

fn memory_of(cgroups: &CgroupFs, path: &str, scratch: &mut Scratch) -> Option<MemoryUsage> {
    let mut handles = Handles::default();
    let mut usage = cgroups.pulse(path, &mut handles, scratch).ok()?;
    let wanted = (Depth::Core, false, false);
    cgroups.complete(path, wanted, &mut usage, &mut handles, scratch);
    usage.memory
}

fn left_of(total: u64, used: &MemoryUsage) -> Observation {
    let of = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
    Observation {
        available: of(total.saturating_sub(used.working_set())),
        capacity: of(total),
    }
}

fn pids() -> Option<Observation> {
    let (running, most) = proc::thread_counts();
    let of = |amount| i64::try_from(amount).ok();
    let (running, capacity) = (of(running?)?, of(most?)?);
    Some(Observation {
        available: capacity.saturating_sub(running),
        capacity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured() {
        let places = MeasuredPlaces {
            root: "/".into(),
            images: Some(Mounts {
                images: "/proc".into(),
                layers: None,
            }),
            cgroup_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            pods: Some("/no-such-cgroup".into()),
        };
        let mut measured = disks(&places);
        measured.observations.extend(memory_and_pids(&places));
        for signal in [
            Signal::MemoryAvailable,
            Signal::NodeFsAvailable,
            Signal::PidAvailable,
        ] {
            let Some(observation) = measured.observations.get(&signal) else {
                panic!("no {signal:?}: {measured:?}");
            };
            assert!(observation.available > 0, "{measured:?}");
            assert!(
                observation.available <= observation.capacity,
                "{measured:?}"
            );
        }
        assert_eq!(measured.layout, Layout::DedicatedImages);
        let of_pods = measured
            .observations
            .get(&Signal::AllocatableMemoryAvailable);
        assert_eq!(of_pods, None);
    }
}
