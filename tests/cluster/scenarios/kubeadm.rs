//! A cluster as administrators make it.

use crate::kubelet::Flavour;
use crate::support::scripts::{printed, script};

/// `hack/cluster.sh` ends well only if all of that works; it and this kubelet are what `make cluster-demo` runs.
pub async fn kubeadm_makes_a_cluster_adds_a_node_and_changes_the_control_plane() {
    let mut command = script("cluster.sh");
    command.env("KUBELET", Flavour::current().program());
    let shown = printed(&mut command).unwrap_or_else(|error| panic!("{error}"));
    for node in ["node1", "node2"] {
        let line = shown.lines().find(|line| line.starts_with(node));
        assert!(line.is_some_and(|line| line.contains(" Ready ")), "{shown}");
    }
}
