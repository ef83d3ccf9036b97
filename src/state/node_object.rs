//! The Node object of this kubelet, as last seen from the API server.
//!
//! * Owns: the newest known version; `None` before the first read and after a deletion.
//! * Woken by: the task that registers the node, the only writer.
//! * Publishes: the object, for its labels, taints, allocatable and addresses; [`HostIps`].
//! * Must never replace a newer version by an older one that a watch delivers late.

use k8s_openapi::api::core::v1::Node;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Reading end; cheap to clone.
pub type NodeObject = watch::Receiver<Option<Arc<Node>>>;

/// Writing end, for the task that registers the node alone.
#[derive(Debug)]
pub struct NodeObjectWriter(watch::Sender<Option<Arc<Node>>>);

impl Default for NodeObjectWriter {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl NodeObjectWriter {
    /// Returns a reading end.
    pub fn reader(&self) -> NodeObject {
        self.0.subscribe()
    }

    /// The newest version.
    pub fn get(&self) -> Option<Arc<Node>> {
        self.0.borrow().clone()
    }

    /// Stores a version from a watch, unless a newer one is known: the response to a request may arrive before the
    /// watch event of an older version.
    pub fn set(&self, node: Node) {
        self.0.send_if_modified(|known| {
            let newer = known.as_deref().is_none_or(|known| is_newer(&node, known));
            if newer {
                *known = Some(Arc::new(node));
            }
            newer
        });
    }

    /// Stores the version of a list or of the response to a request, even if its resourceVersion is older: etcd may
    /// have been restored from a backup.
    pub fn replace(&self, node: Node) {
        self.0.send_replace(Some(Arc::new(node)));
    }

    /// Removes the object after its deletion.
    pub fn clear(&self) {
        self.0.send_if_modified(|known| std::mem::take(known).is_some());
    }
}

/// The node's addresses, primary first, for pod statuses (`hostIPs`) and the downward API.
#[derive(Clone, Debug)]
pub struct HostIps {
    node: NodeObject,
    own: Vec<String>,
}

impl HostIps {
    /// Reads the addresses of the Node object. Until it has any: `given`, the addresses configured for the node, or
    /// else `found`, the detected address of the machine.
    pub fn new(node: NodeObject, given: &[IpAddr], found: Option<IpAddr>) -> Self {
        let own = if given.is_empty() { found.as_slice() } else { given };
        let own = own.iter().map(ToString::to_string).collect();
        Self { node, own }
    }

