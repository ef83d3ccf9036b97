//! Connections in the kernel's table of TCP sockets, for tests.

/// A connection whose two ends are open, in `/proc/net/tcp`.
pub(crate) const ESTABLISHED: &str = "01";
/// A closed connection that the kernel keeps waiting, in `/proc/net/tcp`.
pub(crate) const TIME_WAIT: &str = "06";

/// Whether the socket of a connection between these ports has this state.
pub(crate) fn has_state(local: u16, remote: u16, state: &str) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let mut port_is = |port: u16| {
            let address = fields.next().unwrap_or_default();
            address.ends_with(&format!(":{port:04X}"))
        };
        port_is(local) && port_is(remote) && fields.next() == Some(state)
    })
}
