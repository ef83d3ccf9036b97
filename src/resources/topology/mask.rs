//! Sets of NUMA nodes. Pure.

use std::collections::BTreeMap;

use std::fmt;

/// A set of NUMA nodes with IDs below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaMask(u64);

impl NumaMask {
    /// Number of node IDs that a mask can hold.
    pub const LIMIT: u32 = u64::BITS;

    /// The set of these nodes; `None` if an ID is too large.
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Option<Self> {
        nodes
            .into_iter()
            .try_fold(0u64, |bits, node| Some(bits | 1u64.checked_shl(node)?))
            .map(Self)
    }

    /// The nodes, ascending.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..Self::LIMIT).filter(move |node| self.contains(*node))
    }

    /// Whether the set has this node.
    pub fn contains(self, node: u32) -> bool {
        1u64.checked_shl(node).is_some_and(|bit| self.0 & bit != 0)
    }

    /// The number of nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The intersection.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether this is a subset of `other`.
    pub fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether this has fewer nodes than `other`, or equally many with lower IDs.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }
}

/// Formats as `{0,2}`.
impl fmt::Display for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes().map(|node| node.to_string()).collect();
        write!(f, "{{{}}}", nodes.join(","))
    }
}

/// All nonempty subsets of these nodes: smaller ones first, then in the order of the nodes.
pub fn subsets(nodes: &[u32]) -> Vec<NumaMask> {
    let sizes = 1..=nodes.len();
    let sets = sizes.flat_map(|size| combinations(nodes, size));
    sets.filter_map(NumaMask::of).collect()
}

/// All combinations of `size` items, in the order of the items.
pub fn combinations<T: Copy>(items: &[T], size: usize) -> Vec<Vec<T>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (index, first) in items.iter().enumerate() {
        let rest = items.get(index + 1..).unwrap_or_default();
        if rest.len() + 1 < size {
            break;
        }
        for others in combinations(rest, size - 1) {
            let mut choice = Vec::with_capacity(size);
            choice.push(*first);
            choice.extend(others);
            found.push(choice);
        }
    }
    found
}

/// A set of NUMA nodes that could satisfy a container's request for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyHint {
    /// The nodes; `None` for any nodes.
    pub affinity: Option<NumaMask>,
    /// Whether no smaller set of nodes would be enough.
    pub preferred: bool,
}

impl TopologyHint {
    /// No preference.
    pub const ANY: Self = Self { affinity: None, preferred: true };
    /// No nodes can satisfy the request.
    pub const IMPOSSIBLE: Self = Self { affinity: None, preferred: false };

    /// A hint with these nodes.
    pub fn new(affinity: NumaMask, preferred: bool) -> Self {
        Self { affinity: Some(affinity), preferred }
    }
}

/// The hints of a provider by resource. A resource with an empty list cannot be allocated; a provider without resources
/// has no preference.
pub type ResourceHints = BTreeMap<String, Vec<TopologyHint>>;
