//! Disk usage of directories. Walks are slow and wear disks, so directories are measured on request only, one at a
//! time, the oldest measurement first, and at most once per period.

use crate::base::clock::{self, Instant};
use crate::base::if_exists;
use crate::host::{
    DiskUsage, DiskWalk, FilesystemUsage, MountEntry, files_usage, filesystem_usage, mount,
    project_usage,
};
use crate::model::ProjectId;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Maximum number of entries that are read of one directory before it is the next one's turn: ten seconds at least.
const MAX_ENTRIES: u64 = 2_000_000;
/// Maximum number of directories with more entries whose walk goes on in the next turn. Each may need 4 MiB of memory and
/// 64 descriptors.
const MAX_UNFINISHED: usize = 8;

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
    /// Usage; `None` if the directory cannot be read, or if the method yields none.
    pub(super) usage: Option<DiskUsage>,
    /// The file system, if the directory is a mount of its own.
    pub(super) filesystem: Option<FilesystemUsage>,
    /// The same time on the monotonic clock, for the period.
    measured_at: Instant,
}

impl DiskMeasurement {
    pub(super) fn now(usage: Option<DiskUsage>, filesystem: Option<FilesystemUsage>) -> Self {
        let since = clock::system_time().duration_since(UNIX_EPOCH);
        Self {
            at: since.map_or(0, |at| i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)),
            usage,
            filesystem,
            measured_at: clock::instant(),
        }
    }
}

/// Latest measurements by directory.
pub(super) type DiskMeasurements = HashMap<PathBuf, DiskMeasurement>;

/// Measures directories and keeps the results. Clones share the results.
#[derive(Clone)]
pub(super) struct DiskMeter {
    measurements: Arc<Mutex<DiskMeasurements>>,
    /// Directories whose project quota could not be read the last time, so that the failure is logged once.
    unreadable: Arc<Mutex<HashSet<PathBuf>>>,
    /// Walks that go on in the next turn.
    unfinished: Arc<Mutex<HashMap<PathBuf, DiskWalk>>>,
    max_entries: u64,
}

impl Default for DiskMeter {
    fn default() -> Self {
        Self {
            measurements: Arc::default(),
            unreadable: Arc::default(),
            unfinished: Arc::default(),
            max_entries: MAX_ENTRIES,
        }
    }
}

