//! Volumes of CSI drivers.
//!
//! A pod that mounts a CSI volume is one of the pods that *want* the volume. While a pod wants it, the volume is
//! attached by a controller, staged once for the node (`NodeStageVolume`) and published for each of the pods
//! (`NodePublishVolume`). Once the containers of a pod have ended, the pod does not want it any more: it is unpublished
//! for this pod, and unstaged after the last one. Each volume has a task (`task`); its state machine ([`machine`])
//! decides which step comes next.
//!
//! A volume of mode Block is a device instead of a file system ([`identity::VolumeMode`]): its steps are the same, its
//! paths are others, and what a driver has published is bound and linked as `devices` says.
//!
//! Every call may end with an unknown outcome, and the kubelet may be killed during each. Until a successful call has
//! settled what is there, the volume is *unknown*: it stays in use, so that no controller detaches it, and is undone
//! once no pod wants it. So that the next kubelet knows what to undo, [`record`] has one file per volume, written before
//! the first step; [`vol_data`] are the files of upstream, for kubelets that know only those, and [`recovery`] makes the
//! volumes of an earlier kubelet from both.
//!
//! * Owns: the table of registered drivers ([`CsiDrivers`]) with one connection to each ([`NodeClient`]); the volumes of
//!   the node and a task for each; `plugins/kubernetes.io/csi`, `csi_volumes` and the pods' directories of CSI volumes.
//! * Woken by: pods' workers, registrations of drivers, CSIDriver objects, the Node object, ends of calls, timers.
//! * Publishes: the volumes in use, for the Node's `volumesInUse`.
//! * Must never call a driver without a deadline, make two calls for one volume at once, publish what is not staged, let
//!   a volume leave the volumes in use before it is known to be undone, remove anything below a mount, or show a secret,
//!   a token or a mount option.
//! * Upstream: `pkg/volume/csi`, and the reconciler of `pkg/kubelet/volumemanager`.

mod messages;
mod redact;
mod facts;
mod error;
mod metrics;
mod client;
mod drivers;
pub mod identity;
mod registration;
pub mod access_mode;
pub mod spec;
pub mod migration;
pub mod paths;
pub mod machine;
pub mod mount_table;
pub mod devices;
pub mod files;
pub mod record;
pub mod vol_data;
pub mod recovery;
pub mod requests;
pub mod inputs;
pub mod volume;
mod setup_error;
pub mod manager;
mod queries;
mod drain;
mod steps;
mod block;
mod undo;
pub mod selinux;
mod ownership;
pub(super) mod dead_mounts;
mod attach;
pub mod expansion;
mod task;
mod usage;
#[cfg(test)]
pub(crate) mod tests;

pub use client::{CSI_TIMEOUT, NodeClient};
pub use drain::VolumesOfPod;
pub use drivers::{CsiDrivers, RegistrationId};
pub use error::{CallOutcome, CsiError};
pub use facts::{NodeCapabilities, NodeInfo, UsageOfUnit, VolumeStats};
pub use metrics::CsiMetrics;
pub use redact::SERVICE_ACCOUNT_TOKENS;

/// The generated messages, clients and servers of drivers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing, dead_code)]
pub mod proto {
    tonic::include_proto!("csi.v1");
}