    /// The current addresses; empty if the node has none.
    pub fn get(&self) -> Vec<String> {
        let node = self.node.borrow();
        let known = node.as_deref().map(host_ips).unwrap_or_default();
        if known.is_empty() { self.own.clone() } else { known }
    }
}

/// Upstream's `GetNodeHostIPs`: the first address, with InternalIP before ExternalIP, and the first address of the
/// other IP family.
fn host_ips(node: &Node) -> Vec<String> {
    let addresses = node.status.as_ref().and_then(|s| s.addresses.as_deref());
    let addresses = addresses.unwrap_or_default();
    let of = |kind: &'static str| addresses.iter().filter(move |a| a.type_ == kind);
    let all = of("InternalIP").chain(of("ExternalIP"));
    let all: Vec<IpAddr> = all.filter_map(|a| a.address.parse().ok()).collect();
    let Some(first) = all.first() else {
        return Vec::new();
    };
    let second = all.iter().find(|ip| ip.is_ipv6() != first.is_ipv6());
    let both = std::iter::once(first).chain(second);
    both.map(ToString::to_string).collect()
}

/// Whether `node` is a later version than `known`. Resource versions are increasing numbers, also from a deleted object
/// to its replacement.
fn is_newer(node: &Node, known: &Node) -> bool {
    let version =
        |node: &Node| -> Option<u64> { node.metadata.resource_version.as_deref()?.parse().ok() };
    match (version(node), version(known)) {
        (Some(new), Some(old)) => new > old,
        _ => true,
    }
}

/// Whether a Node object is at least as new as this `resourceVersion`.
pub fn has_reached(node: &Node, resource_version: &str) -> bool {
    let version = node.metadata.resource_version.as_deref();
    match (version.and_then(|it| it.parse::<u64>().ok()), resource_version.parse::<u64>()) {
        (Some(version), Ok(least)) => version >= least,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::NodeAddress;

    fn node(uid: &str, version: &str) -> Node {
        let mut node = Node::default();
        node.metadata.uid = Some(uid.into());
        node.metadata.resource_version = Some(version.into());
        node
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        for (known, next, taken) in [
            (node("a", "10"), node("a", "9"), false),
            (node("a", "10"), node("a", "10"), false),
            (node("a", "9"), node("a", "10"), true),
            (node("a", "10"), node("b", "9"), false),
            (node("a", "10"), node("a", "?"), true),
        ] {
            let writer = NodeObjectWriter::default();
            let mut reader = writer.reader();
            writer.set(known);
            reader.mark_unchanged();
            writer.set(next.clone());
            assert_eq!(reader.has_changed().unwrap(), taken);
            let kept = writer.get().unwrap();
            assert!(!taken || *kept == next);
        }
    }

    #[test]
    fn a_node_has_reached_its_own_version_and_every_older_one() {
        for (version, least, reached) in [("9", "9", true), ("10", "9", true), ("9", "10", false)] {
            assert_eq!(has_reached(&node("a", version), least), reached);
        }
    }

    #[test]
    fn host_ips_are_those_of_the_object_as_it_is_now() {
        let with = |version: &str, addresses: &[(&str, &str)]| {
            let mut node = node("a", version);
            let addresses = addresses.iter().map(|(kind, address)| NodeAddress {
                type_: (*kind).into(),
                address: (*address).into(),
            });
            node.status.get_or_insert_default().addresses = Some(addresses.collect());
            node
        };
        let writer = NodeObjectWriter::default();
        let found = Some("198.51.100.1".parse().unwrap());
        let ips = HostIps::new(writer.reader(), &[], found);
        let shown = || ips.get().join(" ");
        assert_eq!(shown(), "198.51.100.1");
        for (version, (addresses, expected)) in [
            (&[][..], "198.51.100.1"),
            (&[("Hostname", "n"), ("InternalIP", "n")], "198.51.100.1"),
            (&[("InternalIP", "192.0.2.1")], "192.0.2.1"),
            (&[("InternalIP", "192.0.2.2"), ("InternalIP", "192.0.2.3")], "192.0.2.2"),
            (
                &[
                    ("ExternalIP", "203.0.113.1"),
                    ("InternalIP", "2001:db8::1"),
                    ("InternalIP", "192.0.2.2"),
                ],
                "2001:db8::1 192.0.2.2",
            ),
            (&[("ExternalIP", "203.0.113.1")], "203.0.113.1"),
        ]
        .into_iter()
        .enumerate()
        {
            writer.set(with(&version.to_string(), addresses));
            assert_eq!(shown(), expected, "{addresses:?}");
        }
    }

    #[test]
    fn until_the_object_is_known_host_ips_are_those_given_or_else_the_one_found() {
        let [a, b]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        for (given, found, expected) in [
            (&[a][..], Some(b), "192.0.2.1"),
            (&[a, b], None, "192.0.2.1 192.0.2.2"),
            (&[], Some(b), "192.0.2.2"),
            (&[], None, ""),
        ] {
            let ips = HostIps::new(NodeObjectWriter::default().reader(), given, found);
            assert_eq!(ips.get().join(" "), expected);
        }
    }

    #[test]
    fn a_deleted_node_is_no_more_and_what_is_listed_may_have_any_version() {
        let writer = NodeObjectWriter::default();
        writer.set(node("a", "10"));
        writer.replace(node("a", "7"));
        assert_eq!(*writer.get().unwrap(), node("a", "7"));
        writer.clear();
        assert_eq!(writer.get(), None);
        writer.set(node("a", "3"));
        assert_eq!(*writer.reader().borrow(), Some(Arc::new(node("a", "3"))));
    }
}
