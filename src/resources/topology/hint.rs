//! The NUMA preference of a provider for a resource. Pure.

use super::NumaMask;
use std::collections::BTreeMap;

/// NUMA nodes that could give what a container requests of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyHint {
    /// The nodes; `None` stands for any.
    pub affinity: Option<NumaMask>,
    /// No fewer nodes are enough.
    pub preferred: bool,
}

impl TopologyHint {
    /// Any node is as good as another.
    pub const ANY: Self = Self {
        affinity: None,
        preferred: true,
    };
    /// No nodes are enough.
    pub const IMPOSSIBLE: Self = Self {
        affinity: None,
        preferred: false,
    };

    /// A hint for these nodes.
    pub fn new(affinity: NumaMask, preferred: bool) -> Self {
        Self {
            affinity: Some(affinity),
            preferred,
        }
    }
}

/// The hints of a provider by resource. A resource without hints is not available; a provider without resources has no
/// preference.
pub type ResourceHints = BTreeMap<String, Vec<TopologyHint>>;