impl DiskMeter {
    /// Measures the directories that are due, and removes the results of all others. Each result is available as soon
    /// as it is measured. Blocking; may take long. A file system that hangs delays all directories after it. A walk that
    /// is not finished after [`MAX_ENTRIES`] goes on in the next call.
    pub(super) fn measure(&self, wanted: HashMap<PathBuf, DiskMethod>) {
        let mut due: Vec<(Option<Instant>, PathBuf, DiskMethod)> = Vec::new();
        {
            let mut measurements = self.measurements.lock();
            measurements.retain(|path, _| wanted.contains_key(path));
            let mut unreadable = self.unreadable.lock();
            unreadable.retain(|path| wanted.contains_key(path));
            let mut unfinished = self.unfinished.lock();
            unfinished.retain(|path, _| wanted.contains_key(path));
            for (path, how) in wanted {
                let before = measurements.get(&path).map(|measured| measured.measured_at);
                let period = match how {
                    DiskMethod::Walk(period)
                    | DiskMethod::Files(period)
                    | DiskMethod::Project(_, period) => period,
                };
                let is_due = before.is_none_or(|measured_at| clock::since(measured_at) >= period);
                if is_due || unfinished.contains_key(&path) {
                    due.push((before, path, how));
                }
            }
        }
        due.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        for (_, path, how) in due {
            let usage = if_exists(match how {
                DiskMethod::Walk(_) => self.walk(&path).map(Some),
                DiskMethod::Project(project, _) => self.of_project(&path, project).map(Some),
                DiskMethod::Files(_) => files_usage(&path, self.max_entries),
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

    /// Continues or begins a walk. While it is unfinished, the last result is kept, if that is more.
    fn walk(&self, path: &Path) -> io::Result<DiskUsage> {
        let unfinished = self.unfinished.lock().remove(path);
        let mut walk = match unfinished {
            Some(walk) => walk,
            None => DiskWalk::start(path)?,
        };
        let is_finished = walk.advance(self.max_entries);
        let usage = walk.usage();
        if is_finished {
            return Ok(usage);
        }
        let mut unfinished = self.unfinished.lock();
        if unfinished.len() < MAX_UNFINISHED {
            unfinished.insert(path.to_owned(), walk);
        }
        let last = self.measurements.lock().get(path).and_then(|last| last.usage);
        Ok(more_of(usage, last))
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
        let usage = self.walk(path)?;
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

/// What is known to be used while a walk is unfinished.
fn more_of(unfinished: DiskUsage, last: Option<DiskUsage>) -> DiskUsage {
    let last = last.unwrap_or_default();
    let has_less = unfinished.bytes <= last.bytes && unfinished.inodes <= last.inodes;
    DiskUsage {
        bytes: unfinished.bytes.max(last.bytes),
        inodes: unfinished.inodes.max(last.inodes),
        is_partial: last.is_partial || !has_less,
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
        Self { at, ..Self::now(usage, filesystem) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::quota_disk::QuotaDisk;
    use crate::host::set_project;
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
    fn a_directory_with_too_many_entries_for_one_turn_has_what_is_known_of_it() {
        let top = tempfile::tempdir().unwrap();
        for name in 0..25 {
            fs::write(top.path().join(name.to_string()), "x").unwrap();
        }
        let meter = DiskMeter { max_entries: 10, ..DiskMeter::default() };
        let measured = |period| {
            let method = DiskMethod::Walk(period);
            meter.measure(HashMap::from([(top.path().to_owned(), method)]));
            let usage = meter.latest()[top.path()].usage.unwrap();
            (usage.inodes, usage.is_partial)
        };
        // An unfinished walk goes on before its period is over.
        let period = Duration::from_secs(3600);
        assert_eq!(measured(period), (11, true));
        assert_eq!(measured(period), (21, true));
        assert_eq!(measured(period), (26, false));
        assert_eq!(measured(period), (26, false));
        // The next walk begins, and fewer files are known only once it has ended.
        fs::remove_file(top.path().join("0")).unwrap();
        assert_eq!(measured(Duration::ZERO), (26, false));
        assert_eq!(measured(Duration::ZERO), (26, false));
        assert_eq!(measured(Duration::ZERO), (25, false));
        meter.measure(HashMap::new());
        assert_eq!(meter.unfinished.lock().len(), 0);
    }

    #[test]
    fn walks_that_cannot_go_on_begin_again() {
        let top = tempfile::tempdir().unwrap();
        let meter = DiskMeter { max_entries: 2, ..DiskMeter::default() };
        let paths: Vec<_> =
            (0..=MAX_UNFINISHED).map(|name| top.path().join(name.to_string())).collect();
        for path in &paths {
            fs::create_dir(path).unwrap();
            for name in ["a", "b", "c"] {
                fs::write(path.join(name), "x").unwrap();
            }
        }
        let measure = || {
            let method = DiskMethod::Walk(Duration::ZERO);
            let wanted = paths.iter().map(|path| (path.clone(), method));
            meter.measure(wanted.collect());
            let latest = meter.latest();
            let is_known = |path: &&PathBuf| !latest[*path].usage.unwrap().is_partial;
            paths.iter().filter(is_known).count()
        };
        let known: Vec<_> = (0..3).map(|_| measure()).collect();
        assert_eq!(known, [0, MAX_UNFINISHED, paths.len()]);
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
                let started_at = clock::instant();
                meter.measure(HashMap::from([(path.clone(), method)]));
                let took = clock::since(started_at);
                (meter.latest()[&path].usage, took)
            };
            let (walked, walk) = measured(DiskMethod::Walk(Duration::ZERO));
            let (counted, read) = measured(DiskMethod::Project(project, Duration::ZERO));
            eprintln!("{files} files: a walk {walk:?}, a quota {read:?}");
            assert_eq!(counted, walked);
            fs::create_dir_all(path.join(vec!["d"; 200].join("/"))).unwrap();
            rustix::fs::sync();
            let walked = measured(DiskMethod::Walk(Duration::ZERO)).0;
            let counted = measured(DiskMethod::Project(project, Duration::ZERO)).0;
            assert_eq!(counted, walked);
        }
    }
}
