//! Errors of volumes.

use super::UnsafeName;
use crate::apiserver::claim::{ClaimError, PersistentVolumeClaimKey};
use crate::base::panics::Panicked;
use crate::model::reasons::event;
use crate::model::requests::InvalidQuantity;
use anyhow::anyhow;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Maximum length of a path in a volume in bytes (the kernel's limit, as upstream).
pub(super) const MAX_PATH: usize = 4096;
/// Maximum length of a file name in such a path in bytes.
pub(super) const MAX_NAME: usize = 255;

/// Why a pod's volumes cannot be prepared or torn down. Printed with its sources, the first variant has the text of
/// upstream's `FailedMount` event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// One volume cannot be set up.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    SetUp {
        /// Name of the volume.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// The claim of a volume cannot be resolved.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: error processing PVC {}/{}",
        .key.namespace, .key.name
    )]
    Claim {
        /// Name of the volume.
        volume: String,
        /// The claim.
        key: PersistentVolumeClaimKey,
        /// Why.
        source: Box<ClaimError>,
    },
    /// The path of a `local` volume cannot be mounted.
    #[error("MountVolume.NewMounter initialization failed for volume {volume:?} ")]
    NewMounter {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// A disk cannot be attached or found.
    #[error("MountVolume.WaitForAttach failed for volume {volume:?} ")]
    WaitForAttach {
        /// Name of the PersistentVolume, or of the pod's volume.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// A device cannot be formatted, checked or mounted.
    #[error("MountVolume.MountDevice failed for volume {volume:?} ")]
    MountDevice {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// The driver cannot expand the volume before the pod uses it.
    #[error("MountVolume.Setup failed while expanding volume for volume {volume:?} ")]
    Expand {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// The device of a block volume cannot be staged, published or mapped.
    #[error("MapVolume.{step} failed for volume {volume:?} ")]
    Map {
        /// Upstream's name of the step.
        step: &'static str,
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// A volume cannot be unmounted.
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : {why}")]
    TearDown {
        /// Name of the volume.
        volume: String,
        /// Why.
        why: String,
    },
    /// A volume has mount options, which its plugin does not support.
    #[error(
        "MountVolume.MountOptionSupport check failed for volume {0:?} : mount options are not supported for this volume type"
    )]
    MountOptions(String),
    /// The node affinity of a claim's volume does not match the node.
    #[error("MountVolume.NodeAffinity check failed for volume {volume:?} : {why}")]
    NodeAffinity {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        why: &'static str,
    },
    /// A sub-path of a volume cannot be bind-mounted.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    SubPath {
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
        /// Why.
        source: anyhow::Error,
    },
    /// A name in the pod is not a valid file name.
    #[error("a name in the pod cannot be used as a file name")]
    Name(#[from] UnsafeName),
    /// The pod's resource amounts cannot be read.
    #[error("a resource amount of the pod is invalid")]
    Amount(#[from] InvalidQuantity),
    /// Another kubelet created a volume of a plugin that this one does not know.
    #[error("volume {volume:?} of kind {plugin} was created by another kubelet")]
    UnknownPlugin {
        /// Name of the volume.
        volume: String,
        /// Its plugin.
        plugin: String,
    },
    /// Something that the kubelet did not mount is mounted below the pod's directory.
    #[error("{0} is still mounted")]
    StillMounted(PathBuf),
    /// A file operation failed.
    #[error("cannot {action} {path}")]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The pod's sync was cancelled.
    #[error("the pod's sync was cancelled")]
    Cancelled,
    /// The node has too many volumes of a driver for this one to be attached; upstream's text.
    #[error(
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{0}], unattached volumes=[{0}], failed to process volumes=[]: timed out waiting for the condition"
    )]
    AttachmentLimit(String),
    /// These volumes were not ready within the timeout; a file system may hang.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[]: timed out waiting for the condition",
        .0.join(" ")
    )]
    Unmounted(Vec<String>),
    /// Sub-paths of a volume were not mounted within the timeout; a file system may hang.
    #[error("sub-paths of volume \"{volume}\" are not ready after {seconds} s")]
    TimedOut {
        /// The volume.
        volume: String,
        /// The timeout in seconds.
        seconds: u64,
    },
    /// The blocking task was cancelled or panicked.
    #[error("the volume task did not finish")]
    Task(#[from] tokio::task::JoinError),
    /// A panic, which is a bug of the kubelet.
    #[error("the volume task panicked")]
    Panicked(#[from] Panicked),
}

/// Something that this kubelet does not support, which no retry changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not supported by this kubelet")]
pub struct Unsupported(pub String);

impl VolumeError {
    /// The setup of a volume failed. An error of this type stays as it is.
    pub(super) fn set_up(volume: &str, source: anyhow::Error) -> Self {
        source.downcast().unwrap_or_else(|source| Self::SetUp { volume: volume.to_owned(), source })
    }

    /// The reason of its event.
    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::Map { .. } => event::FAILED_MAP_VOLUME,
            _ => event::FAILED_MOUNT,
        }
    }

    /// Whether this kubelet does not support the volume.
    fn is_unsupported(&self) -> bool {
        matches!(self, Self::SetUp { source, .. } if source.is::<Unsupported>())
    }
}

