//! One volume of the node: its state machine, and what its calls need.

use super::expansion::decision::Sizes;
use super::identity::{Lifecycle, PLUGIN, VolumeIdentity};
use super::machine::{CallOutcome, NodeVolume, Step, StepFailure};
use super::record::VolumeRecord;
use super::requests::MountingPod;
use super::selinux;
use super::spec::CsiVolumeSpec;
use crate::apiserver::csi_driver::CsiDriver;
use crate::base::clock::{self, Instant};
use crate::model::{PodUid, ReportedUsage};
use crate::volumes::ownership::{ChangePolicy, OwnershipWalk};
use crate::volumes::{PodDir, VolumeGroup};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How a pod mounts a volume.
#[derive(Clone, Debug)]
pub struct PublishRequest {
    /// The volume's name in the pod.
    pub volume: String,
    /// What is mounted.
    pub spec: Arc<CsiVolumeSpec>,
    /// The pod.
    pub pod: MountingPod,
    /// The pod's directory.
    pub(in crate::volumes) directory: PodDir,
    /// The pod mounts it read-only.
    pub read_only: bool,
    /// The pod's `fsGroup`.
    pub(in crate::volumes) group: VolumeGroup,
    /// The pod's `fsGroupChangePolicy`.
    pub(in crate::volumes) change_policy: ChangePolicy,
}

impl PublishRequest {
    /// The SELinux label that the volume is mounted with.
    pub(in crate::volumes) fn file_label(&self, object: &CsiDriver) -> Option<&str> {
        let label = self.pod.file_labels.get(&self.volume);
        let label = label.filter(|_| selinux::mounts_with_context(object, &self.spec));
        label.map(String::as_str)
    }
}

/// What a driver has reported of a volume for a pod.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodUsage {
    pub(super) latest: Option<ReportedUsage>,
    /// When the driver was called last.
    pub(super) called_at: Option<Instant>,
}

impl PodUsage {
    /// Whether the driver has to be called.
    pub(super) fn is_due(&self, period: Duration, now: Instant) -> bool {
        let passed = |at: Instant| now.saturating_duration_since(at) >= period;
        self.called_at.is_none_or(passed)
    }
}

/// What a volume's calls need to know about a pod.
#[derive(Clone, Debug)]
pub(super) struct PodOfVolume {
    /// The name of the pod's volume directory.
    pub(super) spec_name: String,
    /// How the pod mounts the volume; `None` if only an earlier kubelet knew.
    pub(super) request: Option<Arc<PublishRequest>>,
    /// Since when the pod has been waiting for its first publish.
    pub(super) waits_since: Option<Instant>,
    /// What the driver has reported.
    pub(super) usage: PodUsage,
}

/// A change of the ownership of files in progress.
pub(super) struct RunningOwnershipWalk {
    /// The pod that waits for it.
    pub(super) pod: PodUid,
    pub(super) walk: Arc<OwnershipWalk>,
    pub(super) since: Instant,
}

/// The state of one volume.
pub(super) struct CsiVolumeState {
    pub(super) machine: NodeVolume,
    /// The volume as a pod last wanted it; `None` if only an earlier kubelet knew.
    pub(super) spec: Option<Arc<CsiVolumeSpec>>,
    /// Name of the PersistentVolume, or of the inline volume.
    pub(super) spec_name: String,
    /// Whether a controller has to attach it; `None` while that is not known.
    pub(super) attach_required: Option<bool>,
    pub(super) pods: BTreeMap<PodUid, PodOfVolume>,
    /// The open devices of a block volume, so that the kernel gives their numbers to no other device.
    pub(super) devices: BTreeMap<PodUid, File>,
    /// The group that all files have been given to since the volume was staged.
    pub(super) owner_group: Option<u32>,
    /// The change of the ownership in progress.
    pub(super) ownership_walk: Option<RunningOwnershipWalk>,
    /// The SELinux label with which it was staged, if any; `None` if only an earlier kubelet knew.
    pub(super) staged_label: Option<Option<String>>,
    /// When it was last found that the node has too many volumes of the driver for this one to be attached.
    pub(super) over_limit_at: Option<Instant>,
    /// The sizes of the PersistentVolume and on this node.
    pub(super) sizes: Sizes,
    /// The capacity of the PersistentVolume, as it writes it.
    pub(super) capacity: Option<String>,
    /// How long the stage took that the next publish completes.
    pub(super) stage_took: Duration,
}

impl CsiVolumeState {
    /// The last failure of the steps that a pod waits for while it starts.
    pub(super) fn setup_failure(&self, uid: &PodUid) -> Option<(Step, StepFailure)> {
        // A dead mount is undone before the pod starts.
        let steps = [
            Step::Publish(uid.clone()),
            Step::Expand(uid.clone()),
            Step::Stage,
            Step::Unpublish(uid.clone()),
            Step::Unstage,
        ];
        let steps = steps.into_iter();
        let failures = steps.filter_map(|step| {
            let failure = self.machine.failure(&step)?.clone();
            Some((step, failure))
        });
        failures.max_by_key(|(_, failure)| failure.at)
    }
}

/// One volume of the node.
pub(super) struct CsiVolume {
    pub(super) identity: VolumeIdentity,
    pub(super) state: Mutex<CsiVolumeState>,
    /// Notifies of changes of the state.
    pub(super) changes: watch::Sender<()>,
    /// Held by work on files of the volume: if a path hangs, it keeps one thread.
    pub(super) files: Arc<tokio::sync::Mutex<()>>,
}

