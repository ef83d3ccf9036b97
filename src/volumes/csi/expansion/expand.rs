//! The step that brings the size of a volume on the node in line with its claim.

use super::claim::{self, begins, claim_size, has_ended, has_failed};
use super::decision::{ClaimUpdate, Decision, ExpansionFacts, NodeSize, Sizes, decide};
use crate::apiserver::{ApiError, ApiServer, ResourcePath, StrategicPatch};
use crate::base::{clock, error_chain};
use crate::model::PodUid;
use crate::model::reasons::event;
use crate::state::events::ObjectRef;
use crate::volumes::csi::client::NodeClient;
use crate::volumes::csi::error::CsiError;
use crate::volumes::csi::machine::CallOutcome;
use crate::volumes::csi::manager::CsiVolumesInner;
use crate::volumes::csi::paths::StageDir;
use crate::volumes::csi::requests;
use crate::volumes::csi::spec::{AccessMode, ClaimOfVolume, CsiVolumeSpec};
use crate::volumes::csi::steps::{StepResult, not_called, outcome, text};
use crate::volumes::csi::volume::{CsiVolume, CsiVolumeState, PublishRequest};
use crate::volumes::metrics::StorageOperation;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::sync::Arc;
use tonic::Code;

/// How many times a claim that changes meanwhile is read again before the step fails.
const MAX_CONFLICTS: u32 = 3;

/// Why a volume has not the size that its claim is to have.
enum ExpandError {
    /// The driver's error. A pod that waits for the volume is not started.
    Driver(CallOutcome),
    /// Something else. Pods can use the volume as it is.
    Other(String),
    /// The claim could not be read. Users are not bothered with it: nothing may be due.
    Unread(String),
    /// The claim has changed since it was read.
    Conflict(String),
}

impl ExpandError {
    fn of_patch(error: ApiError) -> Self {
        let is_conflict = error.is_conflict();
        let error = format!("update pvc status failed: {}", error_chain(&error));
        if is_conflict { Self::Conflict(error) } else { Self::Other(error) }
    }
}

/// One attempt for a pod.
struct Attempt<'a> {
    csi: &'a CsiVolumesInner,
    volume: &'a Arc<CsiVolume>,
    client: &'a NodeClient,
    api: &'a ApiServer,
    request: &'a PublishRequest,
    /// The claim that the PersistentVolume names.
    claim: &'a ClaimOfVolume,
    /// The PersistentVolume's capacity.
    capacity: String,
}

impl CsiVolumesInner {
    /// Has the driver expand a volume that is published for this pod, if its claim waits for that.
    pub(in crate::volumes::csi) async fn expand(
        &self,
        volume: &Arc<CsiVolume>,
        client: &NodeClient,
        uid: &PodUid,
    ) -> StepResult {
        let pod = volume.pod(uid).and_then(|pod| pod.request);
        let request = pod.ok_or_else(|| not_called("the pod's volume is not known yet"))?;
        let capacity = volume.state.lock().capacity.clone();
        let (Some(api), Some(claim), Some(capacity)) =
            (&self.sources.api, &request.spec.claim, capacity)
        else {
            return Ok(());
        };
        let attempt =
            Attempt { csi: self, volume, client, api, request: &request, claim, capacity };
        let is_awaited = !volume.state.lock().machine.is_ready(uid);
        let error = match attempt.run().await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let (is_shown, outcome) = match error {
            // The pod's sync reports it.
            ExpandError::Driver(outcome) if is_awaited => return Err(outcome),
            ExpandError::Driver(outcome) => (true, outcome),
            ExpandError::Other(why) | ExpandError::Conflict(why) => (true, not_called(why)),
            ExpandError::Unread(why) => (false, not_called(why)),
        };
        volume.state.lock().machine.expansion_may_wait(uid);
        if is_shown {
            self.resize_failed(&request, outcome.failure().unwrap_or_default());
        }
        Err(outcome)
    }

    /// Reports on a running pod that its volume has not been expanded; upstream's text.
    pub(super) fn resize_failed(&self, request: &PublishRequest, why: &str) {
        let name = &request.spec.spec_name;
        let text = format!("NodeExpandVolume.NodeExpandVolume failed for volume {name:?} : {why}");
        let (events, reason) = (&self.sources.events, event::VOLUME_RESIZE_FAILED);
        events.warning(&request.pod.reference(), reason, text);
    }
}

