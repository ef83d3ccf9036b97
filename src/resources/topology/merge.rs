//! Merges hints into one NUMA affinity. Pure.

use super::{NumaMask, ResourceHints, TopologyHint};
use crate::base::named_enum;
use std::cmp::Ordering;
use std::collections::BTreeSet;

named_enum! {
    /// The policy of the topology manager, with its name in the configuration.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum TopologyPolicy {
        /// Resources are allocated without alignment.
        #[default]
        None = "none",
        /// The best affinity; every pod is admitted.
        BestEffort = "best-effort",
        /// A pod is rejected unless the affinity is preferred.
        Restricted = "restricted",
        /// A pod is rejected unless one node is enough.
        SingleNumaNode = "single-numa-node",
    }
}

impl TopologyPolicy {
    /// Whether a pod is admitted with this affinity.
    pub fn admits(self, best: TopologyHint) -> bool {
        match self {
            Self::None | Self::BestEffort => true,
            Self::Restricted | Self::SingleNumaNode => best.preferred,
        }
    }

    /// The best affinity that the hints of all providers allow.
    pub fn merge(self, numa: &NumaInfo, providers: &[ResourceHints]) -> TopologyHint {
        if self == Self::None {
            return TopologyHint::default();
        }
        let mut lists = lists(providers);
        if self == Self::SingleNumaNode {
            for list in &mut lists {
                list.retain(|hint| {
                    hint.preferred && hint.affinity.is_none_or(|mask| mask.count() == 1)
                });
            }
        }
        let closest = numa.prefer_closest && self != Self::SingleNumaNode;
        let best = merge_lists(numa, &lists, closest);
        // As upstream, with this policy the set of all nodes means no preference.
        let is_any = self == Self::SingleNumaNode && best.affinity == Some(numa.all());
        TopologyHint { affinity: best.affinity.filter(|_| !is_any), ..best }
    }
}

/// The NUMA nodes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaInfo {
    /// The nodes, ascending, each with its distances to all nodes in the same order.
    pub nodes: Vec<(u32, Vec<u64>)>,
    /// Option `prefer-closest-numa-nodes`.
    pub prefer_closest: bool,
}

impl NumaInfo {
    /// All nodes.
    pub fn all(&self) -> NumaMask {
        NumaMask::of(self.nodes.iter().map(|(node, _)| *node)).unwrap_or_default()
    }

    /// The average distance between the nodes of a set.
    fn average_distance(&self, mask: NumaMask) -> f64 {
        let mut sum = 0.0;
        let mut pairs = 0.0;
        for (_, distances) in self.nodes.iter().filter(|(node, _)| mask.contains(*node)) {
            for (index, (other, _)) in self.nodes.iter().enumerate() {
                if mask.contains(*other) {
                    // Converts without loss: distances are below 256.
                    let distance = distances.get(index).copied().unwrap_or_default();
                    sum += f64::from(u32::try_from(distance).unwrap_or(u32::MAX));
                    pairs += 1.0;
                }
            }
        }
        if pairs == 0.0 { 0.0 } else { sum / pairs }
    }

    /// Orders two sets: the better one is smaller, then closer if `closest`, then lower.
    fn compare(&self, one: NumaMask, other: NumaMask, closest: bool) -> Ordering {
        let by_distance = || {
            let (one, other) = (self.average_distance(one), self.average_distance(other));
            one.total_cmp(&other)
        };
        one.count()
            .cmp(&other.count())
            .then_with(|| if closest { by_distance() } else { Ordering::Equal })
            .then_with(|| one.cmp(&other))
    }
}

/// The lists of hints, one per resource of each provider.
fn lists(providers: &[ResourceHints]) -> Vec<Vec<TopologyHint>> {
    let mut lists = Vec::new();
    for hints in providers {
        if hints.is_empty() {
            lists.push(vec![TopologyHint::ANY]);
        }
        for list in hints.values() {
            lists.push(if list.is_empty() { vec![TopologyHint::IMPOSSIBLE] } else { list.clone() });
        }
    }
    lists
}

/// A partial choice of one hint per list, reduced to what affects the rest of the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HintChoice {
    /// The intersection of the chosen hints.
    affinity: NumaMask,
    /// Whether all chosen hints are preferred and have the same nodes.
    preferred: bool,
    /// Those nodes, while `preferred` is true.
    same: Option<NumaMask>,
}

impl HintChoice {
    fn with(self, hint: TopologyHint) -> Self {
        let affinity = hint.affinity.map_or(self.affinity, |mask| self.affinity.intersection(mask));
        let differs = self.same.is_some() && hint.affinity.is_some() && self.same != hint.affinity;
        let preferred = self.preferred && hint.preferred && !differs;
        Self { affinity, preferred, same: self.same.or(hint.affinity).filter(|_| preferred) }
    }
}

/// The best merge over all choices of one hint per list. Equal partial choices are merged, so that the work does not
/// grow exponentially with the number of lists.
fn merge_lists(numa: &NumaInfo, lists: &[Vec<TopologyHint>], closest: bool) -> TopologyHint {
    let none = HintChoice { affinity: numa.all(), preferred: true, same: None };
    let mut choices = BTreeSet::from([none]);
    for list in lists {
        choices =
            choices.iter().flat_map(|choice| list.iter().map(|hint| choice.with(*hint))).collect();
    }
    let target = max_of_min_affinity_counts(lists);
    let possible = choices.iter().filter(|choice| !choice.affinity.is_empty());
    let best = possible.min_by(|one, other| {
        let by_fit = || numa.compare(one.affinity, other.affinity, closest);
        other.preferred.cmp(&one.preferred).then_with(|| {
            if one.preferred {
                by_fit()
            } else {
                let rank = |choice: &HintChoice| distance_to(target, choice.affinity.count());
                rank(one).cmp(&rank(other)).then_with(by_fit)
            }
        })
    });
    match best {
        Some(best) => TopologyHint::new(best.affinity, best.preferred),
        None => TopologyHint::new(numa.all(), false),
    }
}

/// The largest minimum number of nodes among all resources.
fn max_of_min_affinity_counts(lists: &[Vec<TopologyHint>]) -> u32 {
    let least = |list: &Vec<TopologyHint>| {
        let counts = list.iter().filter_map(|hint| hint.affinity);
        counts.map(NumaMask::count).min()
    };
    lists.iter().filter_map(least).max().unwrap_or_default()
}

/// Orders affinities that are not preferred: exactly `target` nodes first, then fewer, then more.
fn distance_to(target: u32, count: u32) -> (bool, u32) {
    (count > target, target.abs_diff(count))
}
