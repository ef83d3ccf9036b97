//! Executes the steps of a volume: one call of the driver each, with the directories, files and records around it.
//!
//! Order: the record first, then directories and upstream's file, then the call. After the call that undoes it, the
//! reverse. So whatever is cut short, the next kubelet knows what may have to be undone.

use super::{
    client::NodeClient,
    error::{self, CsiError},
    files,
    inputs::Secrets,
    machine::{CallOutcome, Step},
    manager::CsiVolumesInner,
    mount_table::MountTable,
    paths::{PublishDir, StageDir},
    proto::{
        NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
        NodeUnstageVolumeRequest,
    },
    record,
    redact::SERVICE_ACCOUNT_TOKENS,
    requests,
    spec::CsiVolumeSpec,
    vol_data::{self, PublishData, StageData},
    volume::{CsiVolume, PublishRequest},
};
use crate::apiserver::csi_driver::CsiDriver;
use crate::base::error_chain;
use crate::model::PodUid;
use crate::volumes::{Mounter, VolumeGroup, ownership, paths::component};
use anyhow::Context as _;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::timeout;

/// How long work on files of a volume may take before the step fails. The thread continues.
const FILES_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of mounts on one directory that are unmounted.
const MAX_STACKED: usize = 16;

/// An error is the outcome of a step that did not succeed.
type StepResult<T = ()> = Result<T, CallOutcome>;

fn not_called(error: impl ToString) -> CallOutcome {
    CallOutcome::NotCalled(error.to_string())
}

fn unknown(error: impl ToString) -> CallOutcome {
    CallOutcome::Unknown(error.to_string())
}

fn outcome(error: CsiError) -> CallOutcome {
    let text = error.to_string();
    match error.outcome() {
        _ if error.is_unsent() => CallOutcome::NotCalled(text),
        error::CallOutcome::Failed => CallOutcome::Failed(text),
        error::CallOutcome::Unknown => CallOutcome::Unknown(text),
    }
}

impl CsiVolumesInner {
    /// Executes a step that has begun.
    pub(super) async fn execute(&self, volume: &Arc<CsiVolume>, step: &Step) -> CallOutcome {
        let driver = self.sources.drivers.require(volume.identity.driver());
        let executed = match driver {
            Err(error) => Err(not_called(error)),
            Ok(client) => match step {
                Step::Stage => self.stage(volume, &client).await,
                Step::Publish(uid) => self.publish(volume, &client, uid, true).await,
                Step::Republish(uid) => self.publish(volume, &client, uid, false).await,
                Step::Unpublish(uid) => self.unpublish(volume, &client, uid).await,
                Step::Unstage => self.unstage(volume, &client).await,
            },
        };
        executed.err().unwrap_or(CallOutcome::Done)
    }

    async fn stage(&self, volume: &Arc<CsiVolume>, client: &NodeClient) -> StepResult {
        let spec = volume
            .spec()
            .ok_or_else(|| not_called("the volume is not known yet"))?;
        let capabilities = client.capabilities().await.map_err(not_called)?;
        let publish_context = self.publish_context(volume, &spec).await?;
        let secret = spec.stage_secret.as_ref();
        let secrets = self.sources.secret("NodeStageSecretRef", secret).await;
        let secrets = secrets.map_err(not_called)?;
        let directory = StageDir::new(&self.root, &volume.identity);
        let target = directory.target();
        let data = StageData {
            identity: volume.identity.clone(),
            selinux: None,
        };
        self.with_record(volume, {
            let root = self.root.clone();
            move || {
                files::create_directory(&root, &directory.target())
                    .with_context(|| format!("cannot create {}", directory.target().display()))?;
                vol_data::write_staged(&directory, &data)
                    .with_context(|| format!("cannot write {}", directory.vol_data().display()))
            }
        })
        .await?;
        let request = NodeStageVolumeRequest {
            volume_id: spec.handle(),
            publish_context,
            staging_target_path: text(&target)?,
            volume_capability: Some(requests::capability(&spec, capabilities, volume.group())),
            secrets,
            volume_context: spec.volume_attributes.clone(),
        };
        client.stage(request).await.map_err(outcome)
    }

