//! The connections of a port, and the choice of connections to close for a new one. Pure.

use crate::base::clock::Instant;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Limits and timeouts of connections per client, and per port.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Open connections of unauthenticated clients: all connections of the health and read-only ports, and those of the
    /// main port before their first authorized request.
    pub unauthenticated: usize,
    /// Number of these connections per IPv4 address or IPv6 network above which its idle ones are closed.
    pub per_source: usize,
    /// Open connections of authenticated clients, and of the local socket.
    pub authenticated: usize,
    /// Timeout of a TLS handshake, and of the head of a request: from its first byte, or for the first request of a
    /// connection from the accept.
    pub head_timeout: Duration,
    /// Idle timeout between two requests of a connection; upstream's value.
    pub idle_timeout: Duration,
    /// Timeout for a client that does not read the response.
    pub write_timeout: Duration,
    /// Timeout for finishing responses at shutdown.
    pub shutdown_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            unauthenticated: 512,
            per_source: 16,
            authenticated: 1024,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            write_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}

/// Connections younger than this are closed for another one only if there are no older ones, because their TLS
/// handshake may be in progress.
const MIN_EVICTION_AGE: Duration = Duration::from_millis(250);

/// Prefix length of IPv6 networks that count as one client, because a client can choose addresses within its network.
const IPV6_CLIENT_PREFIX: u32 = 64;

/// Number of a connection, unique on its port.
pub(super) type ConnectionId = u64;

/// The source by which connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::server) enum ConnectionSource {
    /// An IPv4 address, or the network of an IPv6 address.
    Address(IpAddr),
    /// The local socket; its clients count as authenticated.
    Local,
}

impl From<IpAddr> for ConnectionSource {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::MAX << (Ipv6Addr::BITS - IPV6_CLIENT_PREFIX);
                Ipv6Addr::from_bits(address.to_bits() & network).into()
            }
            address => address,
        })
    }
}

/// No connection can be added, or moved to the authenticated ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct NoFreeConnection;

#[derive(Debug)]
struct TrackedConnection {
    source: ConnectionSource,
    authenticated: bool,
    busy: bool,
    /// When it was opened, or when its last request ended.
    since: Instant,
}

impl TrackedConnection {
    /// Whether it is older than [`MIN_EVICTION_AGE`].
    fn is_evictable(&self, now: Instant) -> bool {
        now >= self.since + MIN_EVICTION_AGE
    }
}

#[derive(Debug)]
pub(super) struct PortConnections {
    limits: ConnectionLimits,
    connections: BTreeMap<ConnectionId, TrackedConnection>,
    authenticated: usize,
    next: ConnectionId,
}

