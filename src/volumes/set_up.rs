//! Sets up and updates the volumes of a pod, several concurrently. File operations run on threads for blocking work.

use super::{
    PodDir, PreparedVolumes, VolumeError, VolumeManagerInner, VolumePath, VolumesNotReady,
    claim::{self, ResolvedClaim},
    claim_marker,
    cluster::VolumeKeys,
    content::{self, ContentVolume, VolumeInputs},
    csi::requests::MountingPod,
    empty_dir::{self, ProjectRequest},
    host_path,
    local::{self, LocalVolume},
    ownership,
    plan::{ClaimVolume, HostPathCheck, PlannedVolume, VolumeKind},
    pod_dirs,
    pod_volumes::{PodVolumes, ReadyVolume, SetUpResult, TIMEOUT},
    record,
    state::{VolumeWait, VolumeWork},
};
use crate::{
    apiserver::{
        claim::ClaimError,
        configmap_secret::{ConfigMapsAndSecrets, PodConfigMapSecretReader},
    },
    base::{
        otel::in_current_context,
        panics::{PanicScope, catch_panic},
        run_file_io, spawn,
    },
    model::PodUid,
};
use std::{
    path::{Path, PathBuf},
    slice,
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// How long a sync waits for other volumes after one has failed, so that it reports their failures together.
const ERROR_COLLECTION_TIME: Duration = Duration::from_secs(1);

/// The pod whose volumes are set up.
#[derive(Clone)]
pub(super) struct VolumePod {
    pub(super) uid: PodUid,
    /// How calls of CSI drivers name it.
    pub(super) mounting: Arc<MountingPod>,
    pub(super) directory: PodDir,
    pub(super) configmaps_and_secrets: PodConfigMapSecretReader,
    pub(super) volumes: Arc<PodVolumes>,
}

/// One attempt to set up or update a volume.
pub(super) struct Attempt {
    pub(super) pod: VolumePod,
    pub(super) planned: Arc<PlannedVolume>,
    ready: Option<ReadyVolume>,
}

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
        let mut deadline = Instant::now() + TIMEOUT;
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
                deadline = deadline.min(Instant::now() + ERROR_COLLECTION_TIME);
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
        if begin.iter().any(|(_, work)| *work == VolumeWork::SetUp) {
            record_plan(pod, plan).await?;
        }
        for (planned, work) in begin {
            let ready = pod
                .volumes
                .begin(&planned, work, VolumeWait::initial(&planned.kind));
            let attempt = Attempt {
                pod: pod.clone(),
                planned,
                ready,
            };
            spawn(
                PanicScope::Sync,
                in_current_context(self.clone().run(attempt)),
            );
        }
        Ok(wait)
    }

    async fn run(self: Arc<Self>, attempt: Attempt) {
        let (pod, planned) = (attempt.pod.clone(), attempt.planned.clone());
        let (began, is_refresh) = (Instant::now(), attempt.ready.is_some());
        let ended = catch_panic(PanicScope::Sync, self.clone().attempt(attempt)).await;
        let ended = ended.unwrap_or_else(|panicked| Err(panicked.into()));
        if !is_refresh {
            self.record_set_up(&pod.uid, &planned, &ended, began.elapsed());
        }
        if pod.volumes.end(&planned.name, ended) {
            self.pods_to_sync.mark(pod.uid);
        }
    }

    async fn attempt(self: Arc<Self>, attempt: Attempt) -> Result<SetUpResult, VolumeError> {
        let (volumes, planned) = (attempt.pod.volumes.clone(), attempt.planned.clone());
        let _slot = volumes.slot(&planned.name).await;
        let inputs = self.inputs(&attempt).await;
        volumes.set_waiting(&planned.name, VolumeWait::initial(&planned.kind));
        if let (VolumeKind::Claim(claim), None) = (&planned.kind, &attempt.ready) {
            return self.attempt_claim(&attempt, claim, inputs).await;
        }
        if let (VolumeKind::Csi(volume), None) = (&planned.kind, &attempt.ready) {
            return self.attempt_inline_csi(&attempt, volume).await;
        }
        let threads = self.threads.clone();
        let work = move || match &attempt.ready {
            Some(ready) => self.refresh(&attempt, ready, &inputs),
            None => self.set_up(&attempt, &inputs),
        };
        match &planned.kind {
            // Nothing is read.
            VolumeKind::HostPath { check, .. } if *check == HostPathCheck::None => work(),
            VolumeKind::HostPath { path, .. } => {
                let path = PathBuf::from(path);
                threads.run(path, &[], &volumes.ended, work).await?
            }
            _ => run_file_io(work).await?,
        }
    }

    /// Looks up the inputs of a volume.
    async fn inputs(&self, attempt: &Attempt) -> VolumeInputs {
        let keys = VolumeKeys::of(slice::from_ref(&*attempt.planned));
        let immutable = attempt.ready.as_ref();
        let immutable = immutable.map(|ready| &ready.immutable_configmaps_and_secrets);
        if !keys.is_empty() {
            let volumes = &attempt.pod.volumes;
            volumes.set_waiting(&attempt.planned.name, VolumeWait::Lookup);
        }
        let (uid, reader) = (&attempt.pod.uid, &attempt.pod.configmaps_and_secrets);
        self.cluster.inputs(uid, reader, keys, immutable).await
    }

    fn set_up(&self, attempt: &Attempt, inputs: &VolumeInputs) -> Result<SetUpResult, VolumeError> {
        let (pod, name) = (&attempt.pod, &attempt.planned.name);
        let fail = |source| VolumeError::set_up(name, source);
        let creating = pod.volumes.creation_guard().ok_or(VolumeError::Cancelled)?;
        let mut attempted = match &attempt.planned.kind {
            VolumeKind::Claim(_) | VolumeKind::Csi(_) => return Err(VolumeError::Cancelled),
            VolumeKind::Unsupported(what) => return Err(fail(what.clone().into())),
            VolumeKind::EmptyDir {
                medium,
                group,
                quota,
            } => {
                let pods = self.root.pods_dir();
                let quotas = self.quotas.as_ref().zip(*quota);
                let project = quotas.map(|(quotas, quota)| ProjectRequest {
                    quotas,
                    pods: &pods,
                    limit: quota.limit(),
                });
                let (directory, mounter) = (&pod.directory, self.mounter.as_ref());
                let made = empty_dir::set_up(directory, name, *medium, *group, project, mounter);
                let (path, project) = made.map_err(fail)?;
                SetUpResult::of(VolumePath {
                    managed: true,
                    project,
                    ..VolumePath::of(path)
                })
            }
            VolumeKind::HostPath { path, check } => {
                // Teardown removes nothing that a hostPath's setup creates, so it need not wait for it.
                drop(creating);
                host_path::set_up(Path::new(path), *check).map_err(fail)?;
                SetUpResult::of(VolumePath {
                    check: *check,
                    ..VolumePath::of(path.into())
                })
            }
            VolumeKind::Content(content) => self
                .set_up_content(&pod.directory, name, content, inputs)
                .map_err(fail)?,
        };
        attempted.ready.immutable_configmaps_and_secrets =
            immutable(&inputs.configmaps_and_secrets);
        Ok(attempted)
    }

    /// Updates a volume whose configmaps or secrets changed.
    fn refresh(
        &self,
        attempt: &Attempt,
        ready: &ReadyVolume,
        inputs: &VolumeInputs,
    ) -> Result<SetUpResult, VolumeError> {
        let volumes = &attempt.pod.volumes;
        let _creating = volumes.creation_guard().ok_or(VolumeError::Cancelled)?;
        let mut attempted = SetUpResult::of(ready.path.clone());
        attempted.ready.immutable_configmaps_and_secrets =
            immutable(&inputs.configmaps_and_secrets);
        attempted.ready.content_digest = ready.content_digest;
        let Some(content) = attempt.planned.content() else {
            return Ok(attempted);
        };
        let updated = content::payload(&content.sources, inputs).and_then(|payload| {
            let now = content::digest(&payload);
            if ready.content_digest != Some(now) {
                content::write(&ready.path.host_path, content, &payload)?;
            }
            Ok(now)
        });
        match updated {
            Ok(now) => attempted.ready.content_digest = Some(now),
            Err(error) => {
                attempted.update_error = Some(VolumeError::set_up(&attempt.planned.name, error))
            }
        }
        Ok(attempted)
    }

    /// Sets up the volume of a claim. Waits for attempts of other pods with the same device, without occupying a
    /// thread.
    async fn attempt_claim(
        self: Arc<Self>,
        attempt: &Attempt,
        claim: &ClaimVolume,
        inputs: VolumeInputs,
    ) -> Result<SetUpResult, VolumeError> {
        let (pod, name) = (attempt.pod.clone(), attempt.planned.name.clone());
        let of_claim = ClaimAttempt {
            claim: claim.clone(),
            recorded: {
                let (pod, name) = (pod.directory.clone(), name.clone());
                run_file_io(move || claim_marker::read(&pod, &name)).await?
            },
            pod,
            name,
        };
        let resolved = of_claim.resolve(&inputs)?;
        if resolved.at.csi.is_some() {
            return self.attempt_csi_claim(of_claim, resolved, &inputs).await;
        }
        let path = PathBuf::from(&resolved.at.path);
        let (threads, local) = (self.threads.clone(), self.local_threads.clone());
        let ended = attempt.pod.volumes.ended.clone();
        if resolved.at.local.is_none() {
            let set_up = move || self.set_up_claim(&of_claim, resolved);
            return threads.run(path, &[], &ended, set_up).await?;
        }
        let lock = self.locks.lock(&resolved.volume).await;
        // Programs and walks may keep a thread for hours, so they have their own, once the path responds.
        threads.run(path, &[], &ended, || ()).await?;
        let permit = ended.run_until_cancelled(local.acquire_owned()).await;
        let permit = permit.ok_or(VolumeError::Cancelled)?;
        let set_up = move || {
            let _held = (lock, permit);
            self.set_up_claim(&of_claim, resolved)
        };
        tokio::task::spawn_blocking(set_up).await?
    }

    fn set_up_claim(
        &self,
        attempt: &ClaimAttempt,
        resolved: ResolvedClaim,
    ) -> Result<SetUpResult, VolumeError> {
        let (pod, claim) = (&attempt.pod, &attempt.claim);
        // The pod may have been torn down while this waited for the lock.
        drop(pod.volumes.creation_guard().ok_or(VolumeError::Cancelled)?);
        let (at, own_name) = (&resolved.at, &resolved.volume);
        let fail = |source| VolumeError::set_up(own_name, source);
        let owner = at.owned.then_some((claim.group, claim.change_policy));
        let place = match &at.local {
            Some(mount) => local::set_up(&LocalVolume {
                root: &self.root,
                mounter: self.mounter.as_ref(),
                pod: &pod.directory,
                volumes: &pod.volumes,
                name: own_name,
                path: &at.path,
                mount,
                read_only: claim.read_only,
                owner,
                was_made: attempt.recorded.as_ref() == Some(&resolved),
            })?,
            None => None,
        };
        let (host_path, check) = match place {
            Some(place) => (place, HostPathCheck::None),
            None => {
                let host_path = PathBuf::from(&at.path);
                host_path::set_up(&host_path, at.check).map_err(fail)?;
                if let Some(owner) = owner {
                    let shared = || self.is_in_use(&pod.directory, &at.path);
                    ownership::set_up(&pod.directory, own_name, &host_path, owner, shared)
                        .map_err(fail)?;
                }
                (host_path, at.check)
            }
        };
        let _creating = pod.volumes.creation_guard().ok_or(VolumeError::Cancelled)?;
        claim_marker::write(&pod.directory, &attempt.name, &resolved).map_err(fail)?;
        Ok(SetUpResult::of(VolumePath {
            check,
            managed: at.managed,
            read_only: claim.read_only,
            measured: at.measured,
            is_device: at.is_device,
            group: at.group,
            ..VolumePath::of(host_path)
        }))
    }

    /// Whether another pod uses this path of the node by a claim, also one that this process has not synced yet.
    fn is_in_use(&self, pod: &PodDir, path: &str) -> bool {
        let pods = pod_dirs::list(&self.root).unwrap_or_default();
        let mut pods = pods.iter().filter_map(|uid| self.root.pod(uid).ok());
        pods.any(|other| other.path() != pod.path() && claim_marker::resolved_to(&other, path))
    }

    /// Sets up a content volume. If its configmaps and secrets are missing or immutable, a volume of an earlier kubelet
    /// is kept as it is, because a restart of the kubelet must not affect pods.
    fn set_up_content(
        &self,
        pod: &PodDir,
        name: &str,
        volume: &ContentVolume,
        inputs: &VolumeInputs,
    ) -> anyhow::Result<SetUpResult> {
        let mounter = self.mounter.as_ref();
        let of = |path: PathBuf| {
            SetUpResult::of(VolumePath {
                managed: true,
                read_only: true,
                ..VolumePath::of(path)
            })
        };
        let find_existing = || content::find_existing(pod, name, volume, mounter).map(of);
        if content::is_fixed(&volume.sources, &inputs.configmaps_and_secrets)
            && let Some(before) = find_existing()
        {
            return Ok(before);
        }
        let payload = match content::payload(&volume.sources, inputs) {
            Ok(payload) => payload,
            Err(error) => {
                let Some(mut before) = find_existing() else {
                    return Err(error);
                };
                before.update_error = Some(VolumeError::set_up(name, error));
                return Ok(before);
            }
        };
        let mut attempted = of(content::set_up(pod, name, volume, &payload, mounter)?);
        attempted.ready.content_digest = Some(content::digest(&payload));
        Ok(attempted)
    }
}

