//! The data types of the kubelet, without side effects.
//!
//! * Owns: identifiers, the runtime status of a pod ([`PodStatus`]), properties of the node ([`NodeFacts`]), pod
//!   updates, probe results, and every string that users or other kubelets see (labels, annotations, reasons).
//! * Woken by nothing, publishes nothing; it must never do I/O.
//! * Upstream: `pkg/kubelet/types` and the data half of `pkg/kubelet/container`.

mod addresses;
mod grace;
mod hash;
mod ids;
pub mod keys;
mod lenient_node;
mod measurable_volume;
pub mod node_selector;
mod pending_volume;
mod probe;
mod quantity;
mod amount;
pub mod reasons;
mod source;
mod pod;
mod field_path;
pub mod requests;
mod node_facts;
mod field_ref;
pub mod validation;
mod restart;
mod status;
mod update;

pub use addresses::AddressOrder;
pub use amount::{Amount, canonical};
pub use field_path::pod_field;
pub use field_ref::{FieldRefError, field_ref_value};
pub use grace::{GraceDeadline, positive_grace};
pub use hash::{back_off_key, container_hash, fnv32a, is_other_manifest, same_manifest};
pub use ids::{ContainerId, PodFullName, PodLogName, PodUid, SandboxId};
pub use lenient_node::LenientNode;
pub use measurable_volume::{ClaimRef, MeasurableVolume, ProjectId, ReportedUsage, UsageSource};
pub use node_facts::NodeFacts;
pub use pending_volume::PendingVolume;
pub use pod::{
    Pod, PodExt, RESTART_PERIODS, RestartPolicy, SYSTEM_CRITICAL_PRIORITY, as_container,
    is_sidecar, is_terminal, parse_restart_period,
};
pub use probe::{ProbeKind, ProbeResult};
pub use quantity::{Quantity, QuantityError};
pub use restart::{RestartAction, container_should_restart, may_restart_all, restart_action};
pub use source::PodSource;
pub use status::{
    ContainerResources, ContainerState, ContainerStatus, ContainerUser, NetworkMode, PodStatus,
    SandboxStatus, Seq,
};
pub use update::{Completeness, PodOp, PodUpdate};

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
