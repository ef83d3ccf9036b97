//! The topology manager: aligns the exclusive resources of a container to NUMA nodes. Pure.
//!
//! * Owns: the merge of hints of all providers to one affinity, and whether that is good enough for the policy.
//! * Woken by: the admission of a pod.
//! * Publishes: nothing; [`TopologyManager::admit`] hands each provider the affinity to allocate with.
//! * Must never keep state: a provider that has allocated returns the hint of its allocation.
//! * Answers to upstream's `pkg/kubelet/cm/topologymanager`.
//!
//! Managers of resources implement [`HintProvider`].

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
