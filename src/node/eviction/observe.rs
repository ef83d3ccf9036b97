//! Measures the eviction signals.

use super::decide::{Observation, Observations};
use super::rank::DiskLayout;
use super::thresholds::EvictionSignal;
use crate::host::cgroup::{CgroupFs, Depth, Handles, MemoryUsage, ReadOptions, Scratch};
use crate::host::{FilesystemUsage, filesystem_usage, proc};
use crate::images::gc::ImageFilesystems;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The directories and cgroups to measure.
#[derive(Clone, Debug)]
pub struct MeasuredPaths {
    /// The kubelet's directory.
    pub root: PathBuf,
    /// The directories of images and of writable layers, once the runtime has returned them.
    pub images: Option<ImageFilesystems>,
    /// Whether cgroup v2 is used.
    pub cgroup_v2: bool,
    /// The cgroup of all pods, with `cgroupsPerQOS`.
    pub pods: Option<String>,
}

/// A measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredSignals {
    /// The measurements by signal.
    pub observations: Observations,
    /// Which of the kubelet's directory, images and writable layers share a disk.
    pub layout: DiskLayout,
}

/// Measures memory and processes. Blocking.
pub fn memory_and_pids(paths: &MeasuredPaths) -> Observations {
    let of_pods = paths.pods.as_deref();
    let of_pods = of_pods.and_then(|path| memory_of_pods(path, paths.cgroup_v2));
    let measured = [
        (EvictionSignal::MemoryAvailable, memory()),
        (EvictionSignal::AllocatableMemoryAvailable, of_pods),
        (EvictionSignal::PidAvailable, pids()),
    ];
    let known = measured.into_iter();
    known.filter_map(|(signal, seen)| Some((signal, seen?))).collect()
}

/// Measures the disks. Blocking; may hang on a file system that does not respond.
pub fn disks(paths: &MeasuredPaths) -> MeasuredSignals {
    let mut measured = MeasuredSignals::default();
    let node = filesystem_usage(&paths.root).ok();
    let signals = (EvictionSignal::NodeFsAvailable, EvictionSignal::NodeFsInodesFree);
    observe_filesystem(&mut measured.observations, node, signals);
    if let Some(images) = &paths.images {
        let signals = (EvictionSignal::ImageFsAvailable, EvictionSignal::ImageFsInodesFree);
        observe_filesystem(
            &mut measured.observations,
            filesystem_usage(&images.images).ok(),
            signals,
        );
        measured.layout = DiskLayout::of(
            device(&paths.root),
            device(&images.images),
            images.layers.as_deref().and_then(device),
        );
    }
    measured
}

fn observe_filesystem(
    observations: &mut Observations,
    usage: Option<FilesystemUsage>,
    signals: (EvictionSignal, EvictionSignal),
) {
    let Some(usage) = usage else {
        return;
    };
    let mut add = |signal, available, capacity| {
        let of = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
        let observation = Observation { available: of(available), capacity: of(capacity) };
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

/// Available memory of the node: all memory but huge pages, minus the working set, which excludes page cache and kernel
/// memory that can be reclaimed. What a percentage refers to is without huge pages, too.
fn memory() -> Option<Observation> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let info = proc::parse_meminfo(&info);
    let is_known = info.total > 0;
    is_known.then(|| left_of(info.ordinary(), info.working_set()))
}

/// Available memory of all pods; `None` if their cgroup has no limit.
fn memory_of_pods(path: &str, v2: bool) -> Option<Observation> {
    let cgroups = CgroupFs::new(CGROUPS, v2);
    let mut scratch = Scratch::default();
    let limit = cgroups.limits(path, &mut scratch).memory?;
    let used = memory_of(&cgroups, path, &mut scratch)?;
    Some(left_of(limit, used.working_set()))
}

fn memory_of(cgroups: &CgroupFs, path: &str, scratch: &mut Scratch) -> Option<MemoryUsage> {
    let mut handles = Handles::default();
    let mut usage = cgroups.read_activity(path, &mut handles, scratch).ok()?;
    let options = ReadOptions { depth: Depth::Core, has_cpu_quota: false, keep_open: false };
    cgroups.complete(path, options, &mut usage, &mut handles, scratch);
    usage.memory
}

fn left_of(total: u64, working_set: u64) -> Observation {
    let of = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
    Observation { available: of(total.saturating_sub(working_set)), capacity: of(total) }
}

fn pids() -> Option<Observation> {
    let (running, max) = proc::thread_counts();
    let of = |amount| i64::try_from(amount).ok();
    let (running, capacity) = (of(running?)?, of(max?)?);
    Some(Observation { available: capacity.saturating_sub(running), capacity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured() {
        let paths = MeasuredPaths {
            root: "/".into(),
            images: Some(ImageFilesystems { images: "/proc".into(), layers: None }),
            cgroup_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            pods: Some("/no-such-cgroup".into()),
        };
        let mut measured = disks(&paths);
        measured.observations.extend(memory_and_pids(&paths));
        for signal in [
            EvictionSignal::MemoryAvailable,
            EvictionSignal::NodeFsAvailable,
            EvictionSignal::PidAvailable,
        ] {
            let Some(observation) = measured.observations.get(&signal) else {
                panic!("no {signal:?}: {measured:?}");
            };
            assert!(observation.available > 0, "{measured:?}");
            assert!(observation.available <= observation.capacity, "{measured:?}");
        }
        assert_eq!(measured.layout, DiskLayout::DedicatedImages);
        let of_pods = measured.observations.get(&EvictionSignal::AllocatableMemoryAvailable);
        assert_eq!(of_pods, None);
    }
}
