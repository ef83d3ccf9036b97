//! Notifications of the service manager (systemd).

use super::introspect::LiveComponents;
use crate::{host::ServiceManager, server::HealthChecks};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Sends a notification; without a service manager that is not an error.
pub(super) fn notify(manager: &ServiceManager, state: &str) {
    if let Err(error) = manager.notify(state) {
        tracing::warn!(state, %error, "Failed to notify the service manager");
    }
}

/// Feeds the watchdog twice per period, as long as the sync loop runs. That the runtime is away is no
/// reason for a restart: the loop has not begun then.
pub(super) async fn watchdog(
    manager: Arc<ServiceManager>,
    within: Duration,
    checks: HealthChecks,
    live: Arc<OnceLock<LiveComponents>>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut starved = false;
    loop {
        let fault = match live.get() {
            Some(_) => checks.one("syncloop").and_then(Result::err),
            None => None,
        };
        match &fault {
            None => notify(&manager, "WATCHDOG=1"),
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
