//! logind's inhibitor locks, which delay the shutdown of the machine.

use super::system_bus::{BusError, BusObject, SystemBus, answer};
use futures::{Stream, StreamExt as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

const LOGIN: BusObject = BusObject {
    service: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const SYSTEMD: BusObject = BusObject {
    service: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const SIGHUP: i32 = 1;
/// Directory for drop-ins of logind's configuration.
pub const LOGIND_CONFIG_DIRECTORY: &str = "/etc/systemd/logind.conf.d";
const CONFIG_FILE: &str = "99-kubelet.conf";

/// An inhibitor lock: delays the shutdown until it is dropped, or until logind's maximum delay has passed.
#[derive(Debug)]
pub struct InhibitLock(
    // Closing the descriptor releases the lock.
    #[allow(dead_code)] OwnedFd,
);

/// logind; cheap to clone.
#[derive(Clone, Debug)]
pub struct Logind(Arc<SystemBus>);

impl Logind {
    /// The logind on this bus.
    pub fn new(bus: Arc<SystemBus>) -> Self {
        Self(bus)
    }

    /// logind's maximum delay, `InhibitDelayMaxUSec`.
    ///
    /// # Errors
    /// logind cannot be reached.
    pub async fn inhibit_delay(&self) -> Result<Duration, BusError> {
        let delay = self.0.property::<u64>(LOGIN, "InhibitDelayMaxUSec");
        Ok(Duration::from_micros(delay.await?))
    }

    /// Whether the machine is shutting down.
    ///
    /// # Errors
    /// logind cannot be reached.
    pub async fn preparing_for_shutdown(&self) -> Result<bool, BusError> {
        self.0.property(LOGIN, "PreparingForShutdown").await
    }

    /// Takes a delay lock for shutdown.
    ///
    /// # Errors
    /// logind cannot be reached, or the shutdown is already in progress.
    pub async fn inhibit_shutdown(&self) -> Result<InhibitLock, BusError> {
        let why = "Kubelet needs time to handle node shutdown";
        let body = ("shutdown", "kubelet", why, "delay");
        let reply = self.0.call(LOGIN, "Inhibit", &body).await?;
        let lock: zbus::OwnedFd = answer(&reply)?;
        Ok(InhibitLock(lock.into()))
    }

    /// Makes logind reload its configuration.
    ///
    /// # Errors
    /// systemd cannot be reached.
    pub async fn reload(&self) -> Result<(), BusError> {
        let body = ("systemd-logind.service", "all", SIGHUP);
        self.0.call(SYSTEMD, "KillUnit", &body).await.map(drop)
    }

    /// The `PrepareForShutdown` signals: true when a shutdown starts, false when it was cancelled. The stream ends
    /// when the connection is lost.
    ///
    /// # Errors
    /// logind cannot be reached.
    pub async fn shutdowns(
        &self,
    ) -> Result<impl Stream<Item = bool> + Unpin + Send + use<>, BusError> {
        let signals = self.0.signals(LOGIN, "PrepareForShutdown").await?;
        Ok(signals.filter_map(|signal| std::future::ready(answer::<bool>(&signal).ok())))
    }
}

/// Writes a drop-in with logind's maximum delay, effective after [`Logind::reload`]. Blocking.
///
/// # Errors
/// The file cannot be written.
pub fn write_inhibit_delay(directory: &Path, delay: Duration) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let seconds = delay.as_secs();
    let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n");
    fs::write(directory.join(CONFIG_FILE), text)
}
