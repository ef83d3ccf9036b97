//! The nouns of a kubelet: plain data, no effects.
//!
//! * Owns: identifiers, the runtime's picture of a pod ([`PodStatus`]), pod updates, probe verdicts,
//!   and every string that users or other kubelets see (labels, annotations, reasons), spelled once.
//! * Woken by nothing, publishes nothing; it must never do I/O.
//! * Answers to upstream's `pkg/kubelet/types` and the data half of `pkg/kubelet/container`.

mod grace;
mod hash;
mod ids;
pub mod keys;
mod pod;
mod probe;
mod quantity;
pub mod reasons;
mod status;
mod update;

pub use grace::GraceDeadline;
pub use hash::{back_off_key, container_hash, fnv64a};
pub use ids::{ContainerId, PodFullName, PodUid, SandboxId};
pub use pod::{Pod, PodExt, RestartPolicy, is_sidecar};
pub use probe::{ProbeKind, ProbeVerdict};
pub use quantity::{Quantity, QuantityError};
pub use status::{ContainerState, ContainerStatus, NetworkMode, PodStatus, SandboxStatus, Seq};
pub use update::{PodOp, PodSource, PodUpdate, SourceSet};

#[cfg(test)]
mod tests;