/// One attempt to set up the volume of a claim.
pub(super) struct ClaimAttempt {
    pub(super) pod: VolumePod,
    /// The name of the volume in the pod.
    pub(super) name: String,
    pub(super) claim: ClaimVolume,
    /// The volume that an earlier successful attempt recorded.
    pub(super) recorded: Option<ResolvedClaim>,
}

impl ClaimAttempt {
    fn resolve(&self, inputs: &VolumeInputs) -> Result<ResolvedClaim, VolumeError> {
        let found = match inputs.claims.get(&self.claim.key) {
            Some(Ok(volume)) => Ok(volume.as_ref()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ClaimError::Claim("it was not looked up".into())),
        };
        let (node, recorded) = (inputs.node.as_deref(), self.recorded.clone());
        claim::resolve(&self.name, &self.claim, found, node, recorded)
    }
}

/// Creates the pod's directory and records the volumes that will be created in it.
async fn record_plan(pod: &VolumePod, plan: &[Arc<PlannedVolume>]) -> Result<(), VolumeError> {
    let (pod, plan) = (pod.clone(), plan.to_vec());
    let record = move || {
        let _creating = pod.volumes.creation_guard().ok_or(VolumeError::Cancelled)?;
        pod_dirs::create(&pod.directory)?;
        let records: Vec<_> = plan.iter().filter_map(|planned| planned.record()).collect();
        if records.is_empty() {
            return Ok(());
        }
        record::write(&pod.directory, records)
    };
    run_file_io(record).await?
}

/// The immutable ones.
fn immutable(found: &ConfigMapsAndSecrets) -> ConfigMapsAndSecrets {
    let mut immutable = found.clone();
    immutable.retain(|_, it| it.as_ref().is_ok_and(|object| object.is_immutable()));
    immutable
}
