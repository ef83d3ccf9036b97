//! Takes CPUs either packed, or evenly from as few NUMA nodes as possible (`distribute-cpus-across-numa`). Pure.

use super::CpuSet;
use super::take::{CpuAccumulator, TakeOptions, enough, take_packed};
use super::topology::{CpuTopology, Level};
use crate::resources::topology::combinations;
use std::collections::BTreeMap;

/// Number of free CPUs by NUMA node.
type Free = BTreeMap<u32, usize>;

/// How many CPUs to take from which NUMA nodes.
struct DistributionPlan {
    /// Standard deviation of the free CPUs that remain on each node; lower is better.
    balance: f64,
    /// Nodes that each give an equal share.
    nodes: Vec<u32>,
    /// Nodes that give the remainder of the division.
    remainder: Vec<u32>,
}

/// The CPUs to take.
#[derive(Clone, Copy)]
struct CpuRequest {
    count: usize,
    group: usize,
}

impl CpuRequest {
    /// The number of CPUs that each of this many nodes gives.
    fn share(self, nodes: usize) -> usize {
        let share = self.count.checked_div(nodes).unwrap_or_default();
        share - share % self.group
    }
}

/// Takes `count` of the CPUs in `available`.
///
/// # Errors
/// There are not enough CPUs; texts as upstream's.
pub(super) fn take(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    options: TakeOptions,
) -> Result<CpuSet, String> {
    match options.over_numa {
        Some(group) => take_evenly(topology, available, count, group.max(1), options),
        None => take_packed(topology, available, count, options),
    }
}

/// Takes `count` CPUs evenly, in groups of `group`.
fn take_evenly(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    group: usize,
    options: TakeOptions,
) -> Result<CpuSet, String> {
    let packed = TakeOptions { by_uncore: false, over_numa: None, ..options };
    let mut accumulator = CpuAccumulator::new(topology, available, count);
    if !count.is_multiple_of(group) || count == 0 {
        return take_packed(topology, available, count, packed);
    }
    enough(count, available)?;
    let request = CpuRequest { count, group };
    let Some(plan) = best_plan(topology, &accumulator, request) else {
        return take_packed(topology, available, count, packed);
    };
    let share = request.share(plan.nodes.len());
    for node in &plan.nodes {
        take_from(topology, &mut accumulator, *node, share, packed)?;
    }
    while accumulator.needed > 0 {
        let before = accumulator.needed;
        for node in &plan.remainder {
            if accumulator.needed > 0 && accumulator.free.count_in(Level::Numa, *node) >= group {
                take_from(topology, &mut accumulator, *node, group, packed)?;
            }
        }
        if accumulator.needed == before {
            return Err(format!(
                "accounting error, not enough CPUs allocated, remaining: {before}"
            ));
        }
    }
    Ok(accumulator.taken)
}

fn take_from(
    topology: &CpuTopology,
    accumulator: &mut CpuAccumulator<'_>,
    node: u32,
    count: usize,
    packed: TakeOptions,
) -> Result<(), String> {
    let cpus = accumulator.free.cpus_in(Level::Numa, |other| other == node);
    let taken = take_packed(topology, &cpus, count, packed)?;
    accumulator.take(&taken);
    Ok(())
}

/// The plan with the best balance on the fewest nodes.
fn best_plan(
    topology: &CpuTopology,
    accumulator: &CpuAccumulator<'_>,
    request: CpuRequest,
) -> Option<DistributionPlan> {
    let nodes = accumulator.sorted(Level::Numa);
    let count_in = |node: &u32| (*node, accumulator.free.count_in(Level::Numa, *node));
    let free: Free = nodes.iter().map(count_in).collect();
    let groups = topology.cpus().len().div_ceil(request.group);
    let groups_per_node = groups.div_ceil(topology.numa_nodes.max(1)).max(1);
    let needed = request.count / request.group;
    let (min_nodes, max_nodes) = (needed.div_ceil(groups_per_node), needed.min(free.len()));
    (min_nodes..=max_nodes).find_map(|size| {
        let mut best: Option<DistributionPlan> = None;
        for combo in combinations(&nodes, size) {
            if best.as_ref().is_some_and(|best| best.balance == 0.0) {
                break;
            }
            let plan = plan(&free, &combo, request);
            let better = |plan: &DistributionPlan| {
                best.as_ref().is_none_or(|best| plan.balance < best.balance)
            };
            if let Some(plan) = plan.filter(better) {
                best = Some(plan);
            }
        }
        best
    })
}

/// The plan for one combination of nodes.
fn plan(free: &Free, combo: &[u32], request: CpuRequest) -> Option<DistributionPlan> {
    let CpuRequest { count, group } = request;
    let free_in = |node: &u32| free.get(node).copied().unwrap_or_default();
    let whole = |node: &u32| free_in(node) / group * group;
    let share = request.share(combo.len());
    if combo.iter().map(whole).sum::<usize>() < count
        || combo.iter().any(|node| free_in(node) < share)
    {
        return None;
    }
    let mut left = free.clone();
    for node in combo {
        give(&mut left, *node, share);
    }
    let nodes = combo.to_vec();
    let remainder = count - share * combo.len();
    if remainder == 0 {
        return Some(DistributionPlan { balance: deviation(&left), nodes, remainder: Vec::new() });
    }
    let with_rest = |node: &&u32| left.get(*node).is_some_and(|left| *left >= group);
    let candidates: Vec<u32> = combo.iter().filter(with_rest).copied().collect();
    let mut best: Option<(f64, Vec<u32>)> = None;
    for size in (1..=candidates.len()).rev() {
        for subset in combinations(&candidates, size) {
            let Some(balance) = balance_after(&left, &subset, remainder, group) else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, _)| balance < *least) {
                best = Some((balance, subset));
            }
        }
    }
    best.map(|(balance, remainder)| DistributionPlan { balance, nodes, remainder })
}

/// The deviation if the remainder is taken round-robin from `subset`; `None` if `subset` does not have enough.
fn balance_after(left: &Free, subset: &[u32], mut remainder: usize, group: usize) -> Option<f64> {
    let mut left = left.clone();
    while remainder > 0 {
        let before = remainder;
        for node in subset {
            if remainder > 0 && left.get(node).is_some_and(|left| *left >= group) {
                give(&mut left, *node, group);
                remainder = remainder.saturating_sub(group);
            }
        }
        if remainder == before {
            return None;
        }
    }
    Some(deviation(&left))
}

fn give(left: &mut Free, node: u32, count: usize) {
    if let Some(left) = left.get_mut(&node) {
        *left = left.saturating_sub(count);
    }
}

/// The standard deviation, rounded to thousandths as upstream does.
fn deviation(left: &Free) -> f64 {
    let round = |number: f64| (number * 1000.0).round() / 1000.0;
    let numbers: Vec<f64> =
        left.values().map(|count| f64::from(u32::try_from(*count).unwrap_or(u32::MAX))).collect();
    let count = f64::from(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
    let mean = round(numbers.iter().sum::<f64>() / count);
    let squares = numbers.iter().map(|number| (number - mean) * (number - mean));
    round((squares.sum::<f64>() / count).sqrt())
}