impl CsiVolume {
    pub(super) fn new(identity: VolumeIdentity, machine: NodeVolume, spec_name: &str) -> Self {
        let state = CsiVolumeState {
            machine,
            spec: None,
            spec_name: spec_name.to_owned(),
            attach_required: None,
            pods: BTreeMap::new(),
            devices: BTreeMap::new(),
            owner_group: None,
            ownership_walk: None,
            staged_label: None,
            over_limit_at: None,
            sizes: Sizes::default(),
            capacity: None,
            stage_took: Duration::ZERO,
        };
        Self {
            identity,
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
            files: Arc::default(),
        }
    }

    /// A pod wants the volume.
    pub(super) fn want(&self, request: &Arc<PublishRequest>) {
        self.modify(|state| {
            let uid = &request.pod.uid;
            state.spec = Some(request.spec.clone());
            if state.spec_name.is_empty() {
                // It was found staged without a pod.
                state.spec_name.clone_from(&request.spec.spec_name);
            }
            if let Some(capacity) = &request.spec.capacity {
                // One that is no size is reported when it is read again.
                let _ = state.set_capacity(capacity);
            }
            let pod = PodOfVolume {
                spec_name: request.spec.spec_name.clone(),
                request: Some(request.clone()),
                waits_since: Some(clock::instant()),
                usage: PodUsage::default(),
            };
            // The directory that the pod has keeps its name.
            match state.pods.get_mut(uid) {
                Some(known) => known.request = pod.request,
                None => drop(state.pods.insert(uid.clone(), pod)),
            }
            state.machine.want(uid, request.spec.is_for_single_pod());
        });
    }

    /// Changes the state and wakes those that wait for a change.
    pub(super) fn modify<T>(&self, change: impl FnOnce(&mut CsiVolumeState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changes.send_replace(());
        result
    }

    /// The pod does not want the volume any more.
    pub(super) fn unwant(&self, uid: &PodUid) {
        self.modify(|state| {
            state.machine.unwant(uid);
            state.prune();
        });
    }

    /// Whether the pod has or may have it.
    pub(super) fn is_of(&self, uid: &PodUid) -> bool {
        self.state.lock().machine.pods().contains_key(uid)
    }

    /// What has to be on disk before the next step; `None` if nothing is left of the volume.
    pub(super) fn record(&self) -> Option<VolumeRecord> {
        use super::machine::Known::No;
        let state = self.state.lock();
        let published = state.machine.pods().iter();
        let published = published.filter(|(_, pod)| pod.published != No);
        let pods = published.filter_map(|(uid, _)| {
            let pod = state.pods.get(uid)?;
            Some((uid.clone(), pod.spec_name.clone()))
        });
        let record = VolumeRecord {
            identity: self.identity.clone(),
            spec_name: state.spec_name.clone(),
            attach_required: state.attach_required.unwrap_or(true),
            is_staged: state.machine.staged() != No,
            pods: pods.collect(),
            owner_group: state.owner_group,
            size: state.sizes.node,
        };
        (record.is_staged || !record.pods.is_empty()).then_some(record)
    }

    /// Whether a pod defines it inline: then it is neither attached nor staged.
    pub(super) fn is_inline(&self) -> bool {
        self.identity.lifecycle() == Lifecycle::Ephemeral
    }

    /// Whether it was translated from the volume of a former in-tree plugin, as far as is known.
    pub(super) fn is_migrated(&self) -> bool {
        self.spec().is_some_and(|spec| spec.is_migrated)
    }

    /// Whether a controller has to attach it, as far as is known.
    pub(super) fn has_to_be_attached(&self) -> bool {
        !self.is_inline() && self.state.lock().attach_required.unwrap_or(true)
    }

    /// The SELinux label that the volume is staged with for the pod that wants it.
    pub(super) fn file_label(&self, object: &CsiDriver) -> Option<String> {
        self.state.lock().file_label(object).flatten()
    }

    /// The plugin in labels of metrics.
    pub(super) fn plugin(&self) -> String {
        format!("{PLUGIN}:{}", self.identity.driver())
    }

    pub(super) fn pod(&self, uid: &PodUid) -> Option<PodOfVolume> {
        self.state.lock().pods.get(uid).cloned()
    }

    pub(super) fn spec(&self) -> Option<Arc<CsiVolumeSpec>> {
        self.state.lock().spec.clone()
    }
}

impl CsiVolumeState {
    /// The label for the first pod that wants the volume; `None` if no pod does.
    fn file_label(&self, object: &CsiDriver) -> Option<Option<String>> {
        let pods = self.pods.iter();
        let mut wanting = pods.filter(|(uid, _)| self.machine.is_wanted_by(uid));
        let request = wanting.find_map(|(_, pod)| pod.request.as_ref())?;
        Some(request.file_label(object).map(str::to_owned))
    }

    /// A mount has one SELinux label: a volume that was staged for another pod is staged again.
    pub(super) fn check_label(&mut self, object: &CsiDriver) {
        let labels = self.staged_label.as_ref().zip(self.file_label(object));
        if labels.is_some_and(|(staged, wanted)| *staged != wanted) {
            self.machine.replace_stage();
        }
    }

    /// A step has ended.
    pub(super) fn ended(&mut self, step: &Step, outcome: CallOutcome) {
        let is_done = outcome == CallOutcome::Done;
        self.machine.ended(step, outcome, clock::instant());
        if let (Step::Publish(uid), true) = (step, is_done && self.sizes.is_behind()) {
            self.machine.request_expansion(uid, true);
        }
        if self.machine.is_undone() {
            // Another node may write to it now.
            self.owner_group = None;
            (self.sizes.node, self.sizes.is_refused) = (None, false);
        }
    }

    /// Forgets what calls need to know about pods that the machine has forgotten.
    pub(super) fn prune(&mut self) {
        let known = self.machine.pods();
        self.pods.retain(|uid, _| known.contains_key(uid));
        self.devices.retain(|uid, _| known.contains_key(uid));
    }
}
