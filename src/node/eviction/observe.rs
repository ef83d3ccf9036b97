//! How much is left of what pods use up.

use super::decide::{Observation, Observations};
use super::thresholds::Signal;
use crate::host::cgroup::{CgroupFs, Depth, Handles, Scratch};
use crate::host::{FilesystemUsage, filesystem_usage, proc};
use std::path::{Path, PathBuf};

/// Where to measure.
#[derive(Clone, Debug)]
pub struct Places {
    /// The kubelet's directory.
    pub root: PathBuf,
    /// The directory of images, once the runtime has said it.
    pub images: Option<PathBuf>,
    /// Cgroups are of version 2.
    pub cgroup_v2: bool,
}

/// A measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// By signal.
    pub observations: Observations,
    /// Images have a file system of their own.
    pub dedicated_image_fs: bool,
}

/// Measures. Blocking; for ever, where a disk does not answer.
pub fn measure(places: &Places) -> Measured {
    let mut measured = Measured::default();
    if let Some(memory) = memory(places.cgroup_v2) {
        measured
            .observations
            .insert(Signal::MemoryAvailable, memory);
    }
    if let Some(pids) = pids() {
        measured.observations.insert(Signal::PidAvailable, pids);
    }
    let node = filesystem_usage(&places.root).ok();
    let signals = (Signal::NodeFsAvailable, Signal::NodeFsInodesFree);
    disk(&mut measured.observations, node, signals);
    if let Some(images) = &places.images {
        let signals = (Signal::ImageFsAvailable, Signal::ImageFsInodesFree);
        disk(
            &mut measured.observations,
            filesystem_usage(images).ok(),
            signals,
        );
        measured.dedicated_image_fs = device(images) != device(&places.root);
    }
    measured
}

fn disk(
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

/// What processes use is what cannot simply be taken back.
fn memory(v2: bool) -> Option<Observation> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let info = proc::parse_meminfo(&info);
    let cgroups = CgroupFs::new("/sys/fs/cgroup", v2);
    let (mut handles, mut scratch) = (Handles::default(), Scratch::default());
    let used = if v2 {
        cgroups.memory_of_machine(&info, &mut scratch)
    } else {
        let mut usage = cgroups.pulse("/", &mut handles, &mut scratch).ok()?;
        let wanted = (Depth::Core, false, false);
        cgroups.complete("/", wanted, &mut usage, &mut handles, &mut scratch);
        usage.memory?
    };
    let of = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
    Some(Observation {
        available: of(info.total.saturating_sub(used.working_set())),
        capacity: of(info.total),
    })
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
        let places = Places {
            root: "/".into(),
            images: Some("/proc".into()),
            cgroup_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        };
        let measured = measure(&places);
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
        assert!(measured.dedicated_image_fs);
    }
}
