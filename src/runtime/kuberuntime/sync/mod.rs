//! One sync of a pod: carries out the computed actions, step by step.
//!
//! The input is a pod and its settled runtime status. `compute_pod_actions` compares the two, and mostly there is
//! nothing to do. Otherwise the steps follow in a fixed order: kill what must not run, resize, create the sandbox,
//! start containers one after the other. A start is: back-off, image, configuration, create, start, postStart hook.
//! Whatever was changed in the runtime is *touched* in the pod cache, so that it is read again before the next sync.
//!
//! A regular container or sidecar that cannot start does not stop the others; a plain init container or the sandbox
//! ends the sync. The result says why and when to retry, and the next sync computes its actions from what is there by
//! then. A create without an answer may have succeeded: the container is looked up, and adopted if it is there.
//!
//! * Owns: the order of the steps. Advances the back-offs of containers and sandboxes (`restart_back_off`,
//!   `sandbox_back_off`).
//! * Woken by: `KubeGenericRuntimeManager::sync_pod`.
//! * Publishes: changed items to the pod cache, events, entries of the pod history; one result per sync.
//! * Must never create a second container or sandbox of one name while the outcome of the first is
//!   unknown, or be cancelled between creating a container and starting it.
//! * Upstream: `SyncPod`, `startContainer` and `createPodSandbox`.

mod container;
mod images;
mod pod_cgroups;
mod post_start;
mod pull_secrets;
mod request;
mod resize;
mod restart_all;
mod sandbox;
mod sync_pod;

pub use request::{PodSyncResult, StartFailure, SyncRequest, short_id};
pub use restart_all::RestartAllStage;

pub(super) use container::ContainerStarter;
pub(super) use images::ContainerImages;
pub(super) use pod_cgroups::PodCgroups;
pub(super) use post_start::PostStart;
pub(super) use request::StartContainerError;
pub(super) use resize::PodResizer;
pub(super) use restart_all::AllContainersRestarter;
pub(super) use sandbox::SandboxCreator;
pub(super) use sync_pod::PERMIT_HOLD;
