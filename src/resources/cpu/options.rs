//! `cpuManagerPolicyOptions`. Pure.

use super::CpuTopology;
use crate::resources::topology::{TopologyPolicy, parse_bool};
use std::collections::BTreeMap;

const FULL_PCPUS_ONLY: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT_RESERVATION: &str = "strict-cpu-reservation";
const BY_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

/// Feature gates for groups of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionGates {
    /// `CPUManagerPolicyAlphaOptions`.
    pub alpha: bool,
    /// `CPUManagerPolicyBetaOptions`.
    pub beta: bool,
}

/// Options of the static policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// `full-pcpus-only`: containers get whole physical cores, or are rejected.
    pub full_pcpus_only: bool,
    /// `distribute-cpus-across-numa`: CPUs are distributed evenly over NUMA nodes if one does not have enough.
    pub distribute_across_numa: bool,
    /// `align-by-socket`: CPUs are aligned to sockets instead of NUMA nodes.
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`: CPUs are taken from as many physical cores as possible.
    pub distribute_across_cores: bool,
    /// `strict-cpu-reservation`: reserved CPUs are not in the shared pool.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: CPUs share a last-level cache if possible.
    pub prefer_align_by_uncore_cache: bool,
}

impl CpuOptions {
    /// Parses the options.
    ///
    /// # Errors
    /// An unknown or disabled option, a bad value, or options that exclude each other; texts as upstream's.
    pub fn parse(options: &BTreeMap<String, String>, gates: OptionGates) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (name, value) in options {
            let (field, group) = match name.as_str() {
                FULL_PCPUS_ONLY => (&mut parsed.full_pcpus_only, None),
                STRICT_RESERVATION => (&mut parsed.strict_reservation, None),
                BY_UNCORE => (&mut parsed.prefer_align_by_uncore_cache, None),
                ACROSS_NUMA => (&mut parsed.distribute_across_numa, Some(("Beta", gates.beta))),
                BY_SOCKET => (&mut parsed.align_by_socket, Some(("Alpha", gates.alpha))),
                ACROSS_CORES => (&mut parsed.distribute_across_cores, Some(("Alpha", gates.alpha))),
                _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
            };
            if let Some((group, false)) = group {
                return Err(format!(
                    "CPU Manager Policy {group}-level Options not enabled, but option {name:?} provided"
                ));
            }
            *field = parse_bool(name, value)?;
        }
        let exclusive = [
            (parsed.full_pcpus_only, FULL_PCPUS_ONLY, parsed.distribute_across_cores, ACROSS_CORES),
            (
                parsed.distribute_across_numa,
                ACROSS_NUMA,
                parsed.distribute_across_cores,
                ACROSS_CORES,
            ),
            (
                parsed.prefer_align_by_uncore_cache,
                BY_UNCORE,
                parsed.distribute_across_cores,
                ACROSS_CORES,
            ),
            (
                parsed.prefer_align_by_uncore_cache,
                BY_UNCORE,
                parsed.distribute_across_numa,
                ACROSS_NUMA,
            ),
        ];
        for (one, name, other, other_name) in exclusive {
            if one && other {
                return Err(format!(
                    "static policy options {name} and {other_name} can not be used at the same time"
                ));
            }
        }
        Ok(parsed)
    }

    /// Checks the options against the machine and the topology manager.
    ///
    /// # Errors
    /// They do not match; texts as upstream's.
    pub(super) fn check(self, machine: &CpuTopology, policy: TopologyPolicy) -> Result<(), String> {
        if !self.align_by_socket {
            return Ok(());
        }
        if policy == TopologyPolicy::SingleNumaNode {
            return Err(format!(
                "Topolgy manager {} policy is incompatible with CPUManager {BY_SOCKET} policy option",
                policy.as_str()
            ));
        }
        if machine.sockets > machine.numa_nodes {
            return Err(
                "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
