//! The static policy of the CPU manager. Pure.

use super::distribute::take;
use super::take::TakeOptions;
use super::topology::Level;
use super::{CpuOptions, CpuSet, CpuState, CpuTopology};
use crate::resources::topology::{NumaMask, TopologyError, TopologyHint, TopologyPolicy, subsets};
use std::collections::{BTreeMap, BTreeSet};

/// CPUs that never become exclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedCpus {
    /// Reserved CPU time, millicores.
    pub milli_cpu: i64,
    /// `reservedSystemCPUs`; empty if the kubelet selects them.
    pub cpus: CpuSet,
}

/// Assigns CPUs to containers until they end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticCpuPolicy {
    pub(super) topology: CpuTopology,
    pub(super) options: CpuOptions,
    pub(super) reserved: CpuSet,
    /// The reserved CPUs and the other threads of their cores.
    reserved_cores: CpuSet,
}

impl StaticCpuPolicy {
    /// Builds the policy for a machine.
    ///
    /// # Errors
    /// The reservation or the options do not match the machine; texts as upstream's.
    pub fn new(
        topology: CpuTopology,
        options: CpuOptions,
        reserved: &ReservedCpus,
        topology_policy: TopologyPolicy,
    ) -> Result<Self, String> {
        if reserved.milli_cpu <= 0 {
            return Err(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
                    .to_owned(),
            );
        }
        let new = |error| format!("new static policy error: {error}");
        options.check(&topology, topology_policy).map_err(new)?;
        let mut policy = Self {
            topology,
            options,
            reserved: reserved.cpus.clone(),
            reserved_cores: CpuSet::default(),
        };
        let count = usize::try_from(reserved.milli_cpu).unwrap_or(usize::MAX);
        let count = count.div_ceil(1000);
        if policy.reserved.is_empty() {
            let taken = policy.take(&policy.topology.cpus(), count);
            policy.reserved = taken.unwrap_or_default();
        }
        if policy.reserved.len() != count {
            return Err(new(format!(
                "[cpumanager] unable to reserve the required amount of CPUs (size of {} did not equal {count})",
                policy.reserved
            )));
        }
        let details = &policy.topology.details;
        let mut cores = BTreeSet::new();
        for cpu in policy.reserved.iter() {
            let Some(core) = details.id(cpu, Level::Core) else {
                return Err(new(format!(
                    "[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {cpu}"
                )));
            };
            cores.insert(core);
        }
        policy.reserved_cores = details.cpus_in(Level::Core, |core| cores.contains(&core));
        Ok(policy)
    }

