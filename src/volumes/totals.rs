//! What metrics show of the volumes of pods: how many there are, and how long it takes to set them up. Volumes of CSI
//! drivers count themselves.

use super::metrics::{ACTUAL, DESIRED, NO_PLUGIN, StorageOperation, VolumeTotals};
use super::pod_volumes::{PlannedVolume, ReadyVolume};
use super::{VolumeError, VolumeManager, VolumeManagerInner, VolumePath};
use crate::base::metrics::{AtScrape, Metrics, ScrapeSample};
use crate::model::PodUid;
use std::time::Duration;

impl VolumeManager {
    /// Registers the number of volumes as a metric.
    pub fn register_totals(&self, metrics: &Metrics) {
        let shared = self.shared.clone();
        metrics.register(
            "volume_manager_total_volumes",
            "Number of volumes in Volume Manager",
            AtScrape::gauge(move || samples(shared.totals())),
        );
    }
}

fn samples(totals: VolumeTotals) -> Vec<ScrapeSample> {
    let sample = |((plugin, state), count): ((String, &str), u32)| {
        let labels = vec![("plugin_name", plugin), ("state", state.to_owned())];
        (labels, f64::from(count))
    };
    totals.into_iter().map(sample).collect()
}

impl VolumeManagerInner {
    pub(super) fn totals(&self) -> VolumeTotals {
        let mut totals = self.csi.totals();
        let pods: Vec<_> = {
            let pods = self.pods.lock();
            let pods = pods.iter();
            pods.map(|(uid, volumes)| (uid.clone(), volumes.clone())).collect()
        };
        for (uid, volumes) in pods {
            for (planned, path) in volumes.tracked() {
                let Some(plugin) = self.plugin(&uid, &planned, path.as_ref()) else {
                    continue;
                };
                if path.is_some() {
                    *totals.entry((plugin.to_owned(), ACTUAL)).or_default() += 1;
                }
                *totals.entry((plugin.to_owned(), DESIRED)).or_default() += 1;
            }
        }
        totals
    }

    /// Records the end of a setup.
    pub(super) fn record_set_up(
        &self,
        uid: &PodUid,
        planned: &PlannedVolume,
        ended: &Result<ReadyVolume, VolumeError>,
        took: Duration,
    ) {
        let path = ended.as_ref().ok().map(|ready| &ready.path);
        if matches!(ended, Err(VolumeError::Cancelled)) {
            return;
        }
        let plugin = self.plugin(uid, planned, path);
        // As upstream, nothing has been mounted while the volume of a claim is not known.
        let Some(plugin) = plugin.filter(|plugin| *plugin != NO_PLUGIN) else {
            return;
        };
        let (metrics, is_success) = (&self.cluster.csi.metrics, ended.is_ok());
        metrics.operation(plugin, StorageOperation::Mount, is_success, false, took);
        if is_success {
            metrics.mounted(plugin, took);
        }
    }

    /// The plugin of a volume, in labels; `None` for a CSI volume. `path` is its path if it is set up.
    fn plugin(
        &self,
        uid: &PodUid,
        planned: &PlannedVolume,
        path: Option<&VolumePath>,
    ) -> Option<&'static str> {
        let plugin = planned.kind.metric_plugin(path)?;
        // Only the volume of a claim may turn out to be a driver's.
        let is_csi = planned.kind.claim().is_some() && self.csi.has_volume(uid, &planned.name);
        (!is_csi).then_some(plugin)
    }
}
