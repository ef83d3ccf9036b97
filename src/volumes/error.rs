//! Errors of volumes.

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
        source: SetUpError,
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
        source: SetUpError,
    },
    /// A name in the pod is not a valid file name.
    #[error("a name in the pod cannot be used as a file name")]
    Name(#[from] UnsafeName),
    /// The pod's resource amounts cannot be read.
    #[error("a resource amount of the pod is invalid")]
    Amount(#[from] BadAmount),
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
        Some(Self {
            first: Box::new(errors.next()?),
            others: errors.collect(),
        })
    }

    /// All errors.
    pub fn errors(&self) -> impl Iterator<Item = &VolumeError> {
        std::iter::once(&*self.first).chain(&self.others)
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
        Self {
            first: Box::new(first),
            others: Vec::new(),
        }
    }
}

/// Why one volume cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// The path of a hostPath does not have the requested type.
    #[error("hostPath type check failed: {path} is not {expected}")]
    HostPathType {
        /// The path on the node.
        path: String,
        /// `a directory`, `a file`, ….
        expected: &'static str,
    },
    /// Unknown hostPath type.
    #[error("{0} is an invalid volume type")]
    InvalidHostPathType(String),
    /// `volumeMode` does not fit the container's use: a block volume in `volumeMounts`, or a file system in
    /// `volumeDevices`.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    VolumeMode {
        /// Name of the volume.
        volume: String,
        /// Its `volumeMode`.
        mode: String,
        /// The container's field that refers to it.
        field: &'static str,
    },
    /// A volume plugin or medium that this kubelet does not support.
    #[error("{0} is not supported by this kubelet")]
    Unsupported(String),
    /// The volume's files cannot be built.
    #[error(transparent)]
    Content(#[from] ContentErrors),
    /// A device, or a program run on it, failed; the text is upstream's.
    #[error("{0}")]
    Device(String),
    /// The pod requests no huge pages of a matching size.
    #[error("{0}")]
    HugePages(String),
    /// `sizeLimit` is not a valid quantity.
    #[error("sizeLimit")]
    SizeLimit(#[source] QuantityError),
    /// A sub-path leads out of its volume, or is not a relative path.
    #[error("{0:?} leads out of the volume")]
    Escapes(String),
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
}

/// Why the files of a volume cannot be built; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// An object does not exist or cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object was not looked up (a bug).
    #[error("{} {:?} was not looked up", .0.kind, .0.name)]
    NotLookedUp(ObjectKey),
    /// A ConfigMap has no such entry.
    #[error("configmap references non-existent config key: {0}")]
    ConfigMapKey(String),
    /// A Secret has no such entry.
    #[error("references non-existent secret key: {0}")]
    SecretKey(String),
    /// A path is invalid in a volume.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Invalid field reference.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// A resource field cannot be resolved.
    #[error(transparent)]
    Resource(#[from] FieldRefError),
    /// A `mountPath` leads out of the container's root.
    #[error("invalid container mount point {0}")]
    MountPoint(String),
    /// No token was issued.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A token was not looked up (a bug).
    #[error("the token was not looked up")]
    TokenNotLookedUp,
    /// No trust anchors are available.
    #[error(transparent)]
    Bundle(#[from] TrustBundleError),
    /// The bundles were not looked up (a bug).
    #[error("the ClusterTrustBundles were not looked up")]
    BundlesNotLookedUp,
    /// No certificate was issued.
    #[error(transparent)]
    Certificate(#[from] PodCertificateError),
    /// A certificate was not looked up (a bug).
    #[error("the certificate was not looked up")]
    CertificateNotLookedUp,
    /// Unsupported source of a projected volume.
    #[error("an unknown source of a projected volume is not supported by this kubelet")]
    UnknownSource,
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

/// All errors, printed as upstream prints an aggregate: a single one as it is, several in brackets.
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

/// Adds the operation and its path to a system error.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetUpError {
    let path = path.to_path_buf();
    move |source| SetUpError::Io {
        action,
        path,
        source,
    }
}
