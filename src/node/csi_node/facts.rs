//! Checks what a driver reports about this node. Pure.

use crate::model::validation::{is_qualified_name, label_value};
use crate::volumes::csi::NodeInfo;
use std::collections::BTreeMap;

/// Maximum length of a node ID, bytes (CSI specification).
const MAX_NODE_ID: usize = 256;
/// Maximum number of topology keys of a driver.
const MAX_TOPOLOGY_KEYS: usize = 20;
/// Maximum length of a driver's text in an error, bytes.
const MAX_SHOWN: usize = 64;

/// Fields of the response.
const NODE_ID: &str = "node_id";
const TOPOLOGY: &str = "accessible_topology";

/// What a driver has reported about this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverFacts {
    pub(super) node_id: String,
    pub(super) topology: BTreeMap<String, String>,
    /// The maximum number of volumes; `None` without a limit.
    pub(super) max_volumes: Option<i32>,
}

impl DriverFacts {
    /// Checks the response of a driver.
    pub(super) fn checked(driver: &str, info: NodeInfo) -> Result<Self, String> {
        let refused = |field: &str, why: &str| {
            Err(format!("NodeGetInfo of CSI driver {driver} returned an invalid {field}: {why}"))
        };
        let NodeInfo { node_id, max_volumes_per_node, topology } = info;
        if node_id.is_empty() {
            return refused(NODE_ID, "driverNodeID must not be empty");
        }
        if node_id.len() > MAX_NODE_ID {
            let why = format!("{} bytes, more than {MAX_NODE_ID}", node_id.len());
            return refused(NODE_ID, &why);
        }
        if topology.len() > MAX_TOPOLOGY_KEYS {
            let why = format!("{} keys, more than {MAX_TOPOLOGY_KEYS}", topology.len());
            return refused(TOPOLOGY, &why);
        }
        for (key, value) in &topology {
            if !is_qualified_name(key) {
                let why = format!("key {:?} is not a label key", shown(key));
                return refused(TOPOLOGY, &why);
            }
            if let Some(rule) = label_value(value) {
                let why = format!("value {:?} of key {key:?} {rule}", shown(value));
                return refused(TOPOLOGY, &why);
            }
        }
        Ok(Self { node_id, topology, max_volumes: max_volumes(max_volumes_per_node) })
    }
}

/// The limit that a driver reports; `None` for no limit, or a negative one.
pub(super) fn max_volumes(reported: i64) -> Option<i32> {
    (reported > 0).then(|| i32::try_from(reported).unwrap_or(i32::MAX))
}

/// The beginning of a text of any size.
fn shown(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_SHOWN)).unwrap_or_default()
}
