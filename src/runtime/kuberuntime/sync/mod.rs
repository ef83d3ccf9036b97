//! One sync of a pod: carries out the computed actions, step by step.
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
