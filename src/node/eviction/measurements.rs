//! Measures the eviction signals such that memory measurements never wait for a slow disk or the runtime.

use super::decide::Observations;
use super::observe::{self, MeasuredPaths, MeasuredSignals};
use super::rank::DiskLayout;
use crate::base::clock::{self, Instant};
use crate::base::panics::PanicScope;
use crate::base::{ScopedTask, spawn_blocking, spawn_scoped};
use crate::images::gc::ImageFilesystems;
use futures::FutureExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long one pass waits for the disks, which usually respond within microseconds.
const DISKS_TIMEOUT: Duration = Duration::from_millis(50);
/// Time after which a measurement of the disks is reported as hanging.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// How long the first measurement of disks waits for the runtime's image file systems, which determine the disk layout.
const IMAGE_FILESYSTEMS_TIMEOUT: Duration = Duration::from_secs(5);

type MeasureDisks = dyn Fn(&MeasuredPaths) -> MeasuredSignals + Send + Sync;

/// Measures memory, processes and disks.
pub(super) struct Measurements {
    paths: MeasuredPaths,
    measure_disks: Arc<MeasureDisks>,
    /// At most one measurement is running, so that a disk that hangs blocks only one thread.
    disks: Option<DisksInProgress>,
    /// When the latest completed measurement of the disks began.
    disks_measured_from: Option<Instant>,
    /// The disk layout of that measurement.
    layout: DiskLayout,
    image_filesystems: Option<ScopedTask<ImageFilesystems>>,
    started: Instant,
}

struct DisksInProgress {
    task: AbortOnDropHandle<MeasuredSignals>,
    began: Instant,
    reported: bool,
}

impl Measurements {
    /// Builds the measurements of these paths; image directories are added when `image_filesystems` has returned them.
    pub(super) fn new(
        paths: MeasuredPaths,
        image_filesystems: impl Future<Output = ImageFilesystems> + Send + 'static,
        measure_disks: impl Fn(&MeasuredPaths) -> MeasuredSignals + Send + Sync + 'static,
    ) -> Self {
        Self {
            paths,
            measure_disks: Arc::new(measure_disks),
            disks: None,
            disks_measured_from: None,
            layout: DiskLayout::default(),
            image_filesystems: Some(spawn_scoped(PanicScope::Stats, image_filesystems)),
            started: clock::instant(),
        }
    }

    /// Measures all signals. Signals of disks that do not respond in time are missing.
    pub(super) async fn measure(&mut self) -> MeasuredSignals {
        if let Some(Some(image_filesystems)) = take_ended(&mut self.image_filesystems) {
            self.paths.images = Some(image_filesystems);
        }
        let other = self.memory_and_pids();
        let (other, disks) = tokio::join!(other, self.disks());
        let mut measured = disks.unwrap_or_default();
        measured.layout = self.layout;
        measured.observations.extend(other);
        measured
    }

    /// Measures memory and processes only.
    pub(super) fn memory_and_pids(&self) -> impl Future<Output = Observations> + Send + use<> {
        let paths = self.paths.clone();
        let measuring = spawn_blocking(move || observe::memory_and_pids(&paths));
        async { measuring.await.unwrap_or_default() }
    }

    /// Returns a function that measures the disks, without a timeout.
    pub(super) fn disks_only(&self) -> impl Fn() -> MeasuredSignals + Send + Sync + Clone + use<> {
        let (paths, measure) = (self.paths.clone(), self.measure_disks.clone());
        move || measure(&paths)
    }

    /// Whether the image file systems are known, or the wait for them has timed out.
    pub(super) fn paths_are_known(&self) -> bool {
        self.paths.images.is_some() || clock::since(self.started) >= IMAGE_FILESYSTEMS_TIMEOUT
    }

    /// Whether a measurement of the disks is running.
    pub(super) fn waits_for_disks(&self) -> bool {
        self.disks.is_some()
    }

    /// Whether the latest completed measurement of the disks began after `at`.
    pub(super) fn has_measured_disks_since(&self, at: Instant) -> bool {
        self.disks_measured_from.is_some_and(|began| began > at)
    }

