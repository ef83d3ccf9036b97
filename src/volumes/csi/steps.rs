//! Executes the steps of a volume: one call of the driver each, with the directories, files and records around it.
//!
//! Order: the record first, then directories and upstream's file, then the call. After the call that undoes it, the
//! reverse. So whatever is cut short, the next kubelet knows what may have to be undone.

use super::client::NodeClient;
use super::error::{self, CsiError};
use super::identity::VolumeMode;
use super::inputs::Secrets;
use super::machine::{CallOutcome, Step};
use super::manager::CsiVolumesInner;
use super::mount_table::MountTable;
use super::paths::{PublishDir, StageDir};
use super::proto::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use super::redact::SERVICE_ACCOUNT_TOKENS;
use super::spec::CsiVolumeSpec;
use super::vol_data::{self, PublishData, StageData};
use super::volume::{CsiVolume, PublishRequest};
use super::{files, record, requests};
use crate::apiserver::csi_driver::CsiDriver;
use crate::base::{error_chain, spawn_blocking};
use crate::model::PodUid;
use crate::volumes::KubeletRoot;
use crate::volumes::error::cannot;
use crate::volumes::paths::component;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long work on files of a volume may take before the step fails. The thread continues.
const FILES_TIMEOUT: Duration = Duration::from_secs(120);

/// An error is the outcome of a step that did not succeed.
pub(super) type StepResult<T = ()> = Result<T, CallOutcome>;

pub(super) fn not_called(error: impl ToString) -> CallOutcome {
    CallOutcome::NotCalled(error.to_string())
}

pub(super) fn unknown(error: impl ToString) -> CallOutcome {
    CallOutcome::Unknown(error.to_string())
}

