//! Usage of volumes with a PersistentVolumeClaim, for `/metrics` (`kubelet_volume_stats_*`).
//!
//! Upstream: `pkg/kubelet/metrics/collectors/volume_stats.go`.

use super::filesystem_meter::FilesystemMeter;
use crate::{
    base::metrics::{AtScrape, Metrics},
    host::FilesystemUsage,
    model::ClaimRef,
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// Returns the mounted volumes with claims, with their paths.
pub type ClaimPaths = Arc<dyn Fn() -> BTreeMap<ClaimRef, PathBuf> + Send + Sync>;

type ClaimUsage = BTreeMap<ClaimRef, FilesystemUsage>;

type ClaimFamily = (&'static str, &'static str, fn(&FilesystemUsage) -> u64);

const FAMILIES: [ClaimFamily; 6] = [
    (
        "kubelet_volume_stats_capacity_bytes",
        "Capacity in bytes of the volume",
        |usage| usage.capacity,
    ),
    (
        "kubelet_volume_stats_available_bytes",
        "Number of available bytes in the volume",
        |usage| usage.available,
    ),
    (
        "kubelet_volume_stats_used_bytes",
        "Number of used bytes in the volume",
        |usage| usage.used,
    ),
    (
        "kubelet_volume_stats_inodes",
        "Maximum number of inodes in the volume",
        |usage| usage.inodes,
    ),
    (
        "kubelet_volume_stats_inodes_free",
        "Number of free inodes in the volume",
        |usage| usage.inodes_free,
    ),
    (
        "kubelet_volume_stats_inodes_used",
        "Number of used inodes in the volume",
        |usage| usage.inodes.saturating_sub(usage.inodes_free),
    ),
];

/// Measures the volumes before a scrape. Cheap to clone.
#[derive(Clone)]
pub struct ClaimMeter {
    paths: ClaimPaths,
    filesystems: FilesystemMeter,
    usage: Arc<Mutex<ClaimUsage>>,
}

impl ClaimMeter {
    /// Builds a meter; it measures nothing yet.
    pub fn new(paths: ClaimPaths, metrics: &Metrics) -> Self {
        let usage: Arc<Mutex<ClaimUsage>> = Arc::default();
        for (name, help, value) in FAMILIES {
            let usage = usage.clone();
            let read = move || {
                let usage = usage.lock();
                let samples = usage.iter().map(|(claim, usage)| {
                    let labels = vec![
                        ("namespace", claim.namespace.clone()),
                        ("persistentvolumeclaim", claim.name.clone()),
                    ];
                    (labels, value(usage) as f64)
                });
                samples.collect()
            };
            metrics.register(name, help, AtScrape::gauge(read));
        }
        Self {
            paths,
            filesystems: FilesystemMeter::default(),
            usage,
        }
    }

    /// Measures, unless the last measurement is less than a second old. While a file system hangs, its last result is
    /// kept.
    pub async fn measure(&self) {
        let volumes = (self.paths)();
        let paths = volumes.values().cloned().collect();
        self.filesystems.measure(&paths).await;
        let measurements = self.filesystems.latest();
        let usage = volumes.into_iter();
        let usage =
            usage.filter_map(|(claim, path)| Some((claim, measurements.get(&path)?.filesystem?)));
        *self.usage.lock() = usage.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claim_has_samples_while_a_pod_uses_it() {
        let directory = tempfile::tempdir().unwrap();
        let claim = ClaimRef {
            namespace: "shop".into(),
            name: "data".into(),
        };
        let used = Arc::new(Mutex::new(BTreeMap::from([(
            claim,
            directory.path().to_owned(),
        )])));
        let paths = used.clone();
        let metrics = Metrics::new();
        let meter = ClaimMeter::new(Arc::new(move || paths.lock().clone()), &metrics);
        let line = "kubelet_volume_stats_capacity_bytes{namespace=\"shop\",persistentvolumeclaim=\"data\"} ";
        let value = |text: &str| {
            let line = text.lines().find_map(|found| found.strip_prefix(line));
            line.map(|value| value.parse::<f64>().unwrap())
        };
        assert_eq!(value(&metrics.text()), None);
        meter.measure().await;
        let text = metrics.text();
        let expected = crate::host::filesystem_usage(directory.path())
            .unwrap()
            .capacity as f64;
        assert_eq!(value(&text), Some(expected));
        for (name, _, _) in FAMILIES {
            assert!(
                text.contains(&format!("{name}{{namespace=\"shop\"")),
                "{name}"
            );
        }
        used.lock().clear();
        meter.measure().await;
        assert_eq!(value(&metrics.text()), None);
    }
}
