//! CPUs by core, socket, NUMA node and last-level cache. Pure.

use super::CpuSet;
use crate::host::{CpuPlace, MachineTopology};
use std::collections::{BTreeMap, BTreeSet};

/// A level of the CPU topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Core,
    Uncore,
    Numa,
    Socket,
}

/// CPUs with their location in the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuDetails(BTreeMap<u32, (u32, CpuPlace)>);

impl CpuDetails {
    /// The ID of the core, cache, NUMA node or socket (by `level`) that contains a CPU.
    pub(super) fn id(&self, cpu: u32, level: Level) -> Option<u32> {
        self.0.get(&cpu).map(|place| id(place, level))
    }

    /// The IDs of all parts of a level.
    pub(super) fn ids(&self, level: Level) -> BTreeSet<u32> {
        self.0.values().map(|place| id(place, level)).collect()
    }

    /// The IDs of the parts of a level within one `outer` part.
    pub(super) fn ids_in(&self, level: Level, outer: (Level, u32)) -> BTreeSet<u32> {
        let inside = self.0.values().filter(|place| id(place, outer.0) == outer.1);
        inside.map(|place| id(place, level)).collect()
    }

    /// The CPUs in the wanted parts of a level.
    pub(super) fn cpus_in(&self, level: Level, wanted: impl Fn(u32) -> bool) -> CpuSet {
        let inside = self.0.iter().filter(|(_, place)| wanted(id(place, level)));
        inside.map(|(cpu, _)| *cpu).collect()
    }

    /// The number of CPUs in one part.
    pub(super) fn count_in(&self, level: Level, wanted: u32) -> usize {
        let places = self.0.values();
        places.filter(|place| id(place, level) == wanted).count()
    }

    pub(super) fn cpus(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// The topology restricted to some CPUs.
    pub(super) fn only(&self, cpus: &CpuSet) -> Self {
        let kept = self.0.iter().filter(|(cpu, _)| cpus.contains(**cpu));
        Self(kept.map(|(cpu, place)| (*cpu, *place)).collect())
    }

    pub(super) fn remove(&mut self, cpu: u32) -> bool {
        self.0.remove(&cpu).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn id((numa, place): &(u32, CpuPlace), level: Level) -> u32 {
    match level {
        Level::Core => place.core,
        Level::Uncore => place.uncore,
        Level::Numa => *numa,
        Level::Socket => place.socket,
    }
}

/// The CPUs of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTopology {
    pub(super) details: CpuDetails,
    pub(super) cores: usize,
    pub(super) sockets: usize,
    pub(super) numa_nodes: usize,
    uncores: usize,
}

impl CpuTopology {
    /// The CPUs of `machine`.
    pub fn new(machine: &MachineTopology) -> Self {
        let of_node = |node: &crate::host::NumaNode| {
            let id = node.id;
            let places = node.cpus.iter();
            places.map(move |place| (place.cpu, (id, *place))).collect::<Vec<_>>()
        };
        let details = CpuDetails(machine.nodes.iter().flat_map(of_node).collect());
        let count = |level| details.ids(level).len();
        Self {
            cores: count(Level::Core),
            sockets: count(Level::Socket),
            numa_nodes: count(Level::Numa),
            uncores: count(Level::Uncore),
            details,
        }
    }

    /// All CPUs.
    pub fn cpus(&self) -> CpuSet {
        self.details.cpus()
    }

    /// The NUMA node of a CPU.
    pub fn numa_node(&self, cpu: u32) -> Option<u32> {
        self.details.id(cpu, Level::Numa)
    }

    /// The NUMA nodes that have CPUs.
    pub(super) fn numa_node_ids(&self) -> BTreeSet<u32> {
        self.details.ids(Level::Numa)
    }

    /// Average number of CPUs per core, as upstream computes it.
    pub(super) fn cpus_per_core(&self) -> usize {
        self.details.len().checked_div(self.cores).unwrap_or_default()
    }

    pub(super) fn cpus_per_socket(&self) -> usize {
        self.details.len().checked_div(self.sockets).unwrap_or_default()
    }

    pub(super) fn cpus_per_uncore(&self) -> usize {
        self.details.len().checked_div(self.uncores).unwrap_or_default()
    }

    /// Whether all CPUs share one last-level cache.
    pub(super) fn share_uncore(&self, cpus: &CpuSet) -> bool {
        let ids: BTreeSet<_> = cpus.iter().map(|cpu| self.details.id(cpu, Level::Uncore)).collect();
        cpus.len() <= 1 || ids.len() == 1 && !ids.contains(&None)
    }
}