    async fn publish(
        &self,
        volume: &Arc<CsiVolume>,
        client: &NodeClient,
        uid: &PodUid,
        is_first: bool,
    ) -> StepResult {
        let pod = volume.pod(uid).and_then(|pod| pod.request);
        let request = pod.ok_or_else(|| not_called("the pod's volume is not known yet"))?;
        let spec = &request.spec;
        let object = self.driver_object(volume).await?;
        requests::check_lifecycle(spec.driver(), object.as_ref(), spec.lifecycle())
            .map_err(not_called)?;
        let object = object.unwrap_or_default();
        let capabilities = client.capabilities().await.map_err(not_called)?;
        let publish_context = self.publish_context(volume, spec).await?;
        let secret = spec.publish_secret.as_ref();
        let secrets = self.sources.secret("NodePublishSecretRef", secret).await;
        let mut secrets = secrets.map_err(not_called)?;
        let mut volume_context = spec.volume_attributes.clone();
        if object.pod_info_on_mount {
            volume_context.extend(request.pod.context(spec.lifecycle()));
        }
        let tokens = self.sources.tokens(&request.pod, &object.token_requests);
        if let Some(tokens) = tokens.await.map_err(not_called)? {
            let receiver = if object.service_account_token_in_secrets {
                &mut secrets
            } else {
                &mut volume_context
            };
            receiver.insert(SERVICE_ACCOUNT_TOKENS.to_owned(), tokens);
        }
        let directory = self.publish_dir(volume, uid)?;
        if is_first {
            self.prepare_publish(volume, &request, &directory).await?;
        }
        let is_staged = capabilities.stage_unstage && !volume.is_inline();
        let staging = is_staged.then(|| StageDir::new(&self.root, &volume.identity).target());
        let group = request.group.0;
        let call = NodePublishVolumeRequest {
            volume_id: spec.handle(),
            publish_context,
            staging_target_path: staging
                .as_deref()
                .map(text)
                .transpose()?
                .unwrap_or_default(),
            target_path: text(&directory.target())?,
            volume_capability: Some(requests::capability(spec, capabilities, group)),
            readonly: request.read_only,
            secrets,
            volume_context,
        };
        client.publish(call).await.map_err(outcome)?;
        let policy = object.fs_group_policy;
        if is_first
            && group.is_some()
            && requests::changes_group(spec, policy, capabilities, request.read_only)
        {
            self.set_group(volume, &request, directory.target()).await?;
        }
        Ok(())
    }

    /// Writes the record and upstream's file, and creates the parent of the target, which the driver creates.
    async fn prepare_publish(
        &self,
        volume: &Arc<CsiVolume>,
        request: &Arc<PublishRequest>,
        directory: &PublishDir,
    ) -> StepResult {
        let data = PublishData {
            identity: volume.identity.clone(),
            spec_name: request.spec.spec_name.clone(),
            node: self.sources.node_name.clone(),
            selinux: None,
        };
        let (root, directory) = (self.root.clone(), directory.clone());
        self.with_record(volume, move || {
            files::create_directory(&root, directory.path())
                .with_context(|| format!("cannot create {}", directory.path().display()))?;
            vol_data::write_published(&directory, &data)
                .with_context(|| format!("cannot write {}", directory.vol_data().display()))
        })
        .await
    }

    /// Gives the files of a published volume to the pod's group. The volume is published, whatever becomes of this.
    async fn set_group(
        &self,
        volume: &Arc<CsiVolume>,
        request: &Arc<PublishRequest>,
        target: PathBuf,
    ) -> StepResult {
        let handle = request.spec.handle();
        let is_shared = volume.has_other_pod(&request.pod.uid, request.group);
        let request = request.clone();
        let work = move || {
            let owner = (request.group, request.change_policy);
            let name = &request.spec.spec_name;
            ownership::set_up(&request.directory, name, &target, owner, || is_shared)
        };
        self.after_call(volume, work).await.map_err(|outcome| {
            let why = outcome.failure().unwrap_or_default();
            unknown(format!("applyFSGroup failed for vol {handle}: {why}"))
        })
    }

