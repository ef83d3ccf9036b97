//! What can go wrong with a volume.

use super::{
    UnsafeName,
    content::{ContentError, ContentErrors},
};
use crate::model::QuantityError;
use crate::resources::BadAmount;
use std::{
    io,
    path::{Path, PathBuf},
};

/// A pod's volumes cannot be prepared or taken down. Printed with its causes, the first variant
/// reads as upstream's `FailedMount` event does.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// One volume cannot be set up.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    SetUp {
        /// Name of the volume.
        volume: String,
        /// Why.
        source: SetUpError,
    },
    /// One sub-path of a volume cannot be bound.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    SubPath {
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
        /// Why.
        source: SetUpError,
    },
    /// A name in the pod is no file name.
    #[error("the pod has no safe place on disk")]
    Name(#[from] UnsafeName),
    /// The pod's resource amounts cannot be read.
    #[error("the pod's memory bound is unknown")]
    Amount(#[from] BadAmount),
    /// Another kubelet made a volume of a kind that this one does not know.
    #[error("volume {volume:?} of kind {plugin} was made by another kubelet")]
    UnknownPlugin {
        /// Name of the volume.
        volume: String,
        /// Its kind.
        plugin: String,
    },
    /// Something below the pod's directory is mounted that is not ours to unmount.
    #[error("{0} is still mounted")]
    StillMounted(PathBuf),
    /// A file operation failed.
    #[error("cannot {action} {path}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The pod is to stop, or to be synced again, before its files are there.
    #[error("the pod no longer waits for its files")]
    Cancelled,
    /// Its files are not there after so many seconds; a file system may hang.
    #[error("volumes are not ready after {0} s")]
    TimedOut(u64),
    /// The blocking task was lost.
    #[error("the volume task did not finish")]
    Task(#[from] tokio::task::JoinError),
}

/// Why one volume cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// A hostPath is not what its type says.
    #[error("hostPath type check failed: {path} is not {expected}")]
    HostPathType {
        /// The path on the node.
        path: String,
        /// `a directory`, `a file`, ….
        expected: &'static str,
    },
    /// A hostPath type that does not exist.
    #[error("{0} is an invalid volume type")]
    InvalidHostPathType(String),
    /// A kind of volume, or a medium, that this kubelet cannot provide.
    #[error("{0} is not supported by this kubelet")]
    Unsupported(String),
    /// The files of the volume cannot be made.
    #[error(transparent)]
    Content(#[from] ContentErrors),
    /// No huge pages of a size that fits.
    #[error("{0}")]
    HugePages(String),
    /// `sizeLimit` is not a quantity.
    #[error("sizeLimit")]
    SizeLimit(#[source] QuantityError),
    /// A sub-path leads out of its volume, or is not a plain relative path.
    #[error("{0:?} leads out of the volume")]
    Escapes(String),
    /// A file operation failed.
    #[error("cannot {action} {path}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl From<UnsafeName> for SetUpError {
    fn from(name: UnsafeName) -> Self {
        Self::Escapes(name.0)
    }
}

impl From<Vec<ContentError>> for SetUpError {
    fn from(errors: Vec<ContentError>) -> Self {
        Self::Content(ContentErrors(errors))
    }
}

/// Says what was being done to what when the system refused.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetUpError {
    let path = path.to_path_buf();
    move |source| SetUpError::Io {
        action,
        path,
        source,
    }
}