    /// Initializes an empty state, or validates one that was read.
    ///
    /// # Errors
    /// The state does not match the machine or the reservation; texts as upstream's.
    pub(super) fn start(&self, state: &mut CpuState) -> Result<(), String> {
        // A pod entry without container entries was left by a Go kubelet that was killed between two writes.
        let assigned = &state.assigned;
        let orphans = state.pods.extract_if(.., |pod, _| !assigned.contains_key(pod));
        let orphans = orphans.fold(CpuSet::default(), |all, (_, cpus)| all.union(&cpus));
        if !state.shared.is_empty() {
            state.shared = state.shared.union(&orphans);
        }
        let strict = self.options.strict_reservation;
        let mut all = self.topology.cpus();
        if strict {
            all = all.difference(&self.reserved);
        }
        let shared = &state.shared;
        if shared.is_empty() {
            if !state.assigned.is_empty() {
                return Err("default cpuset cannot be empty".to_owned());
            }
            state.shared = all;
            return Ok(());
        }
        let common = self.reserved.intersection(shared);
        if strict && !common.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{common}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        if !strict && common != self.reserved {
            return Err(format!(
                "not all reserved cpus: \"{}\" are present in defaultCpuSet: \"{shared}\"",
                self.reserved
            ));
        }
        let mut known = shared.clone();
        for (pod, containers) in &state.assigned {
            for (container, cpus) in containers {
                if !shared.intersection(cpus).is_empty() {
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\""
                    ));
                }
                known = known.union(cpus);
            }
        }
        for (pod, cpus) in &state.pods {
            if !shared.intersection(cpus).is_empty() {
                return Err(format!(
                    "pod: {pod}, cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\""
                ));
            }
            let mut parts = state.assigned.get(pod).into_iter().flatten();
            if let Some((container, part)) = parts.find(|(_, part)| !part.is_within(cpus)) {
                return Err(format!(
                    "pod: {pod}, container: {container} cpuset: \"{part}\" is not a part of its pod's \"{cpus}\""
                ));
            }
            known = known.union(cpus);
        }
        if known != all {
            return Err(format!(
                "current set of available CPUs \"{all}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        Ok(())
    }

    /// Shared CPUs that can become exclusive.
    pub(super) fn available(&self, state: &CpuState) -> CpuSet {
        state.shared.difference(&self.reserved)
    }

    /// Checks whether `full-pcpus-only`, if set, can be satisfied for `count` CPUs.
    pub(super) fn check_cores(&self, state: &CpuState, count: usize) -> Result<(), TopologyError> {
        let threads = self.topology.cpus_per_core().max(1);
        let error = |message| Err(TopologyError::new("SMTAlignmentError", message));
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        if !count.is_multiple_of(threads) {
            return error(format!(
                "SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}"
            ));
        }
        let available = state.shared.difference(&self.reserved_cores).len();
        if count > available {
            return error(format!(
                "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {count}, CPUs per core = {threads}"
            ));
        }
        Ok(())
    }

    /// Takes CPUs from the shared pool and from `reusable` ones; CPUs on the nodes of `affinity` first.
    pub(super) fn allocate(
        &self,
        state: &mut CpuState,
        count: usize,
        affinity: Option<NumaMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, String> {
        let allocatable = self.available(state).union(reusable);
        let mut taken = CpuSet::default();
        if let Some(affinity) = affinity {
            let aligned = self.aligned(affinity, &allocatable);
            taken = self.take(&aligned, count.min(aligned.len()))?;
        }
        let rest = allocatable.difference(&taken);
        taken = taken.union(&self.take(&rest, count.saturating_sub(taken.len()))?);
        state.shared = state.shared.difference(&taken);
        Ok(taken)
    }

    /// Takes CPUs by topology.
    pub(super) fn take(&self, available: &CpuSet, count: usize) -> Result<CpuSet, String> {
        let group = if self.options.full_pcpus_only { self.topology.cpus_per_core() } else { 1 };
        let options = TakeOptions {
            spread_over_cores: self.options.distribute_across_cores,
            by_uncore: self.options.prefer_align_by_uncore_cache,
            over_numa: self.options.distribute_across_numa.then_some(group),
        };
        take(&self.topology, available, count, options)
    }

    fn aligned(&self, affinity: NumaMask, allocatable: &CpuSet) -> CpuSet {
        let details = &self.topology.details;
        let near = if self.options.align_by_socket {
            let sockets = self.sockets(affinity);
            details.cpus_in(Level::Socket, |socket| sockets.contains(&socket))
        } else {
            details.cpus_in(Level::Numa, |node| affinity.contains(node))
        };
        allocatable.intersection(&near)
    }

    fn sockets(&self, nodes: NumaMask) -> BTreeSet<u32> {
        let details = &self.topology.details;
        let of = |node| details.ids_in(Level::Socket, (Level::Numa, node));
        nodes.nodes().flat_map(of).collect()
    }

    /// Hints for every set of nodes that has enough CPUs and all `reusable` ones.
    pub(super) fn hints(
        &self,
        available: &CpuSet,
        reusable: &CpuSet,
        count: usize,
    ) -> Vec<TopologyHint> {
        let details = &self.topology.details;
        let nodes: Vec<u32> = details.ids(Level::Numa).into_iter().collect();
        let by_node = |cpus: &CpuSet| {
            let mut counts = BTreeMap::<u32, usize>::new();
            for node in cpus.iter().filter_map(|cpu| details.id(cpu, Level::Numa)) {
                *counts.entry(node).or_default() += 1;
            }
            counts
        };
        let on = |counts: &BTreeMap<u32, usize>, mask: NumaMask| {
            let counts = counts.iter().filter(|(node, _)| mask.contains(**node));
            counts.map(|(_, count)| count).sum::<usize>()
        };
        let mut min_size = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let all = by_node(&self.topology.cpus());
        let (available, reused) = (by_node(available), by_node(reusable));
        let mut hints = Vec::new();
        for mask in subsets(&nodes) {
            if on(&all, mask) >= count {
                min_size = min_size.min(mask.count());
            }
            let has_reusable = on(&reused, mask) == reusable.len();
            if has_reusable && reusable.len() + on(&available, mask) >= count {
                hints.push(mask);
            }
        }
        let preferred = |mask: NumaMask| {
            mask.count() == min_size
                || self.options.align_by_socket && self.is_by_socket(mask, min_size)
        };
        let hints = hints.into_iter();
        hints.map(|mask| TopologyHint::new(mask, preferred(mask))).collect()
    }

    /// Whether the nodes are on as few sockets as `min_size` nodes need.
    fn is_by_socket(&self, mask: NumaMask, min_size: u32) -> bool {
        let per_socket = self.topology.numa_nodes.checked_div(self.topology.sockets);
        let Some(per_socket) = per_socket.filter(|count| *count > 0) else {
            return false;
        };
        let min_size = usize::try_from(min_size).unwrap_or(usize::MAX);
        self.sockets(mask).len() == min_size.div_ceil(per_socket)
    }
}