/// Why a pod's volumes are not ready: at least one error, in the order of the volumes. Printed as the first one.
#[derive(Debug)]
pub struct VolumesNotReady {
    /// The first one.
    pub first: Box<VolumeError>,
    /// The other errors.
    pub others: Vec<VolumeError>,
}

impl VolumesNotReady {
    /// `None` if there are no errors.
    pub(super) fn of(errors: Vec<VolumeError>) -> Option<Self> {
        let mut errors = errors.into_iter();
        Some(Self { first: Box::new(errors.next()?), others: errors.collect() })
    }

    /// All errors.
    pub fn errors(&self) -> impl Iterator<Item = &VolumeError> {
        std::iter::once(&*self.first).chain(&self.others)
    }

    /// The error of a volume that cannot be attached because the node has too many.
    pub fn attachment_limit(&self) -> Option<&VolumeError> {
        let is_limit = |error: &&VolumeError| matches!(error, VolumeError::AttachmentLimit(_));
        self.errors().find(is_limit)
    }

    /// Whether the pod cannot start with this kubelet, whatever becomes of its other volumes.
    pub fn is_unsupported(&self) -> bool {
        self.errors().any(VolumeError::is_unsupported)
    }
}

impl fmt::Display for VolumesNotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)
    }
}

impl std::error::Error for VolumesNotReady {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.first.source()
    }
}

impl From<VolumeError> for VolumesNotReady {
    fn from(first: VolumeError) -> Self {
        Self { first: Box::new(first), others: Vec::new() }
    }
}

/// Why a path is invalid in a volume; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It is empty or has no file name.
    #[error("invalid path: must not be empty: {0:?}")]
    Empty(String),
    /// It is absolute.
    #[error("invalid path: must be relative path: {0}")]
    Absolute(String),
    /// It is longer than `MAX_PATH`.
    #[error("invalid path: must be less than or equal to {MAX_PATH} characters")]
    TooLong,
    /// A component is longer than `MAX_NAME`.
    #[error("invalid path: filenames must be less than or equal to {MAX_NAME} characters")]
    NameTooLong,
    /// It contains `..`.
    #[error("invalid path: must not contain '..': {0}")]
    StepsBack(String),
    /// It begins with the prefix reserved for the atomic writer.
    #[error("invalid path: must not start with '..': {0}")]
    Reserved(String),
    /// It contains a NUL byte.
    #[error("invalid path: must not contain a NUL")]
    Nul,
    /// It is a file and also a directory of another file.
    #[error("invalid path: {0} is both a file and a directory")]
    FileAndDirectory(String),
}

/// Several errors as one, with upstream's text of an aggregate: a single one as it is, several in brackets.
pub(super) fn aggregate(errors: &[anyhow::Error]) -> anyhow::Error {
    if let [only] = errors {
        return anyhow::Error::msg(only.to_string());
    }
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    anyhow!("[{}]", texts.join(", "))
}

/// The context of a failed file operation: the operation, as a verb, and its path.
pub(super) fn cannot(action: &str, path: &Path) -> impl FnOnce() -> String {
    move || format!("cannot {action} {}", path.display())
}

/// The same as a [`VolumeError`].
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_path_buf();
    move |source| VolumeError::Io { action, path, source }
}
