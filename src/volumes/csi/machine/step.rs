//! The steps of a volume, and what their outcomes prove. Pure.

use crate::base::clock::Instant;
use crate::model::PodUid;
use std::fmt;

/// Whether something is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// It is not: nothing was ever called, or a call has undone it.
    #[default]
    No,
    /// A call has succeeded.
    Yes,
    /// A call is in progress, or its outcome is unknown.
    Unknown,
}

/// One step of a volume. Each is one call of the driver, with what belongs to it: directories, files and records.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// `NodeStageVolume`
    Stage,
    /// `NodePublishVolume` for a pod.
    Publish(PodUid),
    /// `NodePublishVolume` again for a pod, because the driver requires it from time to time. Whatever its outcome, the
    /// volume stays published, and no path may be removed.
    Republish(PodUid),
    /// `NodeExpandVolume` where the volume is published for a pod, if it has to be expanded. Whatever its outcome, the volume
    /// stays published.
    Expand(PodUid),
    /// `NodeUnpublishVolume` for a pod.
    Unpublish(PodUid),
    /// `NodeUnstageVolume`. A driver without the capability is not called: only an empty directory is removed.
    Unstage,
}

impl Step {
    /// The pod, for steps of one.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::Stage | Self::Unstage => None,
            Self::Publish(uid)
            | Self::Republish(uid)
            | Self::Expand(uid)
            | Self::Unpublish(uid) => Some(uid),
        }
    }

    /// The RPC.
    pub fn rpc(&self) -> &'static str {
        match self {
            Self::Stage => "NodeStageVolume",
            Self::Publish(_) | Self::Republish(_) => "NodePublishVolume",
            Self::Expand(_) => "NodeExpandVolume",
            Self::Unpublish(_) => "NodeUnpublishVolume",
            Self::Unstage => "NodeUnstageVolume",
        }
    }

    /// The step that undoes this one, or that this one undoes.
    pub(super) fn opposite(&self) -> Option<Self> {
        match self {
            Self::Stage => Some(Self::Unstage),
            Self::Unstage => Some(Self::Stage),
            Self::Publish(uid) => Some(Self::Unpublish(uid.clone())),
            Self::Unpublish(uid) => Some(Self::Publish(uid.clone())),
            Self::Republish(_) | Self::Expand(_) => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rpc())?;
        match self.pod() {
            Some(uid) => write!(f, " for pod {uid}"),
            None => Ok(()),
        }
    }
}

/// How a step ended; with an error unless it succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It succeeded.
    Done,
    /// The driver answered with a code that is final.
    Failed(String),
    /// The call may have had an effect, or may still have one: a timeout, a lost connection, a code that leaves the
    /// outcome open.
    Unknown(String),
    /// The driver was not called, because something was missing: the driver, a secret, a token, the VolumeAttachment, or
    /// space for a record.
    NotCalled(String),
}

impl CallOutcome {
    /// The error, unless the step succeeded.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Done => None,
            Self::Failed(error) | Self::Unknown(error) | Self::NotCalled(error) => Some(error),
        }
    }
}

/// What is known of a step's target after the step, which began when `before` was known. Nothing is guessed: a final
/// error proves that nothing is there only if nothing was there before, and a failed undo proves nothing.
pub(super) fn settled(step: &Step, before: Known, outcome: &CallOutcome) -> Known {
    match (outcome, step) {
        // A failed repetition or expansion does not end what the pod has.
        (_, Step::Republish(_) | Step::Expand(_)) | (CallOutcome::NotCalled(_), _) => before,
        (CallOutcome::Done, Step::Stage | Step::Publish(_)) => Known::Yes,
        (CallOutcome::Done, Step::Unpublish(_) | Step::Unstage) => Known::No,
        (CallOutcome::Failed(_), Step::Stage | Step::Publish(_)) if before == Known::No => {
            Known::No
        }
        (CallOutcome::Failed(_) | CallOutcome::Unknown(_), _) => Known::Unknown,
    }
}

/// The last failure of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// The error; at most a kilobyte.
    pub error: String,
    /// When the step ended.
    pub at: Instant,
    /// How many times it has failed in succession.
    pub count: u32,
}

/// Why no step can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A step is in progress.
    Step(Step),
    /// The driver is not registered.
    Driver,
    /// The API server has not confirmed yet that the volume is in use.
    VolumesInUse,
    /// No controller has attached the volume yet.
    Attach,
    /// Only one pod may have the volume, and this one has it.
    OtherPod(PodUid),
    /// The staged mount has to be replaced, once this pod does not have the volume any more.
    StaleStage(Option<PodUid>),
    /// It is not known yet which pods want the volume.
    Pods,
    /// The step failed, and is tried again at this time.
    Retry(Instant),
}

impl WaitReason {
    pub(super) fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::Retry(at) => Some(*at),
            _ => None,
        }
    }
}

/// A wait of the whole volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeWait {
    /// What the most urgent step waits for.
    pub reason: WaitReason,
    /// When any step is tried again; `None` if only a change ends the wait.
    pub retry_at: Option<Instant>,
}
