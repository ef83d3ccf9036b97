//! The order of a pod's addresses.

use std::net::IpAddr;

/// The preferred address family: that of `--node-ip`, else IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressOrder {
    ipv6_first: bool,
}

impl AddressOrder {
    /// The default order.
    pub const IPV4_FIRST: Self = Self { ipv6_first: false };

    /// The order for a node with this preferred family.
    pub fn new(ipv6_first: bool) -> Self {
        Self { ipv6_first }
    }

    /// The first address of the preferred family, then the first one of the other family; runtimes may return more,
    /// in any order (upstream's `sortPodIPs`).
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
        for (ipv6_first, of_runtime, shown) in [
            (false, "10.0.0.5 fd00::5", "10.0.0.5 fd00::5"),
            (false, "fd00::5 10.0.0.5", "10.0.0.5 fd00::5"),
            (true, "10.0.0.5 fd00::5", "fd00::5 10.0.0.5"),
            (true, "10.0.0.5", "10.0.0.5"),
            (false, "fd00::5", "fd00::5"),
            (false, "10.0.0.5 10.0.0.6 fd00::5 fd00::6", "10.0.0.5 fd00::5"),
            (false, "FD00:0::5", "fd00::5"),
            (false, "", ""),
        ] {
            let order = AddressOrder::new(ipv6_first);
            let picked = order.pick(&read(of_runtime)).join(" ");
            assert_eq!(picked, shown, "{of_runtime} {ipv6_first}");
        }
    }
}
