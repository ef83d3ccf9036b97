mod manager;
mod objects;
mod world;

use super::facts::DriverFacts;
use super::objects::{
    CsiNodeStep, NodeOwner, WantedDrivers, csi_node_step, node_patch, node_patch_without,
};
use super::registrations::Registrations;
use crate::volumes::csi::NodeInfo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a driver reports.
fn info(node_id: &str, limit: i64, topology: &[(&str, &str)]) -> NodeInfo {
    let topology = topology.iter();
    NodeInfo {
        node_id: node_id.into(),
        max_volumes_per_node: limit,
        topology: topology.map(|(key, value)| ((*key).into(), (*value).into())).collect(),
    }
}
