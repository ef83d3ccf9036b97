//! In which order a pod's addresses count.

use std::net::IpAddr;

/// Which family of addresses comes first: that of the node's first address, else IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressOrder {
    ipv6_first: bool,
}

impl AddressOrder {
    /// The order where nothing is known of the node.
    pub const IPV4_FIRST: Self = Self { ipv6_first: false };

    /// The order on a node with these addresses, primary first.
    pub fn of_node(addresses: &[IpAddr]) -> Self {
        Self {
            ipv6_first: addresses.first().is_some_and(IpAddr::is_ipv6),
        }
    }

    /// The first address of the first family, then the first of the other one; runtimes may have more,
    /// in any order. Upstream's `sortPodIPs`.
    pub fn pick(self, addresses: &[IpAddr]) -> Vec<String> {
        let first = |ipv6: bool| addresses.iter().find(|ip| ip.is_ipv6() == ipv6);
        [self.ipv6_first, !self.ipv6_first]
            .into_iter()
            .filter_map(first)
            .map(ToString::to_string)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_one_address_of_each_family_in_the_nodes_order() {
        let read = |text: &str| -> Vec<IpAddr> {
            let addresses = text.split_whitespace();
            addresses.map(|ip| ip.parse().unwrap()).collect()
        };
        for (node, of_runtime, shown) in [
            ("", "10.0.0.5 fd00::5", "10.0.0.5 fd00::5"),
            ("", "fd00::5 10.0.0.5", "10.0.0.5 fd00::5"),
            ("192.0.2.1 fd00::1", "fd00::5 10.0.0.5", "10.0.0.5 fd00::5"),
            ("fd00::1", "10.0.0.5 fd00::5", "fd00::5 10.0.0.5"),
            ("fd00::1", "10.0.0.5", "10.0.0.5"),
            ("", "fd00::5", "fd00::5"),
            ("", "10.0.0.5 10.0.0.6 fd00::5 fd00::6", "10.0.0.5 fd00::5"),
            ("", "FD00:0::5", "fd00::5"),
            ("", "", ""),
        ] {
            let order = AddressOrder::of_node(&read(node));
            let picked = order.pick(&read(of_runtime)).join(" ");
            assert_eq!(picked, shown, "{of_runtime} on {node}");
        }
    }
}
