//! The topology manager: aligns the exclusive resources of a container to NUMA nodes. Pure.
//!
//! * Owns: the merge of the hints of all providers into one affinity, and its admission by the policy.
//! * Woken by: the admission of a pod.
//! * Publishes: nothing; [`TopologyManager::admit`] passes the affinity to each provider for its allocation.
//! * Must never keep state: a provider returns a hint for its existing allocation.
//! * Upstream: `pkg/kubelet/cm/topologymanager`.
//!
//! Resource managers implement [`HintProvider`].

mod manager;
mod mask;
mod merge;
mod options;

pub use manager::{HintProvider, TopologyAdmission, TopologyError, TopologyManager, TopologyScope};
pub use mask::{NumaMask, ResourceHints, TopologyHint, combinations, subsets};
pub use merge::{NumaInfo, TopologyPolicy};
pub use options::{TopologyOptions, parse_bool};

#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod tests;