impl Attempt<'_> {
    async fn run(&self) -> Result<(), ExpandError> {
        let mut conflicts = 0;
        loop {
            match self.run_once().await {
                Err(ExpandError::Conflict(_)) if conflicts < MAX_CONFLICTS => conflicts += 1,
                ended => return ended,
            }
        }
    }

    async fn run_once(&self) -> Result<(), ExpandError> {
        let Some(claim) = self.read_claim().await? else {
            // Deleted, or of another volume now. The pod has what it has.
            return Ok(());
        };
        let facts = self.facts(&claim).await?;
        match decide(&facts) {
            Decision::Nothing | Decision::Later => Ok(()),
            Decision::TakeOver(bytes) => {
                self.reach(bytes, true).await;
                Ok(())
            }
            Decision::ReadOnly => {
                self.refuse_read_only(&claim);
                Ok(())
            }
            Decision::NotSupported => {
                let driver = self.client.driver();
                let why = format!("NodeExpand is not supported by the CSI driver {driver}");
                Err(ExpandError::Driver(CallOutcome::Failed(why)))
            }
            Decision::Report => self.report(&claim).await,
            Decision::Expand(bytes, update) => {
                let begun = match begins(&claim).filter(|_| update == ClaimUpdate::Status) {
                    Some(begin) => self.patch(&begin).await?,
                    None => claim,
                };
                if !self.call(&begun, bytes, update).await? {
                    return Ok(());
                }
                self.reach(bytes, update == ClaimUpdate::None).await;
                self.succeeded(&begun);
                match update {
                    ClaimUpdate::None => Ok(()),
                    ClaimUpdate::Capacity | ClaimUpdate::Status => self.report(&begun).await,
                }
            }
        }
    }

    async fn facts(&self, claim: &PersistentVolumeClaim) -> Result<ExpansionFacts, ExpandError> {
        let claim = claim_size(claim).map_err(ExpandError::Other)?;
        let volume = claim::size("spec.capacity of the PersistentVolume", &self.capacity);
        let capabilities = self.client.capabilities().await;
        let capabilities = capabilities.map_err(|error| ExpandError::Unread(error.to_string()))?;
        let Sizes { node, is_refused, .. } = self.volume.state.lock().sizes;
        Ok(ExpansionFacts {
            claim,
            volume: volume.map_err(ExpandError::Other)?,
            node,
            is_shared: self.spec().access_modes.contains(&AccessMode::ReadWriteMany),
            is_read_only: self.request.read_only,
            can_expand: capabilities.expand,
            is_refused,
        })
    }

    fn spec(&self) -> &CsiVolumeSpec {
        &self.request.spec
    }

    fn place(&self) -> ResourcePath<'_> {
        ResourcePath::namespaced(&self.claim.namespace, &self.claim.name)
    }

    /// The claim; `None` if there is none, or only another one of the name.
    async fn read_claim(&self) -> Result<Option<PersistentVolumeClaim>, ExpandError> {
        match self.api.get::<PersistentVolumeClaim>(self.place()).await {
            Ok(claim) => {
                let is_same = claim.metadata.uid.as_ref() == Some(&self.claim.uid);
                Ok(Some(claim).filter(|_| is_same))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => {
                let why = error_chain(&error);
                let why = format!("MountVolume.NodeExpandVolume get PVC failed : {why}");
                Err(ExpandError::Unread(why))
            }
        }
    }

    async fn patch(&self, patch: &StrategicPatch) -> Result<PersistentVolumeClaim, ExpandError> {
        let patched = self.api.patch(self.place(), Some("status"), patch).await;
        patched.map_err(ExpandError::of_patch)
    }

    /// Calls the driver. False if it refuses to expand the volume as long as it is on this node, which keeps no pod from
    /// using it.
    async fn call(
        &self,
        claim: &PersistentVolumeClaim,
        bytes: i64,
        update: ClaimUpdate,
    ) -> Result<bool, ExpandError> {
        let began = clock::instant();
        let request = self.expand_request(bytes).await;
        let request = request.map_err(ExpandError::Driver)?;
        let expanded = self.client.expand(request).await;
        let metrics = &self.csi.sources.metrics;
        let (plugin, is_success) = (self.volume.plugin(), expanded.is_ok());
        let operation = StorageOperation::Resize;
        let is_migrated = self.volume.is_migrated();
        metrics.operation(&plugin, operation, is_success, is_migrated, clock::since(began));
        let Err(error) = expanded else {
            return Ok(true);
        };
        let code = error.code();
        let outcome = expand_outcome(error);
        if let CallOutcome::Failed(why) = &outcome {
            let is_infeasible =
                matches!(code, Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound));
            let failed = has_failed(claim, update, is_infeasible, why, clock::timestamp());
            if let Some(failed) = failed
                && let Err(ExpandError::Other(error) | ExpandError::Conflict(error)) =
                    self.patch(&failed).await
            {
                // The next attempt tries again.
                let (namespace, name) = (&self.claim.namespace, &self.claim.name);
                tracing::info!(
                    namespace,
                    name,
                    err = error,
                    "Failed to report on a claim that its volume has not been expanded"
                );
            }
        }
        if code == Some(Code::FailedPrecondition) {
            let (volume, why) = (self.volume.identity.unique_name(), outcome.failure());
            tracing::warn!(
                volume,
                err = why,
                "The CSI driver does not expand the volume while it is in use"
            );
            self.volume.state.lock().sizes.is_refused = true;
            return Ok(false);
        }
        Err(ExpandError::Driver(outcome))
    }

    async fn expand_request(
        &self,
        bytes: i64,
    ) -> StepResult<crate::volumes::csi::proto::NodeExpandVolumeRequest> {
        let spec = self.spec();
        let capabilities = self.client.capabilities().await.map_err(not_called)?;
        let secret = spec.expand_secret.as_ref();
        let secrets = self.csi.sources.secret("NodeExpandSecretRef", secret);
        let secrets = secrets.await.map_err(not_called)?;
        let directory = self.csi.publish_dir(self.volume, &self.request.pod.uid)?;
        let staged = StageDir::new(&self.csi.root, &self.volume.identity).target();
        let staging_path = capabilities.stage_unstage.then(|| text(&staged));
        let capability = requests::capability(spec, capabilities, None, None);
        let path = text(&directory.target())?;
        let mut request = requests::expand(spec.handle(), path, bytes, capability);
        request.staging_target_path = staging_path.transpose()?.unwrap_or_default();
        request.secrets = secrets;
        Ok(request)
    }

    /// The node has reached this size. It is on disk before the claim has it, so that the next kubelet repeats nothing.
    async fn reach(&self, bytes: i64, is_reported: bool) {
        let node = NodeSize { bytes, is_reported };
        self.volume.state.lock().sizes.node = Some(node);
        let written = self.csi.update_record(self.volume).await;
        if let Err(outcome) = written {
            // The next kubelet repeats the call.
            let volume = self.volume.identity.unique_name();
            let why = outcome.failure();
            tracing::warn!(volume, err = why, "Failed to record the size of a CSI volume");
        }
    }

    /// Writes the size to the claim.
    async fn report(&self, claim: &PersistentVolumeClaim) -> Result<(), ExpandError> {
        self.patch(&has_ended(claim, &self.capacity)).await?;
        let node = self.volume.state.lock().sizes.node;
        if let Some(node) = node {
            self.reach(node.bytes, true).await;
        }
        Ok(())
    }

    fn succeeded(&self, claim: &PersistentVolumeClaim) {
        let (name, node) = (&self.spec().spec_name, &self.csi.sources.node_name);
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
        let (events, reason) = (&self.csi.sources.events, event::FILE_SYSTEM_RESIZE_SUCCESSFUL);
        for object in [self.request.pod.reference(), claim_reference(claim)] {
            events.normal(&object, reason, text.clone());
        }
    }

    fn refuse_read_only(&self, claim: &PersistentVolumeClaim) {
        let name = &self.spec().spec_name;
        let text = format!(
            "MountVolume.NodeExpandVolume failed for volume {name:?} requested read-only file system"
        );
        let (events, reason) = (&self.csi.sources.events, event::FILE_SYSTEM_RESIZE_FAILED);
        for object in [self.request.pod.reference(), claim_reference(claim)] {
            events.warning(&object, reason, text.clone());
        }
    }
}