impl PortConnections {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, connections: BTreeMap::new(), authenticated: 0, next: 0 }
    }

    /// Adds a connection; returns those to close for it.
    ///
    /// # Errors
    /// The limit of authenticated connections is reached and none is idle; only for the local socket.
    pub(super) fn open(
        &mut self,
        source: ConnectionSource,
        now: Instant,
    ) -> Result<(ConnectionId, Vec<ConnectionId>), NoFreeConnection> {
        let authenticated = source == ConnectionSource::Local;
        let closed = if authenticated {
            self.evict_for_authenticated()?.into_iter().collect()
        } else {
            self.evict_for_unauthenticated(source, now)
        };
        for id in &closed {
            self.remove(*id);
        }
        let id = self.next;
        self.next += 1;
        self.authenticated += usize::from(authenticated);
        let connection = TrackedConnection { source, authenticated, busy: false, since: now };
        self.connections.insert(id, connection);
        Ok((id, closed))
    }

    pub(super) fn begin_request(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.busy = true;
        }
    }

    pub(super) fn end_request(&mut self, id: ConnectionId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            (connection.busy, connection.since) = (false, now);
        }
    }

    /// Marks a connection's client as authenticated; returns the connection to close for it.
    ///
    /// # Errors
    /// The limit of authenticated connections is reached and none is idle.
    pub(super) fn mark_authenticated(
        &mut self,
        id: ConnectionId,
    ) -> Result<Option<ConnectionId>, NoFreeConnection> {
        let known = self.connections.get(&id);
        if known.is_none_or(|connection| connection.authenticated) {
            return Ok(None);
        }
        let closed = self.evict_for_authenticated()?;
        if let Some(closed) = closed {
            self.remove(closed);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.authenticated = true;
            self.authenticated += 1;
        }
        Ok(closed)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        let removed = self.connections.remove(&id);
        if removed.is_some_and(|connection| connection.authenticated) {
            self.authenticated -= 1;
        }
    }

    /// The oldest idle connection of an authenticated client, if one has to be closed for another authenticated
    /// client.
    fn evict_for_authenticated(&self) -> Result<Option<ConnectionId>, NoFreeConnection> {
        if self.authenticated < self.limits.authenticated {
            return Ok(None);
        }
        let all = self.connections.iter();
        let idle = all.filter(|(_, connection)| connection.authenticated && !connection.busy);
        let oldest = idle.min_by_key(|(id, connection)| (connection.since, **id));
        oldest.map(|(id, _)| Some(*id)).ok_or(NoFreeConnection)
    }

    /// The connections to close for a new one of that source: the oldest idle ones of the source if it exceeds
    /// `per_source`; otherwise, if the port is full, one of the source with the most connections. Connections with a
    /// request in progress, and those that were just opened, are closed last.
    fn evict_for_unauthenticated(
        &self,
        source: ConnectionSource,
        now: Instant,
    ) -> Vec<ConnectionId> {
        let all = self.connections.iter();
        let all = all.filter(|(_, connection)| !connection.authenticated);
        let all: Vec<(ConnectionId, &TrackedConnection)> =
            all.map(|(id, one)| (*id, one)).collect();
        let mut of_source: Vec<_> = all.iter().filter(|(_, one)| one.source == source).collect();
        let too_many = (of_source.len() + 1).saturating_sub(self.limits.per_source);
        of_source.retain(|(_, one)| !one.busy && one.is_evictable(now));
        of_source.sort_by_key(|(id, one)| (one.since, *id));
        let mut closed: Vec<ConnectionId> =
            of_source.iter().take(too_many).map(|(id, _)| *id).collect();
        if closed.is_empty() && all.len() >= self.limits.unauthenticated {
            let mut counts = HashMap::<ConnectionSource, usize>::new();
            for (_, one) in &all {
                *counts.entry(one.source).or_default() += 1;
            }
            let count_of =
                |one: &TrackedConnection| counts.get(&one.source).copied().unwrap_or_default();
            let order = |(id, one): &&(ConnectionId, &TrackedConnection)| {
                let young = !one.is_evictable(now);
                (one.busy, young, Reverse(count_of(one)), one.since, *id)
            };
            closed.extend(all.iter().min_by_key(order).map(|(id, _)| *id));
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    struct Port {
        state: PortConnections,
        start: Instant,
    }

    fn limits(unauthenticated: usize, per_source: usize, authenticated: usize) -> ConnectionLimits {
        ConnectionLimits {
            unauthenticated,
            per_source,
            authenticated,
            ..ConnectionLimits::default()
        }
    }

    fn source(last: u8) -> ConnectionSource {
        IpAddr::from([10, 0, 0, last]).into()
    }

    impl Port {
        fn new(limits: ConnectionLimits) -> Self {
            Self { state: PortConnections::new(limits), start: clock::instant() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// What is closed for a connection of that source.
        fn open(&mut self, last: u8, seconds: u64) -> Vec<ConnectionId> {
            let now = self.at(seconds);
            self.state.open(source(last), now).unwrap().1
        }
    }

    #[test]
    fn a_source_that_has_its_share_loses_its_oldest_silent_connection() {
        let mut port = Port::new(limits(100, 3, 100));
        for seconds in 0..3 {
            assert!(port.open(1, seconds).is_empty());
        }
        assert!(port.open(2, 3).is_empty(), "another one's share is its own");
        assert_eq!(port.open(1, 4), [0]);
        port.state.begin_request(1);
        assert_eq!(port.open(1, 5), [2], "a request in progress is not cut off");
        port.state.end_request(1, port.at(6));
        port.state.mark_authenticated(4).unwrap();
        assert!(port.open(1, 7).is_empty(), "who is authenticated counts elsewhere");
    }

    #[test]
    fn a_burst_of_one_source_is_accepted_while_there_is_room() {
        let mut port = Port::new(limits(100, 3, 100));
        for _ in 0..50 {
            assert!(port.open(1, 0).is_empty());
        }
        assert_eq!(port.open(1, 1).len(), 48, "all that is too much, once it is silent");
    }

    #[test]
    fn without_room_the_oldest_of_the_largest_source_is_closed() {
        let mut port = Port::new(limits(5, 3, 100));
        for (last, seconds) in [(1, 0), (2, 1), (2, 2), (3, 3), (2, 4)] {
            assert!(port.open(last, seconds).is_empty());
        }
        assert_eq!(port.open(4, 10), [1]);
        assert_eq!(port.state.connections.len(), 5);
        // A handshake that has just begun is not cut off for the next unauthenticated client.
        assert_eq!(port.open(5, 10), [2]);
        assert_eq!(port.open(6, 10), [0]);
        for last in 7..100 {
            assert_eq!(port.open(last, 10).len(), 1);
            assert_eq!(port.state.connections.len(), 5);
        }
    }

    #[test]
    fn requests_in_progress_go_when_nothing_else_is_there() {
        let mut port = Port::new(limits(3, 3, 100));
        for last in [1, 1, 2] {
            port.open(last, 0);
        }
        for id in 0..3 {
            port.state.begin_request(id);
        }
        assert_eq!(port.open(3, 10), [0], "of who has most");
        assert_eq!(port.open(3, 20), [3], "the silent one");
    }

    #[test]
    fn authenticated_clients_lose_only_idle_connections() {
        let mut port = Port::new(limits(100, 100, 2));
        for seconds in 0..4 {
            port.open(1, seconds);
        }
        assert_eq!(port.state.mark_authenticated(0), Ok(None));
        assert_eq!(port.state.mark_authenticated(1), Ok(None));
        assert_eq!(port.state.mark_authenticated(1), Ok(None), "it is already");
        port.state.begin_request(0);
        assert_eq!(port.state.mark_authenticated(2), Ok(Some(1)));
        port.state.begin_request(2);
        assert_eq!(port.state.mark_authenticated(3), Err(NoFreeConnection));
        port.state.remove(0);
        assert_eq!(port.state.mark_authenticated(3), Ok(None));
        // Unauthenticated clients take nothing from them.
        for last in 0..200 {
            assert!(port.open(last, 100).iter().all(|id| *id > 3));
        }
    }

    #[test]
    fn the_local_socket_has_authenticated_clients_alone() {
        let mut port = Port::new(limits(0, 0, 1));
        let now = port.start;
        assert_eq!(port.state.open(ConnectionSource::Local, now), Ok((0, vec![])));
        assert_eq!(port.state.open(ConnectionSource::Local, now), Ok((1, vec![0])));
        port.state.begin_request(1);
        assert_eq!(port.state.open(ConnectionSource::Local, now), Err(NoFreeConnection));
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| ConnectionSource::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), source(1));
        assert_ne!(source(1), source(2));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
