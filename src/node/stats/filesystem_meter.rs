//! Usage of the file systems of volumes. One that hangs, such as a network's, must not delay the others.

use super::disk::{DiskMeasurement, DiskMeasurements};
use super::source::CachedReading;
use super::{SLOW_SOURCE, blocking};
use crate::host::{FilesystemUsage, filesystem_usage};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a caller waits for file systems.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Measures file systems and keeps the results. Clones share the results.
#[derive(Clone)]
pub(super) struct FilesystemMeter {
    measurements: Arc<Mutex<DiskMeasurements>>,
    /// Paths that a thread is measuring. No second thread measures them, so that one that hangs blocks one thread.
    measuring: Arc<Mutex<HashSet<PathBuf>>>,
    reading: Arc<CachedReading<()>>,
}

impl Default for FilesystemMeter {
    fn default() -> Self {
        Self {
            measurements: Arc::default(),
            measuring: Arc::default(),
            reading: Arc::new(CachedReading::new(SLOW_SOURCE)),
        }
    }
}

impl FilesystemMeter {
    /// Measures the file systems of `paths`, and removes the results of all others, unless the last measurement is less
    /// than a second old. Each result is available as soon as it is measured; a file system that does not respond keeps
    /// its previous result. Returns after a second at the latest.
    pub(super) async fn measure(&self, paths: &BTreeSet<PathBuf>) {
        let read = || {
            let (meter, paths) = (self.clone(), paths.clone());
            async move {
                meter.measurements.lock().retain(|path, _| paths.contains(path));
                if !paths.is_empty() {
                    let measuring = blocking(move || meter.measure_each(paths, filesystem_usage));
                    let _: Result<_, _> = tokio::time::timeout(TIMEOUT, measuring).await;
                }
                Some(())
            }
        };
        self.reading.get(read).await;
    }

    fn measure_each(
        &self,
        paths: BTreeSet<PathBuf>,
        usage: impl Fn(&Path) -> io::Result<FilesystemUsage>,
    ) {
        for path in paths {
            if !self.measuring.lock().insert(path.clone()) {
                continue;
            }
            let measured = usage(&path);
            self.measuring.lock().remove(&path);
            let mut measurements = self.measurements.lock();
            match measured {
                Ok(usage) => measurements.insert(path, DiskMeasurement::now(None, Some(usage))),
                Err(_) => measurements.remove(&path),
            };
        }
    }

    /// The latest measurements.
    pub(super) fn latest(&self) -> DiskMeasurements {
        self.measurements.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const USAGE: FilesystemUsage =
        FilesystemUsage { capacity: 10, available: 5, used: 5, inodes: 2, inodes_free: 1 };

    fn paths(names: &[&str]) -> BTreeSet<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn a_file_system_that_hangs_blocks_one_thread_and_not_the_others() {
        let meter = FilesystemMeter::default();
        let (started, has_started) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let hung = meter.clone();
        let thread = thread::spawn(move || {
            hung.measure_each(paths(&["/a", "/b"]), |path| {
                if path == Path::new("/a") {
                    started.send(()).unwrap();
                    may_go_on.recv().unwrap();
                }
                Ok(USAGE)
            });
        });
        has_started.recv().unwrap();
        let usage = |path: &Path| {
            assert_ne!(path, Path::new("/a"), "a second thread would hang");
            Ok(USAGE)
        };
        meter.measure_each(paths(&["/a", "/b", "/c"]), usage);
        let measured =
            |meter: &FilesystemMeter| meter.latest().into_keys().collect::<BTreeSet<_>>();
        assert_eq!(measured(&meter), paths(&["/b", "/c"]));
        go_on.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(measured(&meter), paths(&["/a", "/b", "/c"]));
        let fails = |_: &Path| Err(io::ErrorKind::StaleNetworkFileHandle.into());
        meter.measure_each(paths(&["/a"]), fails);
        assert_eq!(measured(&meter), paths(&["/b", "/c"]));
    }

    #[tokio::test]
    async fn file_systems_that_are_not_measured_any_more_have_no_result() {
        let directory = tempfile::tempdir().unwrap();
        let meter = FilesystemMeter::default();
        let path = directory.path().to_owned();
        meter.measure(&BTreeSet::from([path.clone()])).await;
        assert!(meter.latest()[&path].filesystem.unwrap().capacity > 0);
        tokio::time::sleep(SLOW_SOURCE.max_age).await;
        meter.measure(&BTreeSet::new()).await;
        assert_eq!(meter.latest().len(), 0);
    }
}