    async fn unpublish(
        &self,
        volume: &Arc<CsiVolume>,
        client: &NodeClient,
        uid: &PodUid,
    ) -> StepResult {
        let directory = self.publish_dir(volume, uid)?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.identity.handle(),
            target_path: text(&directory.target())?,
        };
        client.unpublish(request).await.map_err(outcome)?;
        let (mounter, driver) = (self.mounter.clone(), volume.identity.driver().to_owned());
        let undo = move || {
            unmount_leftover(mounter.as_ref(), &directory.target(), &driver)?;
            let mounts = MountTable::new(mounter.list());
            files::remove_published(&directory, &mounts)
                .with_context(|| format!("cannot remove {}", directory.path().display()))
        };
        self.after_call(volume, undo).await?;
        self.sources.forget(uid);
        Ok(())
    }

    async fn unstage(&self, volume: &Arc<CsiVolume>, client: &NodeClient) -> StepResult {
        let directory = StageDir::new(&self.root, &volume.identity);
        let capabilities = client.capabilities().await.map_err(not_called)?;
        if capabilities.stage_unstage {
            let request = NodeUnstageVolumeRequest {
                volume_id: volume.identity.handle(),
                staging_target_path: text(&directory.target())?,
            };
            client.unstage(request).await.map_err(outcome)?;
        }
        let (mounter, driver) = (self.mounter.clone(), volume.identity.driver().to_owned());
        let undo = move || {
            unmount_leftover(mounter.as_ref(), &directory.target(), &driver)?;
            let mounts = MountTable::new(mounter.list());
            files::remove_stage(&directory, &mounts)
                .with_context(|| format!("cannot remove {}", directory.path().display()))
        };
        self.after_call(volume, undo).await
    }

    /// Does work on files that belongs to a call that succeeded: if it fails, the outcome of the step is unknown.
    async fn after_call(
        &self,
        volume: &Arc<CsiVolume>,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> StepResult {
        let done = self.on_files(volume, CallOutcome::Unknown, work).await?;
        done.map_err(|error| unknown(chain(&error)))
    }

    /// Removes the directories of a setup that the driver refused for good, if nothing is mounted there.
    pub(super) async fn remove_refused(&self, volume: &Arc<CsiVolume>, step: &Step) {
        let mounter = self.mounter.clone();
        let stage = StageDir::new(&self.root, &volume.identity);
        let publish = step
            .pod()
            .and_then(|uid| self.publish_dir(volume, uid).ok());
        let is_stage = *step == Step::Stage;
        let work = move || {
            let mounts = MountTable::new(mounter.list());
            match publish {
                Some(publish) => files::remove_published(&publish, &mounts),
                None if is_stage => files::remove_stage(&stage, &mounts),
                None => Ok(()),
            }
        };
        // What cannot be removed now is found at the next start.
        if let Ok(Err(error)) = self.on_files(volume, CallOutcome::Unknown, work).await {
            let volume = volume.identity.unique_name();
            tracing::info!(volume, err = %error, "Failed to remove the directory of a CSI volume");
        }
    }

    /// Writes the volume's record, then does this work. Nothing was called if that fails.
    async fn with_record(
        &self,
        volume: &Arc<CsiVolume>,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> StepResult {
        let (root, record) = (self.root.clone(), volume.record());
        let prepare = move || {
            if let Some(record) = record {
                record::write(&root, &record)?;
            }
            work()
        };
        let prepared = self
            .on_files(volume, CallOutcome::NotCalled, prepare)
            .await?;
        prepared.map_err(|error| not_called(chain(&error)))
    }

    /// Does work on files of the volume, on a thread of its own. `failed` is the outcome of a step whose work does not end.
    async fn on_files<T: Send + 'static>(
        &self,
        volume: &Arc<CsiVolume>,
        failed: fn(String) -> CallOutcome,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> StepResult<T> {
        let lock = volume.files.clone();
        let work = async move {
            let lock = lock.lock_owned().await;
            let work = move || {
                let _lock = lock;
                work()
            };
            tokio::task::spawn_blocking(work).await
        };
        match timeout(FILES_TIMEOUT, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => {
                let seconds = FILES_TIMEOUT.as_secs();
                let why = format!("a path of the volume has not responded for {seconds} s");
                Err(failed(why))
            }
        }
    }

    async fn publish_context(
        &self,
        volume: &CsiVolume,
        spec: &CsiVolumeSpec,
    ) -> StepResult<Secrets> {
        if !volume.has_to_be_attached() {
            return Ok(Secrets::new());
        }
        let context = self.sources.publish_context(spec).await;
        context.map_err(not_called)
    }

    /// The driver's object, or `None` if there is none.
    async fn driver_object(&self, volume: &CsiVolume) -> StepResult<Option<CsiDriver>> {
        let object = self.sources.objects.get(volume.identity.driver()).await;
        let object = object.map_err(not_called)?;
        Ok(object.as_deref().cloned())
    }

    fn publish_dir(&self, volume: &CsiVolume, uid: &PodUid) -> StepResult<PublishDir> {
        let pod = volume
            .pod(uid)
            .ok_or_else(|| not_called("the pod is not known"))?;
        let directory = component(uid.as_str()).and_then(|_| self.root.pod(uid));
        let directory = directory.map_err(not_called)?;
        PublishDir::new(&directory, &pod.spec_name).map_err(not_called)
    }
}

impl CsiVolume {
    /// The group that a driver applies when it stages the volume: that of a pod that wants it.
    fn group(&self) -> Option<u32> {
        let state = self.state.lock();
        let mut pods = state.pods.values();
        pods.find_map(|pod| pod.request.as_ref()?.group.0)
    }

    /// Whether another pod of the same group has the volume, so that its files have the group already.
    fn has_other_pod(&self, uid: &PodUid, group: VolumeGroup) -> bool {
        let state = self.state.lock();
        let mut others = state.pods.iter().filter(|(other, _)| *other != uid);
        others.any(|(other, pod)| {
            let request = pod.request.as_ref();
            state.machine.is_ready(other) && request.is_some_and(|request| request.group == group)
        })
    }
}

/// A path in a call: UTF-8.
fn text(path: &Path) -> StepResult<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| not_called(format!("the path {} is not UTF-8", path.display())))
}

fn chain(error: &anyhow::Error) -> String {
    error_chain(AsRef::<dyn std::error::Error + Send + Sync>::as_ref(error))
}

/// Unmounts what a driver has left mounted, although it reported that it was done.
fn unmount_leftover(mounter: &dyn Mounter, target: &Path, driver: &str) -> anyhow::Result<()> {
    for _ in 0..MAX_STACKED {
        let mounts = mounter.list().context("cannot list the mounts")?;
        if !MountTable::new(Ok(mounts)).is_mount_point(target) {
            return Ok(());
        }
        let path = target.display();
        tracing::warn!(driverName = driver, %path, "The CSI driver has left a mount; unmounting it");
        mounter
            .unmount(target)
            .with_context(|| format!("cannot unmount {path}"))?;
    }
    anyhow::bail!("{} is still mounted", target.display())
}
