//! Disk usage of directories. Walks are slow and wear disks, so directories are measured on request only, one at a
//! time, the oldest measurement first, and at most once per period.

use crate::{
    base::if_exists,
    host::{
        DiskUsage, FilesystemUsage, MountEntry, disk_usage, files_usage, filesystem_usage, mount,
        project_usage,
    },
    model::ProjectId,
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Directories with more entries than this are not measured.
const MAX_ENTRIES: u64 = 2_000_000;

/// How the usage of a directory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskMethod {
    /// By a walk, at most once in this period.
    Walk(Duration),
    /// By the files directly in the directory, or a single file, at most once in this period.
    Files(Duration),
    /// By the project quota of the directory, or by a walk if the quota cannot be read; at most once in this period.
    Project(ProjectId, Duration),
}

/// A measurement of a directory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DiskMeasurement {
    /// Time of the measurement, nanoseconds since the epoch.
    pub(super) at: i64,
    /// Usage; `None` if there are too many entries, or if the method yields none.
    pub(super) usage: Option<DiskUsage>,
    /// The file system, if the directory is a mount of its own.
    pub(super) filesystem: Option<FilesystemUsage>,
    /// The same time on the monotonic clock, for the period.
    measured_at: Instant,
}

impl DiskMeasurement {
    pub(super) fn now(usage: Option<DiskUsage>, filesystem: Option<FilesystemUsage>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            at: since.map_or(0, |at| i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)),
            usage,
            filesystem,
            measured_at: Instant::now(),
        }
    }
}

/// Latest measurements by directory.
pub(super) type DiskMeasurements = HashMap<PathBuf, DiskMeasurement>;

/// Measures directories and keeps the results. Clones share the results.
#[derive(Clone, Default)]
pub(super) struct DiskMeter {
    measurements: Arc<Mutex<DiskMeasurements>>,
    /// Directories whose project quota could not be read the last time, so that the failure is logged once.
    unreadable: Arc<Mutex<HashSet<PathBuf>>>,
}

impl DiskMeter {
    /// Measures the directories that are due, and removes the results of all others. Each result is available as soon
    /// as it is measured. Blocking; may take long. A file system that hangs delays all directories after it.
    pub(super) fn measure(&self, wanted: HashMap<PathBuf, DiskMethod>) {
        let mut due: Vec<(Option<Instant>, PathBuf, DiskMethod)> = Vec::new();
        {
            let mut measurements = self.measurements.lock();
            measurements.retain(|path, _| wanted.contains_key(path));
            let mut unreadable = self.unreadable.lock();
            unreadable.retain(|path| wanted.contains_key(path));
            for (path, how) in wanted {
                let before = measurements.get(&path).map(|measured| measured.measured_at);
                let period = match how {
                    DiskMethod::Walk(period)
                    | DiskMethod::Files(period)
                    | DiskMethod::Project(_, period) => period,
                };
                if before.is_none_or(|measured_at| measured_at.elapsed() >= period) {
                    due.push((before, path, how));
                }
            }
        }
        due.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        for (_, path, how) in due {
            let usage = if_exists(match how {
                DiskMethod::Walk(_) => disk_usage(&path, MAX_ENTRIES).map(Some),
                DiskMethod::Project(project, _) => self.of_project(&path, project).map(Some),
                DiskMethod::Files(_) => files_usage(&path, MAX_ENTRIES),
            });
            if let Ok(None) = usage {
                self.measurements.lock().remove(&path);
                continue;
            }
            let usage = usage.ok().flatten().flatten();
            let measured = DiskMeasurement::now(usage, None);
            self.measurements.lock().insert(path, measured);
        }
    }

    fn of_project(&self, path: &Path, project: ProjectId) -> io::Result<DiskUsage> {
        let error = match project_usage(path, project.0) {
            // At least one, because the directory itself belongs to the project.
            Ok(usage) if usage.inodes > 0 => {
                self.unreadable.lock().remove(path);
                return Ok(usage);
            }
            Ok(_) => io::Error::other("the file system counts no files of the project"),
            Err(error) => error,
        };
        let usage = disk_usage(path, MAX_ENTRIES)?;
        if self.unreadable.lock().insert(path.to_owned()) {
            tracing::warn!(path = %path.display(), project = project.0, err = %error, "Failed to read a project quota; usage is determined by walking");
        }
        Ok(usage)
    }

    /// The latest measurements.
    pub(super) fn latest(&self) -> DiskMeasurements {
        self.measurements.lock().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.measurements.lock().len()
    }
}

