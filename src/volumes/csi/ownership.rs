//! Gives the files of a published volume to the pod's `fsGroup`.
//!
//! That may take hours. It is done on a thread of its own, ends when the pod does not want the volume any more, and holds
//! up only the volume. What a completed walk has done is remembered as long as the volume is on the node.

use super::manager::CsiVolumesInner;
use super::steps::{StepResult, chain, unknown};
use super::volume::{CsiVolume, PublishRequest, RunningOwnershipWalk};
use crate::base::{clock, spawn_blocking};
use crate::model::PodUid;
use crate::model::reasons::event;
use crate::volumes::metrics::StorageOperation;
use crate::volumes::ownership::{self, OwnershipWalk};
use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a walk that is cancelled may take to end. A file system that hangs keeps its thread.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// After what time events report the progress of a walk, and how often; upstream's.
const FIRST_REPORT: Duration = Duration::from_secs(30);
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Upstream's advice.
const ADVICE: &str = "is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";

impl CsiVolumesInner {
    /// Gives the files to the pod's group. The volume is published, whatever the outcome.
    pub(super) async fn set_group(
        &self,
        volume: &Arc<CsiVolume>,
        request: &Arc<PublishRequest>,
        target: PathBuf,
    ) -> StepResult {
        let began = clock::instant();
        let walked = self.walk(volume, request, target).await;
        let (plugin, took) = (volume.plugin(), clock::since(began));
        let operation = StorageOperation::ApplyAccessControl;
        let metrics = &self.sources.metrics;
        let (is_success, is_migrated) = (walked.is_ok(), request.spec.is_migrated);
        metrics.operation(&plugin, operation, is_success, is_migrated, took);
        walked.map_err(|why| {
            let handle = request.spec.handle();
            unknown(format!("applyFSGroup failed for vol {handle}: {why}"))
        })?;
        volume.modify(|state| state.owner_group = request.group.0);
        let recorded = self.update_record(volume).await;
        recorded.map_err(|outcome| unknown(outcome.failure().unwrap_or_default()))
    }

    async fn walk(
        &self,
        volume: &Arc<CsiVolume>,
        request: &Arc<PublishRequest>,
        target: PathBuf,
    ) -> Result<(), String> {
        let walk = Arc::new(OwnershipWalk::default());
        let _running = volume.begin_walk(&request.pod.uid, &walk);
        let cancelled = || "the pod does not want the volume any more".to_owned();
        let slots = async {
            let slot = self.walks.clone().acquire_owned().await;
            (slot, volume.files.clone().lock_owned().await)
        };
        let held = tokio::select! {
            held = slots => held,
            () = volume.is_unwanted(&request.pod.uid) => return Err(cancelled()),
        };
        let path = self.shown(&target);
        let work = {
            let (request, walk) = (request.clone(), walk.clone());
            move || {
                let _held = held;
                let owner = (request.group, request.change_policy);
                ownership::apply(&request.spec.spec_name, &target, owner, &walk)
            }
        };
        let mut walking = spawn_blocking(work);
        let ended = tokio::select! {
            ended = &mut walking => ended,
            never = self.report_progress(request, &path, &walk) => match never {},
            () = volume.is_unwanted(&request.pod.uid) => {
                walk.cancel();
                match timeout(CANCEL_TIMEOUT, walking).await {
                    Ok(ended) => ended,
                    Err(_) => return Err(cancelled()),
                }
            }
        };
        let ended = ended.map_err(|error| error.to_string())?;
        ended.map_err(|error| chain(&error))
    }

    /// The path in events: below the directory of pods, as upstream shows it.
    fn shown(&self, target: &Path) -> String {
        let below = target.strip_prefix(self.root.pods_dir());
        below.unwrap_or(target).display().to_string()
    }

    pub(super) async fn report_progress(
        &self,
        request: &PublishRequest,
        path: &str,
        walk: &OwnershipWalk,
    ) -> Infallible {
        let pod = request.pod.reference();
        let report = |text: String| {
            let reason = event::VOLUME_PERMISSION_CHANGE_IN_PROGRESS;
            self.sources.events.warning(&pod, reason, text);
        };
        sleep(FIRST_REPORT).await;
        report(format!("Setting volume ownership for {path} {ADVICE}"));
        loop {
            sleep(REPORT_INTERVAL).await;
            let count = walk.processed();
            report(format!("Setting volume ownership for {path}, processed {count} files."));
        }
    }
}

/// Shows a walk as long as it is waited for, and cancels it then.
struct ShownWalk<'a>(&'a CsiVolume, Arc<OwnershipWalk>);

impl Drop for ShownWalk<'_> {
    fn drop(&mut self) {
        self.1.cancel();
        self.0.state.lock().ownership_walk = None;
    }
}

impl CsiVolume {
    /// Whether all files of the volume belong to this group.
    pub(super) fn belongs_to(&self, group: u32) -> bool {
        self.state.lock().owner_group == Some(group)
    }

    fn begin_walk(&self, uid: &PodUid, walk: &Arc<OwnershipWalk>) -> ShownWalk<'_> {
        self.state.lock().ownership_walk = Some(RunningOwnershipWalk {
            pod: uid.clone(),
            walk: walk.clone(),
            since: clock::instant(),
        });
        ShownWalk(self, walk.clone())
    }

    /// Waits until the pod does not want the volume any more.
    async fn is_unwanted(&self, uid: &PodUid) {
        let mut changes = self.changes.subscribe();
        while self.state.lock().machine.is_wanted_by(uid) {
            if changes.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// What a walk for this pod has done so far.
    pub(super) fn explain_walk(&self, uid: &PodUid) -> Option<String> {
        let state = self.state.lock();
        let running = state.ownership_walk.as_ref();
        let running = running.filter(|running| running.pod == *uid)?;
        let (seconds, count) = (clock::since(running.since).as_secs(), running.walk.processed());
        Some(format!(
            "setting volume ownership has been running for {seconds} s, processed {count} files"
        ))
    }
}
