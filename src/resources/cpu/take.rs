//! Selects CPUs from the free ones: whole sockets and cores first, then the best fit (upstream's `cpu_assignment.go`).
//! Pure.
//!
//! The order is upstream's, so that both kubelets select the same CPUs.

use super::CpuSet;
use super::topology::{CpuDetails, CpuTopology, Level};
use std::collections::BTreeSet;

/// How to select CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TakeOptions {
    /// Single CPUs from many cores, instead of whole cores (`distribute-cpus-across-cores`).
    pub spread_over_cores: bool,
    /// From as few last-level caches as possible (`prefer-align-cpus-by-uncorecache`).
    pub by_uncore: bool,
    /// Evenly from NUMA nodes, in groups of this many CPUs (`distribute-cpus-across-numa`).
    pub over_numa: Option<usize>,
}

/// Takes CPUs as close together as possible.
pub(super) fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    options: TakeOptions,
) -> Result<CpuSet, String> {
    let mut accumulator = CpuAccumulator::new(topology, available, count);
    if accumulator.needed == 0 {
        return Ok(accumulator.taken);
    }
    enough(count, available)?;
    let (outer, inner) = if accumulator.numa_first {
        (Level::Numa, Level::Socket)
    } else {
        (Level::Socket, Level::Numa)
    };
    accumulator.take_whole(outer);
    accumulator.take_whole(inner);
    if options.by_uncore {
        accumulator.take_uncores();
    }
    if !options.spread_over_cores {
        accumulator.take_whole(Level::Core);
    }
    accumulator.take_single(options.spread_over_cores);
    if accumulator.needed == 0 {
        Ok(accumulator.taken)
    } else {
        Err("failed to allocate cpus".to_owned())
    }
}

pub(super) fn enough(count: usize, available: &CpuSet) -> Result<(), String> {
    if count <= available.len() {
        return Ok(());
    }
    Err(format!(
        "not enough cpus available to satisfy request: requested={count}, available={}",
        available.len()
    ))
}

/// The taken and the free CPUs of one request.
pub(super) struct CpuAccumulator<'a> {
    topology: &'a CpuTopology,
    pub(super) free: CpuDetails,
    pub(super) needed: usize,
    pub(super) taken: CpuSet,
    /// Whether a NUMA node contains sockets; otherwise a socket contains NUMA nodes.
    numa_first: bool,
}

impl<'a> CpuAccumulator<'a> {
    pub(super) fn new(topology: &'a CpuTopology, available: &CpuSet, count: usize) -> Self {
        Self {
            topology,
            free: topology.details.only(available),
            needed: count,
            taken: CpuSet::default(),
            numa_first: topology.sockets >= topology.numa_nodes,
        }
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        let taken: CpuSet = cpus.iter().filter(|cpu| self.free.remove(*cpu)).collect();
        self.needed = self.needed.saturating_sub(taken.len());
        self.taken = self.taken.union(&taken);
    }

    /// Sorts parts of the topology by the number of free CPUs, fewest first.
    fn sort(&self, ids: BTreeSet<u32>, level: Level) -> Vec<u32> {
        let mut sorted: Vec<_> = ids.into_iter().collect();
        sorted.sort_by_cached_key(|id| (self.free.count_in(level, *id), *id));
        sorted
    }

    /// Parts of a level in the order of the parts that contain them.
    fn sort_within(&self, level: Level, outer: Level, outer_ids: &[u32]) -> Vec<u32> {
        let parts = outer_ids.iter();
        parts.flat_map(|id| self.sort(self.free.ids_in(level, (outer, *id)), level)).collect()
    }

    /// The parts of a level that have free CPUs. Outer parts with the fewest free CPUs come first, and within an outer
    /// part the parts with the fewest free CPUs.
    pub(super) fn sorted(&self, level: Level) -> Vec<u32> {
        let outermost = |level| self.sort(self.free.ids(level), level);
        match (level, self.numa_first) {
            (Level::Numa, true) | (Level::Socket, false) => outermost(level),
            (Level::Socket, true) | (Level::Uncore, _) => {
                self.sort_within(level, Level::Numa, &self.sorted(Level::Numa))
            }
            (Level::Numa, false) => {
                self.sort_within(level, Level::Socket, &self.sorted(Level::Socket))
            }
            (Level::Core, true) => {
                self.sort_within(level, Level::Socket, &self.sorted(Level::Socket))
            }
            (Level::Core, false) => self.sort_within(level, Level::Numa, &self.sorted(Level::Numa)),
        }
    }

    /// The number of CPUs in a whole part.
    fn size(&self, level: Level, id: u32) -> usize {
        match level {
            Level::Core => self.topology.cpus_per_core(),
            Level::Socket => self.topology.cpus_per_socket(),
            Level::Numa | Level::Uncore => self.topology.details.count_in(level, id),
        }
    }

    /// Takes whole parts while the request is large enough.
    fn take_whole(&mut self, level: Level) {
        if self.needed == 0 {
            return;
        }
        let sorted = self.sorted(level).into_iter();
        let whole = sorted.filter(|id| self.free.count_in(level, *id) == self.size(level, *id));
        for id in whole.collect::<Vec<_>>() {
            let cpus = self.topology.details.cpus_in(level, |other| other == id);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn take_uncores(&mut self) {
        for uncore in self.sorted(Level::Uncore) {
            if self.needed >= self.topology.cpus_per_uncore() {
                self.take_whole(Level::Uncore);
            }
            if self.needed > 0 {
                self.take_part_of_uncore(uncore);
            }
            if self.needed == 0 {
                return;
            }
        }
    }

    /// Takes the rest of the request from one cache, if its first free cores have exactly that many CPUs.
    /// As upstream, one CPU of these cores is left out if the request is odd.
    fn take_part_of_uncore(&mut self, uncore: u32) {
        let threads = self.topology.cpus_per_core().max(1);
        let cores = self.free.ids_in(Level::Core, (Level::Uncore, uncore));
        let cores: BTreeSet<_> = cores.into_iter().take(self.needed.div_ceil(threads)).collect();
        let mut cpus = self.free.cpus_in(Level::Core, |core| cores.contains(&core));
        if !self.needed.is_multiple_of(2) && threads > 1 && cpus.len() > self.needed {
            cpus = cpus.iter().take(cpus.len() - 1).collect();
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn take_single(&mut self, spread: bool) {
        let (level, parts) = if spread {
            (Level::Socket, self.sorted(Level::Socket))
        } else {
            (Level::Core, self.sorted(Level::Core))
        };
        let cpus = parts.into_iter().flat_map(|id| {
            let cpus = self.free.cpus_in(level, |other| other == id);
            cpus.iter().collect::<Vec<_>>()
        });
        let cpus: CpuSet = cpus.take(self.needed).collect();
        self.take(&cpus);
    }
}
