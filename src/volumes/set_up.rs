//! Sets up and updates the volumes of a pod, several concurrently. File operations run on threads for blocking work.

use super::cluster::{VolumeInputs, VolumeKeys};
use super::kinds::plan;
use super::pod_volumes::{Attempt, PlannedVolume, ReadyVolume, TIMEOUT, VolumePod};
use super::record::{self, VolumeRecord};
use super::state::{self, VolumeWork};
use super::{PreparedVolumes, VolumeError, VolumeManagerInner, VolumesNotReady, pod_dirs};
use crate::base::otel::in_current_context;
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{clock, run_file_io, spawn};
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep_until;

/// How long a sync waits for other volumes after one has failed, so that it reports their failures together.
const ERROR_COLLECTION_TIME: Duration = Duration::from_secs(1);

impl VolumeManagerInner {
    /// Sets up or updates every volume of the plan.
    pub(super) async fn set_up_all(
        self: &Arc<Self>,
        pod: &VolumePod,
        plan: &[Arc<PlannedVolume>],
    ) -> Result<PreparedVolumes, VolumesNotReady> {
        let timed_out = self.work_on(pod, plan, plan).await?;
        pod.volumes.report(plan, timed_out)
    }

    /// Starts the setup or update of these volumes of the plan and waits for it; true after a timeout. Attempts still in
    /// progress when this returns continue.
    pub(super) async fn work_on(
        self: &Arc<Self>,
        pod: &VolumePod,
        plan: &[Arc<PlannedVolume>],
        volumes: &[Arc<PlannedVolume>],
    ) -> Result<bool, VolumeError> {
        let mut changes = pod.volumes.subscribe();
        let mut deadline = clock::instant() + TIMEOUT;
        let (mut left, mut collecting_errors) = (volumes.to_vec(), false);
        loop {
            changes.borrow_and_update();
            left = self.begin(pod, plan, left).await?;
            let (under_way, failed) = pod.volumes.progress(volumes);
            if under_way == 0 && left.is_empty() {
                return Ok(false);
            }
            if failed && !collecting_errors {
                collecting_errors = true;
                deadline = deadline.min(clock::instant() + ERROR_COLLECTION_TIME);
            }
            tokio::select! {
                biased;
                // `changed` only fails without a sender, and the pod's volumes own it.
                _ = changes.changed() => {}
                () = sleep_until(deadline) => return Ok(!collecting_errors),
            }
        }
    }

    /// Starts the attempts that are due. Returns the volumes with an earlier attempt in progress.
    async fn begin(
        self: &Arc<Self>,
        pod: &VolumePod,
        plan: &[Arc<PlannedVolume>],
        volumes: Vec<Arc<PlannedVolume>>,
    ) -> Result<Vec<Arc<PlannedVolume>>, VolumeError> {
        let (mut begin, mut wait) = (Vec::new(), Vec::new());
        for planned in volumes {
            match pod.volumes.work(&planned) {
                VolumeWork::Nothing => {}
                VolumeWork::Wait => wait.push(planned),
                work @ (VolumeWork::SetUp | VolumeWork::Refresh) => begin.push((planned, work)),
            }
        }
        // Before anything is created: without a record, a later kubelet takes what is mounted there for another's.
        if begin.iter().any(|(_, work)| *work == VolumeWork::SetUp) {
            record_plan(pod, plan).await?;
        }
        for (planned, work) in begin {
            let ready = pod.volumes.begin(&planned, work);
            let attempt = Attempt {
                manager: self.clone(),
                pod: pod.clone(),
                name: planned.name.clone(),
                inputs: VolumeInputs::default(),
                ready,
            };
            let run = run(planned, attempt);
            spawn(PanicScope::Sync, in_current_context(run));
        }
        Ok(wait)
    }
}

async fn run(planned: Arc<PlannedVolume>, attempt: Attempt) {
    let (manager, pod) = (attempt.manager.clone(), attempt.pod.clone());
    let (began, is_refresh) = (clock::instant(), attempt.ready.is_some());
    let ended = catch_panic(PanicScope::Sync, set_up(planned.clone(), attempt)).await;
    let ended = ended.unwrap_or_else(|panicked| Err(panicked.into()));
    if !is_refresh {
        manager.record_set_up(&pod.uid, &planned, &ended, clock::since(began));
    }
    if pod.volumes.end(&planned.name, ended) {
        manager.pods_to_sync.mark(pod.uid);
    }
}

/// Looks up what a volume needs, and lets its kind set it up or update it.
async fn set_up(
    planned: Arc<PlannedVolume>,
    mut attempt: Attempt,
) -> Result<ReadyVolume, VolumeError> {
    let (pod, name) = (attempt.pod.clone(), &planned.name);
    let _slot = pod.volumes.slot(name).await;
    let keys = plan::keys(slice::from_ref(&*planned));
    if keys != VolumeKeys::default() {
        pod.volumes.set_waiting(name, state::LOOKUP.into());
    }
    let immutable = attempt.ready.as_ref().map(|ready| &ready.immutable);
    let (cluster, reader) = (&attempt.manager.cluster, &pod.configmaps_and_secrets);
    let inputs = cluster.inputs(&pod.uid, reader, keys, immutable).await;
    attempt.inputs = inputs;
    pod.volumes.set_waiting(name, planned.kind.waits_for());
    planned.kind.clone().set_up(attempt).await
}

/// Creates the pod's directory and records the volumes that will be created in it.
async fn record_plan(pod: &VolumePod, plan: &[Arc<PlannedVolume>]) -> Result<(), VolumeError> {
    let (pod, plan) = (pod.clone(), plan.to_vec());
    let record = move || {
        let _creating = pod.volumes.creation_guard()?;
        pod_dirs::create(&pod.directory)?;
        let records = plan.iter().filter_map(|planned| {
            let (plugin, mounted) = planned.kind.directory()?;
            Some(VolumeRecord { name: planned.name.clone(), plugin: plugin.0.to_owned(), mounted })
        });
        let records: Vec<_> = records.collect();
        if records.is_empty() {
            return Ok(());
        }
        record::write(&pod.directory, records)
    };
    run_file_io(record).await?
}
