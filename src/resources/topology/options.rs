//! `topologyManagerPolicyOptions`. Pure.

use std::collections::BTreeMap;

const PREFER_CLOSEST: &str = "prefer-closest-numa-nodes";
const MAX_NUMA_NODES: &str = "max-allowable-numa-nodes";
/// Upstream's default. Limited, because the number of sets of nodes grows exponentially with the number of nodes.
const DEFAULT_MAX_NUMA_NODES: usize = 8;

/// Options of the topology manager's policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyOptions {
    /// `prefer-closest-numa-nodes`: prefer, among sets of equal size, the one with the smallest average distance.
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`.
    pub max_numa_nodes: usize,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self { prefer_closest: false, max_numa_nodes: DEFAULT_MAX_NUMA_NODES }
    }
}

impl TopologyOptions {
    /// Parses the options.
    ///
    /// # Errors
    /// An unknown name or a bad value; texts as upstream's.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (name, value) in options {
            match name.as_str() {
                PREFER_CLOSEST => parsed.prefer_closest = parse_bool(name, value)?,
                MAX_NUMA_NODES => parsed.max_numa_nodes = parse_max(name, value)?,
                _ => return Err(format!("unknown Topology Manager Policy option: {name:?}")),
            }
        }
        Ok(parsed)
    }
}

fn parse_max(name: &str, value: &str) -> Result<usize, String> {
    let number: i64 = value.parse().map_err(|_| {
        format!(
            "unable to convert policy option to integer {name:?}: strconv.Atoi: parsing {value:?}: invalid syntax"
        )
    })?;
    usize::try_from(number).ok().filter(|number| *number >= DEFAULT_MAX_NUMA_NODES).ok_or_else(
        || {
            format!(
                "the minimum value of {name:?} should not be less than {DEFAULT_MAX_NUMA_NODES}"
            )
        },
    )
}

/// Parses a boolean option as Go does.
///
/// # Errors
/// It is not a boolean; texts as upstream's.
pub fn parse_bool(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!(
            "bad value for option {name:?}: strconv.ParseBool: parsing {value:?}: invalid syntax"
        )),
    }
}
