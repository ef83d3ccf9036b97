//! What can go wrong with a volume.

use super::UnsafeName;
use crate::apiserver::claim::{ClaimError, PersistentVolumeClaimKey};
use crate::apiserver::configmap_secret::{ObjectError, ObjectKey};
use crate::apiserver::pod_certificate::PodCertificateError;
use crate::apiserver::token::TokenError;
use crate::apiserver::trust_bundle::TrustBundleError;
use crate::base::panics::Panicked;
use crate::model::{FieldRefError, QuantityError, requests::BadAmount};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Longest path in a volume, bytes (the kernel's limit, as upstream has it).
pub(super) const MAX_PATH: usize = 4096;
/// Longest name within such a path, bytes.
pub(super) const MAX_NAME: usize = 255;

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
    /// The claim of a volume has none to mount.
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
    /// What a volume of kind `local` names cannot be mounted.
    #[error("MountVolume.NewMounter initialization failed for volume {volume:?} ")]
    NewMounter {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        source: SetUpError,
    },
    /// A device cannot be formatted, checked or mounted.
    #[error("MountVolume.MountDevice failed for volume {volume:?} ")]
    MountDevice {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        source: SetUpError,
    },
    /// A volume has mount options, and those of its kind have none.
    #[error(
        "MountVolume.MountOptionSupport check failed for volume {0:?} : mount options are not supported for this volume type"
    )]
    MountOptions(String),
    /// The volume of a claim is for other nodes.
    #[error("MountVolume.NodeAffinity check failed for volume {volume:?} : {why}")]
    NodeAffinity {
        /// Name of the PersistentVolume.
        volume: String,
        /// Why.
        why: &'static str,
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
    /// A name in the pod is not a file name.
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
    /// Something that the kubelet did not mount is mounted below the pod's directory.
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
    /// These volumes are not ready in time; a file system may hang.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[]: timed out waiting for the condition",
        .0.join(" ")
    )]
    Unmounted(Vec<String>),
    /// Sub-paths of a volume are not there after so many seconds; a file system may hang.
    #[error("sub-paths of volume \"{volume}\" are not ready after {seconds} s")]
    TimedOut {
        /// The volume.
        volume: String,
        /// How long they were waited for.
        seconds: u64,
    },
    /// The blocking task was lost.
    #[error("the volume task did not finish")]
    Task(#[from] tokio::task::JoinError),
    /// A defect of the kubelet.
    #[error("the volume task panicked")]
    Panicked(#[from] Panicked),
}

/// Why a pod does not have its volumes: at least one error, in the order of its volumes. Printed as the first one.
#[derive(Debug)]
pub struct NotPrepared {
    /// The first one.
    pub first: Box<VolumeError>,
    /// The others.
    pub others: Vec<VolumeError>,
}

impl NotPrepared {
    /// `None` without errors.
    pub(super) fn of(errors: Vec<VolumeError>) -> Option<Self> {
        let mut errors = errors.into_iter();
        Some(Self {
            first: Box::new(errors.next()?),
            others: errors.collect(),
        })
    }

    /// All of them.
    pub fn errors(&self) -> impl Iterator<Item = &VolumeError> {
        std::iter::once(&*self.first).chain(&self.others)
    }
}

impl fmt::Display for NotPrepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)
    }
}

impl std::error::Error for NotPrepared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.first.source()
    }
}

impl From<VolumeError> for NotPrepared {
    fn from(first: VolumeError) -> Self {
        Self {
            first: Box::new(first),
            others: Vec::new(),
        }
    }
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
    /// The volume of a claim is a device and mounted, or the other way round.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    VolumeMode {
        /// Name of the volume.
        volume: String,
        /// Its mode.
        mode: String,
        /// Where a container refers to it.
        field: &'static str,
    },
    /// A kind of volume, or a medium, that this kubelet cannot provide.
    #[error("{0} is not supported by this kubelet")]
    Unsupported(String),
    /// The files of the volume cannot be made.
    #[error(transparent)]
    Content(#[from] ContentErrors),
    /// A device, or the program that was to do something with it, failed; the text is upstream's.
    #[error("{0}")]
    Device(String),
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

/// Why a volume's files cannot be made; texts as upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// An object is not there or cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object was not looked up.
    #[error("{} {:?} was not looked up", .0.kind, .0.name)]
    NotLookedUp(ObjectKey),
    /// A ConfigMap has no such entry.
    #[error("configmap references non-existent config key: {0}")]
    ConfigMapKey(String),
    /// A Secret has no such entry.
    #[error("references non-existent secret key: {0}")]
    SecretKey(String),
    /// A path cannot be one in a volume.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The pod has no such field.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// An amount of a resource cannot be shown.
    #[error(transparent)]
    Resource(#[from] FieldRefError),
    /// The volume is to be mounted outside of the container.
    #[error("invalid container mount point {0}")]
    MountPoint(String),
    /// There is no token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A token was not looked up.
    #[error("the token was not looked up")]
    TokenNotLookedUp,
    /// There are no trust anchors.
    #[error(transparent)]
    Bundle(#[from] TrustBundleError),
    /// The bundles were not looked up.
    #[error("the ClusterTrustBundles were not looked up")]
    BundlesNotLookedUp,
    /// There is no certificate.
    #[error(transparent)]
    Certificate(#[from] PodCertificateError),
    /// A certificate was not looked up.
    #[error("the certificate was not looked up")]
    CertificateNotLookedUp,
    /// A source that this kubelet does not have.
    #[error("an unknown source of a projected volume is not supported by this kubelet")]
    UnknownSource,
}

/// Why a path cannot be one in a volume; texts as upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// There is no name in it.
    #[error("invalid path: must not be empty: {0:?}")]
    Empty(String),
    /// It begins at the root.
    #[error("invalid path: must be relative path: {0}")]
    Absolute(String),
    /// It is longer than the kernel takes.
    #[error("invalid path: must be less than or equal to {MAX_PATH} characters")]
    TooLong,
    /// One of its names is longer than file systems take.
    #[error("invalid path: filenames must be less than or equal to {MAX_NAME} characters")]
    NameTooLong,
    /// It steps back.
    #[error("invalid path: must not contain '..': {0}")]
    StepsBack(String),
    /// Names of this form are the writer's own.
    #[error("invalid path: must not start with '..': {0}")]
    Reserved(String),
    /// No file can be named so.
    #[error("invalid path: must not contain a NUL")]
    Nul,
    /// One file would have to be a directory as well.
    #[error("invalid path: {0} is both a file and a directory")]
    FileAndDirectory(String),
}

/// All that is wrong, as upstream lists it: one thing as it is, several in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentErrors(pub Vec<ContentError>);

impl fmt::Display for ContentErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", texts.join(", "))
    }
}

impl std::error::Error for ContentErrors {}

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
