//! Usage of volumes with a PersistentVolumeClaim, for `/metrics` (`kubelet_volume_stats_*`).
//!
//! Upstream: `pkg/kubelet/metrics/collectors/volume_stats.go`.

use super::filesystem_meter::FilesystemMeter;
use crate::base::metrics::{AtScrape, Metrics};
use crate::host::FilesystemUsage;
use crate::model::{ClaimRef, MeasurableVolume, ReportedUsage, UsageSource};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the mounted volumes with claims, once drivers have reported their usage.
pub type ClaimVolumes =
    Arc<dyn Fn() -> BoxFuture<'static, BTreeMap<ClaimRef, MeasurableVolume>> + Send + Sync>;

type ClaimUsage = BTreeMap<ClaimRef, ReportedUsage>;

type ClaimFamily = (&'static str, &'static str, fn(&ReportedUsage) -> Option<u64>);

const FAMILIES: [ClaimFamily; 7] = [
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |usage| {
        Some(usage.capacity_bytes)
    }),
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", |usage| {
        Some(usage.available_bytes)
    }),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", |usage| {
        Some(usage.used_bytes)
    }),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |usage| {
        Some(usage.inodes)
    }),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", |usage| {
        Some(usage.inodes_free)
    }),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", |usage| {
        Some(usage.inodes_used)
    }),
    (
        "kubelet_volume_stats_health_status_abnormal",
        "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy",
        |usage| usage.is_abnormal.map(u64::from),
    ),
];

/// Measures the volumes before a scrape. Cheap to clone.
#[derive(Clone)]
pub struct ClaimMeter {
    volumes: ClaimVolumes,
    filesystems: FilesystemMeter,
    usage: Arc<Mutex<ClaimUsage>>,
}

impl ClaimMeter {
    /// Builds a meter; it measures nothing yet.
    pub fn new(volumes: ClaimVolumes, metrics: &Metrics) -> Self {
        let usage: Arc<Mutex<ClaimUsage>> = Arc::default();
        for (name, help, value) in FAMILIES {
            let usage = usage.clone();
            let read = move || {
                let usage = usage.lock();
                let samples = usage.iter().filter_map(|(claim, usage)| {
                    let labels = vec![
                        ("namespace", claim.namespace.clone()),
                        ("persistentvolumeclaim", claim.name.clone()),
                    ];
                    Some((labels, value(usage)? as f64))
                });
                samples.collect()
            };
            metrics.register(name, help, AtScrape::gauge(read));
        }
        Self { volumes, filesystems: FilesystemMeter::default(), usage }
    }

    /// Measures, unless the last measurement is less than a second old. While a file system hangs, its last result is
    /// kept.
    pub async fn measure(&self) {
        let volumes = (self.volumes)().await;
        let mounts = volumes.values().filter(|volume| volume.source == UsageSource::Filesystem);
        let paths = mounts.map(|volume| volume.path.clone()).collect();
        self.filesystems.measure(&paths).await;
        let measurements = self.filesystems.latest();
        let usage = volumes.into_iter().filter_map(|(claim, volume)| {
            let usage = match volume.source {
                UsageSource::Driver(reported) => reported?,
                _ => of_filesystem(&measurements.get(&volume.path)?.filesystem?),
            };
            Some((claim, usage))
        });
        *self.usage.lock() = usage.collect();
    }
}

fn of_filesystem(usage: &FilesystemUsage) -> ReportedUsage {
    ReportedUsage {
        at: 0,
        capacity_bytes: usage.capacity,
        available_bytes: usage.available,
        used_bytes: usage.used,
        inodes: usage.inodes,
        inodes_free: usage.inodes_free,
        inodes_used: usage.inodes.saturating_sub(usage.inodes_free),
        is_abnormal: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claim_has_samples_while_a_pod_uses_it() {
        let directory = tempfile::tempdir().unwrap();
        let claim = ClaimRef { namespace: "shop".into(), name: "data".into() };
        let volume = MeasurableVolume {
            name: "v".into(),
            path: directory.path().to_owned(),
            source: UsageSource::Filesystem,
            claim: Some(claim.clone()),
        };
        let used = Arc::new(Mutex::new(BTreeMap::from([(claim.clone(), volume.clone())])));
        let volumes = used.clone();
        let metrics = Metrics::new();
        let read = move || -> BoxFuture<'static, _> {
            let volumes = volumes.lock().clone();
            Box::pin(async move { volumes })
        };
        let meter = ClaimMeter::new(Arc::new(read), &metrics);
        let line = "kubelet_volume_stats_capacity_bytes{namespace=\"shop\",persistentvolumeclaim=\"data\"} ";
        let value = |text: &str| {
            let line = text.lines().find_map(|found| found.strip_prefix(line));
            line.map(|value| value.parse::<f64>().unwrap())
        };
        assert_eq!(value(&metrics.text()), None);
        meter.measure().await;
        let text = metrics.text();
        let expected = crate::host::filesystem_usage(directory.path()).unwrap().capacity as f64;
        assert_eq!(value(&text), Some(expected));
        // Only drivers report the health.
        let has = |text: &str, name: &str| text.contains(&format!("{name}{{namespace=\"shop\""));
        let of_health = "kubelet_volume_stats_health_status_abnormal";
        for (name, _, _) in FAMILIES {
            assert_eq!(has(&text, name), name != of_health, "{name}");
        }
        let reported = ReportedUsage {
            capacity_bytes: 7,
            is_abnormal: Some(true),
            ..ReportedUsage::default()
        };
        let source = UsageSource::Driver(Some(reported));
        used.lock().insert(claim, MeasurableVolume { source, ..volume });
        meter.measure().await;
        assert_eq!(value(&metrics.text()), Some(7.0));
        assert!(has(&metrics.text(), of_health), "{}", metrics.text());
        used.lock().clear();
        meter.measure().await;
        assert_eq!(value(&metrics.text()), None);
    }
}