/// The outcome of a call that failed, with upstream's words before the driver's.
fn expand_outcome(error: CsiError) -> CallOutcome {
    let text = |error| format!("Expander.NodeExpand failed to expand the volume : {error}");
    match outcome(error) {
        CallOutcome::Failed(error) => CallOutcome::Failed(text(error)),
        CallOutcome::Unknown(error) => CallOutcome::Unknown(text(error)),
        CallOutcome::NotCalled(error) => CallOutcome::NotCalled(text(error)),
        CallOutcome::Done => CallOutcome::Done,
    }
}

fn claim_reference(claim: &PersistentVolumeClaim) -> ObjectRef {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    ObjectRef {
        kind: "PersistentVolumeClaim",
        namespace: text(&claim.metadata.namespace),
        name: text(&claim.metadata.name),
        uid: PodUid::from(text(&claim.metadata.uid).as_str()),
        field_path: String::new(),
    }
}

impl CsiVolumeState {
    /// The PersistentVolume has this capacity.
    ///
    /// # Errors
    /// It is no size. What was known stays.
    pub(in crate::volumes::csi) fn set_capacity(&mut self, capacity: &str) -> Result<(), String> {
        let bytes = claim::size("spec.capacity of the PersistentVolume", capacity)?;
        self.sizes.volume = Some(bytes);
        self.capacity = Some(capacity.to_owned());
        Ok(())
    }
}
