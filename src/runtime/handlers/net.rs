//! TCP connections of handlers, which are reset when they are closed.

use super::{
    ProbeOutcome,
    deadline::{TimeoutError, within},
};
use std::{io, time::Duration};

use rustix::io::Errno;
use tokio::net::TcpStream;

/// A network error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetError {
    /// The text, in the form of Go's `net` package.
    pub(super) text: String,
    /// Whether this node ran out of ports, memory or file descriptors.
    pub(super) local: bool,
}

/// Opens a connection that is reset when it is dropped, so that its port can be used again immediately
/// instead of after a minute in TIME_WAIT.
pub(super) async fn dial(host: &str, port: u16) -> Result<TcpStream, NetError> {
    let connected = TcpStream::connect((host, port)).await;
    connected
        .and_then(|stream| stream.set_zero_linger().map(|()| stream))
        .map_err(|error| NetError {
            text: format!(
                "dial tcp {}: connect: {}",
                join_host_port(host, port),
                io_text(&error)
            ),
            local: is_local(&error),
        })
}

/// The message for a connection attempt that timed out.
pub(super) fn dial_timed_out(host: &str, port: u16) -> String {
    format!("dial tcp {}: i/o timeout", join_host_port(host, port))
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Whether the error is a lack of resources on this node.
pub(super) fn is_local(error: &io::Error) -> bool {
    const LOCAL: [Errno; 6] = [
        Errno::ADDRNOTAVAIL,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::AGAIN,
    ];
    Errno::from_io_error(error).is_some_and(|errno| LOCAL.contains(&errno))
}

/// The text of a system error as in Go: without the error number, and in lower case.
pub(super) fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// tcpSocket: whether a connection is accepted.
pub(super) async fn probe_tcp(host: &str, port: u16, timeout: Duration) -> ProbeOutcome {
    match within(timeout, dial(host, port)).await {
        Ok(Ok(_stream)) => ProbeOutcome::success(""),
        Ok(Err(error)) if error.local => ProbeOutcome::unknown(error.text),
        Ok(Err(error)) => ProbeOutcome::failure(error.text),
        Err(TimeoutError::TimedOut) => ProbeOutcome::failure(dial_timed_out(host, port)),
        Err(TimeoutError::Starved(lag)) => {
            ProbeOutcome::unknown(TimeoutError::starved_text(lag, timeout))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn being_out_of_means_is_our_fault_and_everything_else_is_not() {
        let table = [
            (Errno::ADDRNOTAVAIL, true),
            (Errno::NOMEM, true),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, true),
            (Errno::CONNREFUSED, false),
            (Errno::CONNRESET, false),
            (Errno::HOSTUNREACH, false),
            (Errno::TIMEDOUT, false),
        ];
        for (errno, local) in table {
            assert_eq!(is_local(&errno.into()), local, "{errno:?}");
        }
        assert!(!is_local(&io::Error::other("no errno")));
    }

    #[test]
    fn errors_read_as_users_know_them() {
        let text = io_text(&Errno::CONNREFUSED.into());
        assert_eq!(text, "connection refused");
    }

    #[test]
    fn ipv6_addresses_get_brackets() {
        assert_eq!(join_host_port("10.0.0.1", 80), "10.0.0.1:80");
        assert_eq!(join_host_port("fd00::1", 80), "[fd00::1]:80");
    }
}