pub(super) fn outcome(error: CsiError) -> CallOutcome {
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
            Ok(client) => {
                let client = client.of_volume(volume.is_migrated());
                match step {
                    Step::Stage => self.stage(volume, &client).await,
                    Step::Publish(uid) => self.publish(volume, &client, uid, true).await,
                    Step::Republish(uid) => self.publish(volume, &client, uid, false).await,
                    Step::Expand(uid) => self.expand(volume, &client, uid).await,
                    Step::Unpublish(uid) => self.unpublish(volume, &client, uid).await,
                    Step::Unstage => self.unstage(volume, &client).await,
                }
            }
        };
        executed.err().unwrap_or(CallOutcome::Done)
    }

    async fn stage(&self, volume: &Arc<CsiVolume>, client: &NodeClient) -> StepResult {
        let spec = volume.spec().ok_or_else(|| not_called("the volume is not known yet"))?;
        let capabilities = client.capabilities().await.map_err(not_called)?;
        let publish_context = self.publish_context(volume, &spec).await?;
        let secret = spec.stage_secret.as_ref();
        let secrets = self.sources.secret("NodeStageSecretRef", secret).await;
        let secrets = secrets.map_err(not_called)?;
        let directory = StageDir::new(&self.root, &volume.identity);
        let target = directory.target();
        let object = self.driver_object(volume).await?.unwrap_or_default();
        let label = volume.file_label(&object);
        volume.state.lock().staged_label = Some(label.clone());
        if volume.identity.is_block() {
            self.check_stage_is_free(volume)?;
            self.prepare_block(volume, directory).await?;
            if !capabilities.stage_unstage {
                return Ok(());
            }
        } else {
            let data = StageData { identity: volume.identity.clone(), selinux: label.clone() };
            self.with_record(volume, {
                let root = self.root.clone();
                move || {
                    create(&root, &directory.target())?;
                    vol_data::write_staged(&directory, &data)
                        .with_context(cannot("write", &directory.vol_data()))
                }
            })
            .await?;
        }
        let (group, label) = (volume.group(), label.as_deref());
        let capability = requests::capability(&spec, capabilities, group, label);
        let request = NodeStageVolumeRequest {
            volume_id: spec.handle(),
            publish_context,
            staging_target_path: text(&target)?,
            volume_capability: Some(capability),
            secrets,
            volume_context: spec.volume_attributes.clone(),
        };
        let staged = client.stage(request).await;
        self.checked(volume, target, staged).await
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
        let is_block = volume.identity.is_block();
        // As upstream, which has no tokens for block volumes.
        let wanted: &[_] = if is_block { &[] } else { &object.token_requests };
        let tokens = self.sources.tokens(&request.pod, wanted);
        if let Some(tokens) = tokens.await.map_err(not_called)? {
            let receiver = if object.service_account_token_in_secrets {
                &mut secrets
            } else {
                &mut volume_context
            };
            receiver.insert(SERVICE_ACCOUNT_TOKENS.to_owned(), tokens);
        }
        let directory = self.publish_dir(volume, uid)?;
        let group = request.group.0;
        let changes_group = is_first
            && requests::changes_group(
                spec,
                object.fs_group_policy,
                capabilities,
                request.read_only,
            );
        let label = request.file_label(&object);
        let group_to_set = group.filter(|_| changes_group);
        let keeps_group = group_to_set.is_none_or(|group| volume.belongs_to(group));
        if !keeps_group {
            // Before the record is written: a walk that is interrupted is repeated.
            volume.modify(|state| state.owner_group = None);
        }
        if is_first {
            self.check_directory(volume, uid)?;
            self.prepare_publish(volume, &request, &directory, label).await?;
        }
        // As upstream: the path of a block volume is in the call whether or not it is staged.
        let is_staged = capabilities.stage_unstage && !volume.is_inline() || is_block;
        let staging = is_staged.then(|| StageDir::new(&self.root, &volume.identity).target());
        let call = NodePublishVolumeRequest {
            volume_id: spec.handle(),
            publish_context,
            staging_target_path: staging.as_deref().map(text).transpose()?.unwrap_or_default(),
            target_path: text(&directory.target())?,
            volume_capability: Some(requests::capability(spec, capabilities, group, label)),
            readonly: request.read_only,
            secrets,
            volume_context,
        };
        let published = client.publish(call).await;
        self.checked(volume, directory.target(), published).await?;
        if is_block && is_first {
            return self.map_device(volume, &request, directory).await;
        }
        if !keeps_group {
            self.set_group(volume, &request, directory.target()).await?;
        }
        Ok(())
    }

    /// The result of a call that sets up a volume. A driver that reports failure although it has mounted the volume has not
    /// undone it: what is mounted has to be undone.
    async fn checked(
        &self,
        volume: &Arc<CsiVolume>,
        target: PathBuf,
        called: Result<(), CsiError>,
    ) -> StepResult {
        let failed = match called.map_err(outcome) {
            Err(CallOutcome::Failed(why)) => why,
            other => return other,
        };
        let mounter = self.mounter.clone();
        let is_block = volume.identity.is_block();
        let is_mounted = move || {
            // Whatever a driver puts there for a device, the kubelet has not.
            let is_device = is_block && target.symlink_metadata().is_ok_and(|it| !it.is_dir());
            is_device || MountTable::new(mounter.list()).is_mounted(&target)
        };
        let is_mounted = self.on_files(volume, CallOutcome::Unknown, is_mounted);
        Err(if is_mounted.await? {
            CallOutcome::Unknown(failed)
        } else {
            CallOutcome::Failed(failed)
        })
    }

    /// An error while another volume of the pod has or may have the directory of this one, because both have one name.
    fn check_directory(&self, volume: &CsiVolume, uid: &PodUid) -> StepResult {
        let name = volume.pod(uid).map(|pod| pod.spec_name);
        let has_directory = |other: &&Arc<CsiVolume>| {
            let state = other.state.lock();
            let others = state.pods.get(uid).map(|pod| &pod.spec_name);
            let is_of_mode = other.identity.is_block() == volume.identity.is_block();
            is_of_mode && state.machine.is_held_by(uid) && others == name.as_ref()
        };
        let volumes = self.volumes.lock();
        let mut others = volumes.values().filter(|other| other.identity != volume.identity);
        match others.find(has_directory) {
            None => Ok(()),
            Some(other) => {
                let other = other.identity.unique_name();
                let why = format!("the volume {other} is still published at its path");
                Err(not_called(why))
            }
        }
    }

    /// Writes the record and upstream's file, and creates the parent of the target, which the driver creates.
    async fn prepare_publish(
        &self,
        volume: &Arc<CsiVolume>,
        request: &Arc<PublishRequest>,
        directory: &PublishDir,
        label: Option<&str>,
    ) -> StepResult {
        let data = PublishData {
            identity: volume.identity.clone(),
            spec_name: request.spec.spec_name.clone(),
            node: self.sources.node_name.clone(),
            selinux: label.map(str::to_owned),
        };
        let (root, directory) = (self.root.clone(), directory.clone());
        self.with_record(volume, move || {
            create(&root, directory.path())?;
            if directory.device().is_some() {
                // The stage has written the file.
                return Ok(());
            }
            vol_data::write_published(&directory, &data)
                .with_context(cannot("write", &directory.vol_data()))
        })
        .await
    }

    /// Does work on files that belongs to a call that succeeded: if it fails, the outcome of the step is unknown.
    pub(super) async fn after_call(
        &self,
        volume: &Arc<CsiVolume>,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> StepResult {
        let done = self.on_files(volume, CallOutcome::Unknown, work).await?;
        done.map_err(|error| unknown(chain(&error)))
    }

    /// Writes the volume's record alone.
    pub(super) async fn update_record(&self, volume: &Arc<CsiVolume>) -> StepResult {
        self.with_record(volume, || Ok(())).await
    }

    /// Writes the volume's record, then does this work. Nothing was called if that fails.
    pub(super) async fn with_record(
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
        let prepared = self.on_files(volume, CallOutcome::NotCalled, prepare).await?;
        prepared.map_err(|error| not_called(chain(&error)))
    }

    /// Does work on files of the volume, on a thread of its own. `failed` is the outcome of a step whose work does not end.
    pub(super) async fn on_files<T: Send + 'static>(
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
            spawn_blocking(work).await
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

    pub(super) fn publish_dir(&self, volume: &CsiVolume, uid: &PodUid) -> StepResult<PublishDir> {
        let pod = volume.pod(uid).ok_or_else(|| not_called("the pod is not known"))?;
        let directory = component(uid.as_str()).and_then(|_| self.root.pod(uid));
        let directory = directory.map_err(not_called)?;
        let name = &pod.spec_name;
        let directory = match volume.identity.mode() {
            VolumeMode::Filesystem => PublishDir::new(&directory, name),
            VolumeMode::Block { volume } => PublishDir::block(&self.root, &directory, uid, volume),
        };
        directory.map_err(not_called)
    }
}

impl CsiVolume {
    /// The group that a driver applies when it stages the volume: the group of a pod that wants it.
    fn group(&self) -> Option<u32> {
        let state = self.state.lock();
        let mut pods = state.pods.values();
        pods.find_map(|pod| pod.request.as_ref()?.group.0)
    }
}

/// Creates a directory below the kubelet's root directory. Blocking.
pub(super) fn create(root: &KubeletRoot, directory: &Path) -> anyhow::Result<()> {
    files::create_directory(root, directory).with_context(cannot("create", directory))
}

/// A path in a call: UTF-8.
pub(super) fn text(path: &Path) -> StepResult<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| not_called(format!("the path {} is not UTF-8", path.display())))
}

pub(super) fn chain(error: &anyhow::Error) -> String {
    error_chain(AsRef::<dyn std::error::Error + Send + Sync>::as_ref(error))
}
