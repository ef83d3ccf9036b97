//! Notifies the service manager (`sd_notify(3)`) that the process is ready, alive or stopping.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The service manager's socket. Notifications never block.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// From the values of `NOTIFY_SOCKET` (a path, or `@` and an abstract name), `WATCHDOG_USEC` (microseconds) and
    /// `WATCHDOG_PID` (the PID that the watchdog is for).
    ///
    /// # Errors
    /// The address is invalid.
    pub fn new(address: &str, usec: Option<&str>, pid: Option<&str>) -> io::Result<Self> {
        let address = match address.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(address)?,
        };
        let ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
        let micros = usec.filter(|_| ours).and_then(|usec| usec.parse().ok());
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            address,
            watchdog: micros.filter(|usec| *usec > 0).map(Duration::from_micros),
        })
    }

    /// The watchdog interval, if the service manager expects `WATCHDOG=1`.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends `READY=1`, `WATCHDOG=1` and the like.
    ///
    /// # Errors
    /// Nothing listens on the socket, or its queue is full.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.socket.send_to_addr(state.as_bytes(), &self.address).map(drop)
    }

    /// Calls [`Self::notify`] and logs a failure: the kubelet also works without a service manager.
    pub fn report(&self, state: &str) {
        if let Err(error) = self.notify(state) {
            tracing::warn!(state, %error, "Failed to notify the service manager");
        }
    }

    /// Notifies the watchdog twice per interval, as long as `check` succeeds.
    ///
    /// # Errors
    /// None.
    pub async fn feed_watchdog(
        self: Arc<Self>,
        within: Duration,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut starved = false;
        loop {
            let fault = check().err();
            match &fault {
                None => self.report("WATCHDOG=1"),
                Some(why) if !starved => tracing::error!(
                    why,
                    "The sync loop hangs; no more watchdog notifications are sent"
                ),
                Some(_) => {}
            }
            starved = fault.is_some();
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(within / 2) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let read = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..read]).into_owned()
    }

    #[test]
    fn it_is_told_over_a_path_and_over_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::new(path.to_str().unwrap(), None, None).unwrap();
        manager.notify("READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");

        let name = format!("kubelet-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let manager = ServiceManager::new(&format!("@{name}"), None, None).unwrap();
        manager.notify("WATCHDOG=1").unwrap();
        assert_eq!(received(&socket), "WATCHDOG=1");
    }

    #[test]
    fn nobody_there_is_an_error_and_no_wait() {
        let manager = ServiceManager::new("/nonexistent/notify", None, None).unwrap();
        assert!(manager.notify("READY=1").is_err());
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_it_names() {
        let me = std::process::id().to_string();
        let rows = [
            (Some("2000000"), None, Some(2)),
            (Some("2000000"), Some(me.as_str()), Some(2)),
            (Some("2000000"), Some("1"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, None, None),
        ];
        for (usec, pid, seconds) in rows {
            let manager = ServiceManager::new("/run/x", usec, pid).unwrap();
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(manager.watchdog(), expected, "{usec:?} {pid:?}");
        }
    }
}
