//! The usage of volumes, as their drivers report it.
//!
//! Read on request, and of each volume at most once in a period. One call of a driver is in progress at a time: a driver
//! that hangs keeps neither the others nor its own volumes from being mounted, and its last reports stay, with their times.

use super::facts::VolumeStats;
use super::manager::CsiVolumes;
use super::proto::NodeGetVolumeStatsRequest;
use super::volume::{CsiVolume, PublishRequest};
use crate::base::panics::PanicScope;
use crate::base::{clock, spawn};
use crate::model::reasons::event;
use crate::model::{PodUid, ReportedUsage};
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// How long a caller waits for drivers.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a volume's condition in an event, in bytes.
const MAX_CONDITION: usize = 1024;

/// A driver that is being called. It is not called again meanwhile.
struct DriverCall {
    volumes: CsiVolumes,
    driver: String,
}

impl Drop for DriverCall {
    fn drop(&mut self) {
        self.volumes.0.measuring.lock().remove(&self.driver);
    }
}

impl CsiVolumes {
    /// Has the drivers report the usage of the volumes that are due. Returns after a second at the latest; what is reported
    /// later is there for the next caller.
    pub async fn measure(&self, period: Duration) {
        let mut due: BTreeMap<String, Vec<(Arc<CsiVolume>, PodUid)>> = BTreeMap::new();
        let volumes: Vec<_> = self.0.volumes.lock().values().cloned().collect();
        let now = clock::instant();
        for volume in volumes {
            let state = volume.state.lock();
            let pods = state
                .pods
                .iter()
                .filter(|(uid, pod)| state.machine.is_ready(uid) && pod.usage.is_due(period, now));
            let pods = pods.map(|(uid, _)| (volume.clone(), uid.clone()));
            let of_driver = due.entry(volume.identity.driver().to_owned()).or_default();
            of_driver.extend(pods);
        }
        let calls = due.into_iter().filter_map(|(driver, pods)| {
            let is_first = !pods.is_empty() && self.0.measuring.lock().insert(driver.clone());
            let call = is_first.then(|| DriverCall { volumes: self.clone(), driver })?;
            Some(spawn(PanicScope::Stats, call.measure(pods)))
        });
        let _: Result<_, _> = timeout(TIMEOUT, join_all(calls)).await;
    }

    /// The usage of a pod's volume; `None` if it is no CSI volume, and without a report if its driver has made none.
    pub(in crate::volumes) fn usage(
        &self,
        uid: &PodUid,
        name: &str,
    ) -> Option<Option<ReportedUsage>> {
        let volume = self.0.volume_of(uid, name)?;
        Some(volume.pod(uid)?.usage.latest)
    }
}

impl DriverCall {
    async fn measure(self, pods: Vec<(Arc<CsiVolume>, PodUid)>) {
        let Some(client) = self.volumes.0.sources.drivers.get(&self.driver) else {
            return;
        };
        let capabilities = client.capabilities().await.unwrap_or_default();
        if !capabilities.volume_stats {
            return;
        }
        let has_condition = capabilities.volume_condition;
        let reports_health = self.volumes.0.sources.reports_health && has_condition;
        for (volume, uid) in pods {
            let directory = self.volumes.0.publish_dir(&volume, &uid);
            let path = directory.map(|directory| directory.for_stats());
            let Some(volume_path) = path.ok().and_then(|path| path.to_str().map(str::to_owned))
            else {
                continue;
            };
            let request = NodeGetVolumeStatsRequest {
                volume_id: volume.identity.handle(),
                volume_path,
                ..NodeGetVolumeStatsRequest::default()
            };
            let reported = client.stats(request).await;
            let mut state = volume.state.lock();
            let Some(pod) = state.pods.get_mut(&uid) else {
                continue;
            };
            pod.usage.called_at = Some(clock::instant());
            match reported {
                Ok(mut stats) => {
                    stats.condition = stats.condition.filter(|_| reports_health);
                    pod.usage.latest = Some(usage(&stats, clock::system_time()));
                    let request = pod.request.clone();
                    drop(state);
                    if let (Some(request), Some((true, why))) = (request, stats.condition) {
                        self.report_abnormal(&request, why);
                    }
                }
                Err(error) => {
                    let volume = volume.identity.unique_name();
                    tracing::debug!(volume, podUID = %uid, err = %error, "Failed to read the usage of a CSI volume");
                }
            }
        }
    }
}

impl DriverCall {
    /// Reports that a volume of a pod is abnormal; upstream's text.
    fn report_abnormal(&self, request: &PublishRequest, mut why: String) {
        // A driver may return megabytes.
        why.truncate(why.floor_char_boundary(MAX_CONDITION));
        let text = format!("Volume {}: {why}", request.volume);
        let (events, reason) = (&self.volumes.0.sources.events, event::VOLUME_CONDITION_ABNORMAL);
        events.warning(&request.pod.reference(), reason, text);
    }
}

pub(super) fn usage(stats: &VolumeStats, at: SystemTime) -> ReportedUsage {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (bytes, inodes) = (stats.bytes.unwrap_or_default(), stats.inodes.unwrap_or_default());
    ReportedUsage {
        at: i64::try_from(at.as_nanos()).unwrap_or(i64::MAX),
        capacity_bytes: bytes.total,
        available_bytes: bytes.available,
        used_bytes: bytes.used,
        inodes: inodes.total,
        inodes_free: inodes.available,
        inodes_used: inodes.used,
        is_abnormal: stats.condition.as_ref().map(|(is_abnormal, _)| *is_abnormal),
    }
}