    /// Waits only for a measurement that starts now: one that has already timed out may never end.
    async fn disks(&mut self) -> Option<MeasuredSignals> {
        let wait = match &self.disks {
            Some(_) => Duration::ZERO,
            None => DISKS_TIMEOUT,
        };
        let measure = self.disks_only();
        let in_progress = self.disks.get_or_insert_with(|| DisksInProgress {
            task: AbortOnDropHandle::new(spawn_blocking(measure)),
            began: clock::instant(),
            reported: false,
        });
        let Ok(ended) = timeout(wait, &mut in_progress.task).await else {
            if !in_progress.reported && clock::since(in_progress.began) >= REPORT_AFTER {
                in_progress.reported = true;
                tracing::warn!(
                    "Measuring the node's disks timed out; no pod is evicted because of them"
                );
            }
            return None;
        };
        let began = in_progress.began;
        self.disks = None;
        let measured = ended.ok()?;
        self.disks_measured_from = Some(began);
        self.layout = measured.layout;
        Some(measured)
    }
}

/// The result of a task that has ended, `Some(None)` if it panicked. A task that is running stays in place.
pub(super) fn take_ended<T>(task: &mut Option<ScopedTask<T>>) -> Option<Option<T>> {
    let ended = task.as_mut()?.now_or_never()?;
    *task = None;
    Some(ended.ok().and_then(Result::ok))
}

#[cfg(test)]
mod tests {
    use super::super::decide::Observation;
    use super::super::thresholds::EvictionSignal;
    use super::*;
    use parking_lot::{Condvar, Mutex};

    /// A disk that answers only while it is open.
    #[derive(Clone, Default)]
    struct Disk(Arc<(Mutex<bool>, Condvar)>);

    impl Disk {
        fn set_open(&self, open: bool) {
            *self.0.0.lock() = open;
            self.0.1.notify_all();
        }

        fn measure(&self) -> MeasuredSignals {
            let mut open = self.0.0.lock();
            while !*open {
                self.0.1.wait(&mut open);
            }
            let observation = Observation { available: 1, capacity: 2 };
            MeasuredSignals {
                observations: [(EvictionSignal::NodeFsAvailable, observation)].into(),
                layout: DiskLayout::SplitImages,
            }
        }
    }

    fn measurements(disk: &Disk) -> Measurements {
        let paths = MeasuredPaths {
            root: "/".into(),
            images: None,
            cgroup_v2: std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            pods: None,
        };
        let disk = disk.clone();
        Measurements::new(paths, std::future::pending(), move |_| disk.measure())
    }

    #[tokio::test]
    async fn a_reading_that_has_not_ended_is_not_waited_for() {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let mut slot = Some(spawn_scoped(PanicScope::Other, answered));
        assert!(take_ended(&mut slot).is_none());
        assert!(slot.is_some(), "it goes on");
        answer.send(7).unwrap();
        let taken = loop {
            match take_ended(&mut slot) {
                Some(taken) => break taken,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!(taken, Some(Ok(7)));
        assert!(slot.is_none() && take_ended(&mut slot).is_none());
    }

    #[tokio::test]
    async fn a_disk_that_hangs_does_not_delay_measurements_of_memory() {
        let disk = Disk::default();
        let mut measurements = measurements(&disk);
        let begin = clock::instant();
        for _ in 0..20 {
            let measured = measurements.measure().await.observations;
            assert!(measured.contains_key(&EvictionSignal::MemoryAvailable));
            assert!(!measured.contains_key(&EvictionSignal::NodeFsAvailable));
        }
        // Half a second if each of them waited its short time, 5 s if one waited for the disk.
        assert!(clock::since(begin) < Duration::from_secs(3));
        assert!(measurements.waits_for_disks());
        disk.set_open(true);
        let hung = clock::instant();
        while !measurements
            .measure()
            .await
            .observations
            .contains_key(&EvictionSignal::NodeFsAvailable)
        {
            tokio::task::yield_now().await;
        }
        // The answer is as old as its question.
        assert!(!measurements.has_measured_disks_since(hung));
        while !measurements.has_measured_disks_since(hung) {
            measurements.measure().await;
        }
        disk.set_open(false);
        let measured = measurements.measure().await;
        assert_eq!(measured.layout, DiskLayout::SplitImages, "it is remembered");
        disk.set_open(true);
    }

    #[tokio::test(start_paused = true)]
    async fn disks_wait_a_short_time_for_the_directories_of_the_runtime() {
        let disk = Disk::default();
        let measurements = measurements(&disk);
        assert!(!measurements.paths_are_known());
        tokio::time::advance(IMAGE_FILESYSTEMS_TIMEOUT).await;
        assert!(measurements.paths_are_known());
    }
}