/// Usage and device of the file system that contains a path. Blocking.
pub(super) fn filesystem_of(path: &Path) -> Option<(FilesystemUsage, String)> {
    let usage = filesystem_usage(path).ok()?;
    let mounts = mount::list().unwrap_or_default();
    let holds = |mount: &&MountEntry| path.starts_with(&mount.mount_point);
    let depth = |mount: &&MountEntry| mount.mount_point.components().count();
    // With several mounts on one path, the last one is visible.
    let mount = mounts.iter().filter(holds).max_by_key(depth);
    let device = mount.map(|mount| mount.source.clone());
    Some((usage, device.unwrap_or_default()))
}

#[cfg(test)]
impl DiskMeasurement {
    /// A measurement with another time, for tests.
    pub(super) fn of(
        at: i64,
        usage: Option<DiskUsage>,
        filesystem: Option<FilesystemUsage>,
    ) -> Self {
        Self {
            at,
            ..Self::now(usage, filesystem)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{quota_disk::QuotaDisk, set_project};
    use std::fs;

    #[test]
    fn a_directory_is_not_walked_again_before_its_period_is_over() {
        let top = tempfile::tempdir().unwrap();
        let (seldom, often) = (top.path().join("a"), top.path().join("b"));
        for path in [&seldom, &often] {
            fs::create_dir(path).unwrap();
        }
        let meter = DiskMeter::default();
        let wanted = || {
            HashMap::from([
                (seldom.clone(), DiskMethod::Walk(Duration::from_secs(3600))),
                (often.clone(), DiskMethod::Walk(Duration::ZERO)),
                (top.path().join("gone"), DiskMethod::Walk(Duration::ZERO)),
            ])
        };
        meter.measure(wanted());
        for path in [&seldom, &often] {
            fs::write(path.join("file"), "x").unwrap();
        }
        meter.measure(wanted());
        let measurements = meter.latest();
        let inodes = |path: &PathBuf| measurements[path].usage.unwrap().inodes;
        assert_eq!((inodes(&seldom), inodes(&often)), (1, 2));
        assert_eq!(measurements.len(), 2);
        meter.measure(HashMap::new());
        assert_eq!(meter.len(), 0);
    }

    #[test]
    fn a_directory_whose_project_cannot_be_read_is_walked() {
        let top = tempfile::tempdir().unwrap();
        let meter = DiskMeter::default();
        let method = DiskMethod::Project(ProjectId(u32::MAX - 1), Duration::ZERO);
        let measure = || meter.measure(HashMap::from([(top.path().to_owned(), method)]));
        measure();
        measure();
        assert_eq!(meter.latest()[top.path()].usage.unwrap().inodes, 1);
        assert_eq!(meter.unreadable.lock().len(), 1);
        meter.measure(HashMap::new());
        assert_eq!(meter.unreadable.lock().len(), 0);
    }

    #[test]
    fn a_directory_with_a_project_is_measured_without_a_walk() {
        let files = std::env::var("QUOTA_FILES").map_or(2000, |files| files.parse().unwrap());
        for disk in QuotaDisk::all(400) {
            let (path, project) = (disk.path.join("v"), ProjectId(1_048_577));
            fs::create_dir(&path).unwrap();
            set_project(&path, project.0).unwrap();
            for directory in 0..files / 1000 {
                let directory = path.join(directory.to_string());
                fs::create_dir(&directory).unwrap();
                for file in 0..1000 {
                    fs::write(directory.join(file.to_string()), "").unwrap();
                }
            }
            rustix::fs::sync();
            let meter = DiskMeter::default();
            let measured = |method| {
                let started_at = Instant::now();
                meter.measure(HashMap::from([(path.clone(), method)]));
                let took = started_at.elapsed();
                (meter.latest()[&path].usage, took)
            };
            let (walked, walk) = measured(DiskMethod::Walk(Duration::ZERO));
            let (counted, read) = measured(DiskMethod::Project(project, Duration::ZERO));
            eprintln!("{files} files: a walk {walk:?}, a quota {read:?}");
            assert_eq!(counted, walked);
            // Deeper than a walk goes.
            fs::create_dir_all(path.join(vec!["d"; 200].join("/"))).unwrap();
            assert_eq!(measured(DiskMethod::Walk(Duration::ZERO)).0, None);
            let counted = measured(DiskMethod::Project(project, Duration::ZERO)).0;
            let more = counted.unwrap().inodes - walked.unwrap().inodes;
            assert_eq!(more, 200);
        }
    }
}
