//! Pods and settings that the tests of this module share.

use super::generate::GenerateSettings;
use crate::model::{NodeFacts, Pod, fixture};
use crate::resources::ResourceEnforcement;
use crate::state::node_object::{HostIps, NodeObjectWriter};
use crate::volumes::KubeletRoot;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// A pod `web` in namespace `shop` with UID `u-1`.
pub(super) fn pod(spec: Value) -> Pod {
    fixture::pod("shop/web/u-1", spec)
}

/// The pod with only this container, named `c`.
pub(super) fn pod_with(mut container: Value) -> Pod {
    container["name"] = "c".into();
    pod(json!({"containers": [container]}))
}

/// Facts of a node with 4 GiB.
pub(super) fn node() -> NodeFacts {
    NodeFacts {
        memory_capacity_bytes: 4 << 30,
        allocatable_milli_cpu: 4000,
        allocatable_memory_bytes: 4 << 30,
        unreserved_memory_bytes: 4 << 30,
        allocatable_ephemeral_storage_bytes: 10 << 30,
        ..NodeFacts::default()
    }
}

/// Settings with a root below the directory.
pub(super) fn settings(directory: &Path) -> GenerateSettings {
    GenerateSettings {
        root: KubeletRoot::create(directory).unwrap(),
        pod_logs_dir: "/var/log/pods".into(),
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".into(),
        seccomp_default: false,
        enforcement: ResourceEnforcement::default(),
        node: Arc::new(node()),
        host_ips: HostIps::new(
            NodeObjectWriter::default().reader(),
            &["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap()),
            None,
        ),
    }
}
