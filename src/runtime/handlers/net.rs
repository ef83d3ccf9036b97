//! TCP connections of handlers, which are reset when they are closed.

use super::ProbeOutcome;
use super::deadline::{TimeoutError, tolerance, within};
use crate::base::spawn_blocking;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of lookups of host names at once. Each blocks a thread until the resolver returns, also if its probe
/// has timed out, and they must not use all blocking threads.
const MAX_LOOKUPS: usize = 32;
static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// A network error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetError {
    /// The text, in the form of Go's `net` package.
    pub(super) text: String,
    /// Whether this node ran out of ports, memory, file descriptors or lookups of host names.
    pub(super) local: bool,
}

/// Opens a connection that is reset when it is dropped, so that its port can be used again immediately
/// instead of after a minute in TIME_WAIT. If `host` is a name, its lookup begins within `max_wait` or is an error.
pub(super) async fn dial(host: &str, port: u16, max_wait: Duration) -> Result<TcpStream, NetError> {
    let connected = if let Ok(address) = host.parse::<IpAddr>() {
        TcpStream::connect((address, port)).await
    } else {
        let name = host.to_owned();
        let resolve = move || {
            let addresses = (name.as_str(), port).to_socket_addrs();
            addresses.map(Vec::from_iter)
        };
        match lookup(&LOOKUPS, max_wait, resolve).await {
            Some(Ok(addresses)) => TcpStream::connect(addresses.as_slice()).await,
            Some(Err(error)) => Err(error),
            None => {
                return Err(NetError {
                    text: format!(
                        "dial tcp {}: lookup {host}: too many lookups in progress",
                        join_host_port(host, port)
                    ),
                    local: true,
                });
            }
        }
    };
    connected.and_then(|stream| stream.set_zero_linger().map(|()| stream)).map_err(|error| {
        NetError {
            text: format!("dial tcp {}: connect: {}", join_host_port(host, port), io_text(&error)),
            local: is_local(&error),
        }
    })
}

/// Runs `resolve` on a thread; `None` if there is no permit for it within `max_wait`. The thread keeps the permit until
/// the resolver returns, also if the caller does not wait for it.
async fn lookup(
    lookups: &'static Semaphore,
    max_wait: Duration,
    resolve: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Option<io::Result<Vec<SocketAddr>>> {
    let permit = timeout(max_wait, lookups.acquire()).await.ok()?;
    let resolving = spawn_blocking(move || {
        let _permit = permit;
        resolve()
    });
    let resolved = resolving.await;
    Some(resolved.unwrap_or_else(|error| Err(io::Error::other(error))))
}

/// The message for a connection attempt that timed out.
pub(super) fn dial_timed_out(host: &str, port: u16) -> String {
    format!("dial tcp {}: i/o timeout", join_host_port(host, port))
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
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
    match within(timeout, dial(host, port, tolerance(timeout))).await {
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
    use futures::FutureExt as _;
    use parking_lot::Mutex;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(10);

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
    fn lookups_that_hang_leave_threads_for_other_work_and_are_no_fault_of_the_peer() {
        const PERMITS: usize = 2;
        static LOOKUPS: Semaphore = Semaphore::const_new(PERMITS);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(PERMITS + 1)
            .enable_time()
            .build()
            .unwrap();
        let resolver = Arc::new(Mutex::new(()));
        let hangs = || {
            let resolver = resolver.clone();
            move || {
                drop(resolver.lock());
                Ok(Vec::new())
            }
        };
        let hung = resolver.lock();
        runtime.block_on(async {
            for _ in 0..PERMITS {
                // As by the timeout of a probe.
                let abandoned = lookup(&LOOKUPS, Duration::ZERO, hangs()).now_or_never();
                assert!(abandoned.is_none());
            }
            for _ in 0..5 {
                let refused = lookup(&LOOKUPS, Duration::ZERO, hangs()).await;
                assert!(refused.is_none(), "{refused:?}");
            }
            let other_work = timeout(LONG, spawn_blocking(|| ())).await;
            other_work.expect("a thread is free").unwrap();
        });
        drop(hung);
        runtime.block_on(async {
            let resolved = lookup(&LOOKUPS, LONG, hangs()).await;
            assert!(matches!(resolved, Some(Ok(_))), "{resolved:?}");
        });
    }

    #[tokio::test]
    async fn a_probe_that_waits_in_vain_for_a_lookup_is_unknown_and_an_address_needs_none() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lookups = LOOKUPS.acquire_many(MAX_LOOKUPS as u32).await.unwrap();
        assert!(dial("127.0.0.1", port, Duration::ZERO).await.is_ok());
        let probed = probe_tcp("name.invalid", port, Duration::from_millis(100)).await;
        let text = format!(
            "dial tcp name.invalid:{port}: lookup name.invalid: too many lookups in progress"
        );
        assert_eq!(probed, ProbeOutcome::unknown(text));
        drop(lookups);
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
