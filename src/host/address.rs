//! The address of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses reserved for documentation: no host has them, so they match the default route.
const ANYWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The source address of the default route, of the preferred family if there is one; `None` without a default route.
/// Only reads the routing table; sends nothing and resolves no name.
pub fn own_address(ipv6_first: bool) -> Option<IpAddr> {
    in_order(ipv6_first).into_iter().find_map(towards)
}

fn in_order(ipv6_first: bool) -> [IpAddr; 2] {
    let [v4, v6] = ANYWHERE;
    if ipv6_first { [v6, v4] } else { [v4, v6] }
}

/// The source address for packets to a peer.
fn towards(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    // `connect` on a UDP socket selects route and source address without sending anything.
    socket.connect(SocketAddr::new(peer, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_decides_which_address_it_is() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(towards(loopback), Some(loopback));
    }

    #[test]
    fn it_is_an_address_that_this_machine_has() {
        for ipv6_first in [false, true] {
            if let Some(own) = own_address(ipv6_first) {
                UdpSocket::bind(SocketAddr::new(own, 0)).unwrap();
            }
        }
    }

    #[test]
    fn the_preferred_family_comes_first() {
        for ipv6_first in [false, true] {
            assert_eq!(in_order(ipv6_first)[0].is_ipv6(), ipv6_first);
            assert_eq!(in_order(ipv6_first)[1].is_ipv6(), !ipv6_first);
        }
    }
}
