//! What drivers report, from their responses. Pure.

use super::proto::node_service_capability::Type as Kind;
use super::proto::node_service_capability::rpc::Type;
use super::proto::volume_usage::Unit;
use super::proto::{
    NodeGetCapabilitiesResponse, NodeGetInfoResponse, NodeGetVolumeStatsResponse, VolumeUsage,
};
use std::collections::BTreeMap;

/// The node as a driver knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The driver's name for the node. A valid driver does not leave it empty.
    pub node_id: String,
    /// The maximum number of volumes of the driver on this node; zero if there is none, and it may be negative.
    pub max_volumes_per_node: i64,
    /// The segments of the accessible topology.
    pub topology: BTreeMap<String, String>,
}

impl From<NodeGetInfoResponse> for NodeInfo {
    fn from(response: NodeGetInfoResponse) -> Self {
        let topology = response.accessible_topology;
        Self {
            node_id: response.node_id,
            max_volumes_per_node: response.max_volumes_per_node,
            topology: topology.map(|one| one.segments).unwrap_or_default(),
        }
    }
}

/// What a driver's Node service can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCapabilities {
    /// Volumes are staged before they are published.
    pub stage_unstage: bool,
    /// The usage of volumes can be read.
    pub volume_stats: bool,
    /// Volumes are expanded on the node.
    pub expand: bool,
    /// Statistics have a condition of the volume.
    pub volume_condition: bool,
    /// The access modes `SINGLE_NODE_SINGLE_WRITER` and `SINGLE_NODE_MULTI_WRITER` are known.
    pub single_node_multi_writer: bool,
    /// The driver applies the `fsGroup`.
    pub volume_mount_group: bool,
    /// The health of a volume can be read.
    pub volume_health: bool,
    /// The health of the storage can be read.
    pub storage_health: bool,
}

impl From<NodeGetCapabilitiesResponse> for NodeCapabilities {
    fn from(response: NodeGetCapabilitiesResponse) -> Self {
        let mut found = Self::default();
        for capability in response.capabilities {
            let Some(Kind::Rpc(rpc)) = capability.r#type else {
                continue;
            };
            match rpc.r#type() {
                Type::Unknown => {}
                Type::StageUnstageVolume => found.stage_unstage = true,
                Type::GetVolumeStats => found.volume_stats = true,
                Type::ExpandVolume => found.expand = true,
                Type::VolumeCondition => found.volume_condition = true,
                Type::SingleNodeMultiWriter => found.single_node_multi_writer = true,
                Type::VolumeMountGroup => found.volume_mount_group = true,
                Type::GetVolumeHealth => found.volume_health = true,
                Type::GetStorageHealth => found.storage_health = true,
            }
        }
        found
    }
}

/// The usage of a volume in one unit. What a driver does not know is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct UsageOfUnit {
    pub available: u64,
    pub total: u64,
    pub used: u64,
}

/// Statistics of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// The usage in bytes.
    pub bytes: Option<UsageOfUnit>,
    /// The usage in inodes.
    pub inodes: Option<UsageOfUnit>,
    /// Whether the volume is abnormal, and the driver's explanation.
    pub condition: Option<(bool, String)>,
}

impl From<NodeGetVolumeStatsResponse> for VolumeStats {
    /// Of several usages in one unit the last one counts, as upstream; a negative number is zero.
    fn from(response: NodeGetVolumeStatsResponse) -> Self {
        let not_negative = |number: i64| u64::try_from(number).unwrap_or(0);
        let usage = |usage: &VolumeUsage| UsageOfUnit {
            available: not_negative(usage.available),
            total: not_negative(usage.total),
            used: not_negative(usage.used),
        };
        let of = |unit: Unit| {
            let mut usages = response.usage.iter();
            usages.rfind(|usage| usage.unit() == unit).map(usage)
        };
        Self {
            bytes: of(Unit::Bytes),
            inodes: of(Unit::Inodes),
            condition: response
                .volume_condition
                .as_ref()
                .map(|condition| (condition.abnormal, condition.message.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::csi::proto::node_service_capability::Rpc;
    use crate::volumes::csi::proto::{NodeServiceCapability, Topology, VolumeCondition};

    #[test]
    fn capabilities_are_those_of_the_response_and_unknown_ones_are_ignored() {
        let capability =
            |number| NodeServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: number })) };
        let numbers = [1, 3, 5, 6, 99, 0];
        let mut capabilities: Vec<_> = numbers.map(capability).into();
        capabilities.push(NodeServiceCapability { r#type: None });
        let found = NodeCapabilities::from(NodeGetCapabilitiesResponse { capabilities });
        let expected = NodeCapabilities {
            stage_unstage: true,
            expand: true,
            single_node_multi_writer: true,
            volume_mount_group: true,
            ..NodeCapabilities::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_node_without_a_topology_has_no_segments() {
        let response = |accessible_topology| NodeGetInfoResponse {
            node_id: "n".into(),
            max_volumes_per_node: -1,
            accessible_topology,
        };
        let none = NodeInfo::from(response(None));
        assert_eq!((none.max_volumes_per_node, none.topology.len()), (-1, 0));
        let segments = BTreeMap::from([("zone".to_owned(), "z".to_owned())]);
        let topology = Topology { segments: segments.clone() };
        assert_eq!(NodeInfo::from(response(Some(topology))).topology, segments);
    }

    #[test]
    fn statistics_are_sorted_by_unit_and_negative_numbers_are_zero() {
        let usage =
            |unit: Unit, used| VolumeUsage { available: -1, total: 10, used, unit: unit.into() };
        let stats = VolumeStats::from(NodeGetVolumeStatsResponse {
            usage: vec![usage(Unit::Bytes, 1), usage(Unit::Unknown, 2), usage(Unit::Bytes, 3)],
            volume_condition: Some(VolumeCondition { abnormal: true, message: "worn".into() }),
        });
        let bytes = UsageOfUnit { available: 0, total: 10, used: 3 };
        assert_eq!((stats.bytes, stats.inodes), (Some(bytes), None));
        assert_eq!(stats.condition, Some((true, "worn".to_owned())));
    }
}
