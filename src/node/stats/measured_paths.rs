//! The directories and files of each pod that are measured.

use super::disk::{DiskMeasurements, DiskMethod};
use super::generate::PodPaths;
use super::sampler::{PodSample, Snapshot};
use super::{StatsState, blocking};
use crate::model::{PodUid, UsageSource};
use crate::runtime::kuberuntime::log_paths;
use crate::state::pod_cache::PodRef;
use std::collections::HashMap;
use std::time::Duration;

/// Minimum interval between measurements of a log, because logs grow continuously.
const LOG_MEASURE_INTERVAL: Duration = Duration::from_secs(10);

impl StatsState {
    /// The directories and files of the pods in a snapshot.
    pub(super) fn pod_paths(&self, snapshot: &Snapshot) -> HashMap<PodUid, PodPaths> {
        let logs = &self.deps.pod_logs_dir;
        let paths = |pod: &PodSample| {
            let subject = &pod.pod;
            let pod_ref = PodRef {
                uid: subject.uid.clone(),
                name: subject.name.clone(),
                namespace: subject.namespace.clone(),
            };
            let logs_of = |name: &str| {
                let logs = log_paths::container_logs_dir(logs, &pod_ref, name).ok();
                let termination_logs = (self.deps.termination_logs)(&subject.uid, name);
                let paths = logs.into_iter().chain(termination_logs).collect();
                (name.to_owned(), paths)
            };
            let containers = subject.containers.iter();
            let paths = PodPaths {
                volumes: (self.deps.volumes)(&subject.uid),
                logs: containers.map(|container| logs_of(&container.name)).collect(),
                files: [
                    log_paths::pod_logs_dir(logs, &pod_ref).ok(),
                    (self.deps.hosts_file)(&subject.uid),
                ]
                .into_iter()
                .flatten()
                .collect(),
            };
            (subject.uid.clone(), paths)
        };
        snapshot.pods.iter().map(paths).collect()
    }

    /// Measures the directories that are due, for at most the policy's timeout, and returns the latest results, also of
    /// directories that could not be measured in time.
    pub(super) async fn measure(&self, pods: &HashMap<PodUid, PodPaths>) -> DiskMeasurements {
        let measure_directories = || {
            let mut wanted = HashMap::new();
            for paths in pods.values() {
                let logs = paths.logs.values().flatten();
                let files = logs.chain(&paths.files).cloned();
                wanted.extend(files.map(|path| (path, DiskMethod::Files(LOG_MEASURE_INTERVAL))));
                for volume in &paths.volumes {
                    let (Some(period), UsageSource::Files(project)) =
                        (self.deps.volume_period, volume.source)
                    else {
                        continue;
                    };
                    let how = match project {
                        Some(project) => DiskMethod::Project(project, period),
                        None => DiskMethod::Walk(period),
                    };
                    wanted.insert(volume.path.clone(), how);
                }
            }
            let disks = self.disks.clone();
            blocking(move || disks.measure(wanted))
        };
        let volumes = pods.values().flat_map(|paths| &paths.volumes);
        let filesystems = volumes
            .filter(|volume| volume.source == UsageSource::Filesystem)
            .map(|volume| volume.path.clone())
            .collect();
        tokio::join!(
            self.disk_measurement.get(measure_directories),
            self.volume_filesystems.measure(&filesystems),
        );
        let mut measurements = self.disks.latest();
        measurements.extend(self.volume_filesystems.latest());
        measurements
    }
}
