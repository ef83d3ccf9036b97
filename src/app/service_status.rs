//! What `systemctl status` shows of the kubelet.

use crate::apiserver::AwaySince;
use crate::base::clock;
use crate::host::ServiceManager;
use crate::pods::pleg::RuntimeStateReader;
use crate::state::pod_manager::PodManager;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The status until the runtime has responded for the first time.
pub(super) const WAITS_FOR_RUNTIME: &str = "STATUS=waiting for the container runtime";
/// Minimum interval of notifications: while many pods start, each changes the number.
const INTERVAL: Duration = Duration::from_secs(1);
/// When the status is computed without a change.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// What the status depends on.
pub(super) struct ServiceStatus {
    pub(super) pods: PodManager,
    pub(super) runtime: RuntimeStateReader,
    /// `None` on a node without an API server.
    pub(super) api: Option<watch::Receiver<AwaySince>>,
}

impl ServiceStatus {
    /// Reports each change to the service manager.
    ///
    /// # Errors
    /// None.
    pub(super) async fn report(
        mut self,
        manager: Arc<ServiceManager>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut changes = self.pods.subscribe();
        let mut reported = None;
        let reporting = async {
            loop {
                changes.borrow_and_update();
                let responds = self.runtime_responds();
                let api = self.api.as_mut();
                let is_away = api.is_some_and(|api| api.borrow_and_update().is_some());
                let now = text(responds, is_away, self.pods.count());
                if reported.as_ref() != Some(&now) {
                    manager.report(&now);
                    reported = Some(now);
                }
                sleep(INTERVAL).await;
                let api_changes = async {
                    match &mut self.api {
                        Some(api) => api.changed().await,
                        None => std::future::pending().await,
                    }
                };
                // A sender that is gone means that the kubelet ends.
                let changed = tokio::select! {
                    changed = changes.changed() => changed,
                    changed = self.runtime.changed() => changed,
                    changed = api_changes => changed,
                    // A runtime that hangs changes nothing.
                    () = sleep(CHECK_INTERVAL) => Ok(()),
                };
                if changed.is_err() {
                    return;
                }
            }
        };
        shutdown.run_until_cancelled(reporting).await;
        Ok(())
    }

    fn runtime_responds(&mut self) -> bool {
        let runtime = self.runtime.borrow_and_update();
        runtime.runtime_error(clock::instant()).is_none()
    }
}

fn text(runtime_responds: bool, api_is_away: bool, pods: usize) -> String {
    if !runtime_responds {
        return WAITS_FOR_RUNTIME.to_owned();
    }
    let plural = if pods == 1 { "" } else { "s" };
    let waits = if api_is_away { "waiting for the API server, " } else { "" };
    format!("STATUS={waits}{pods} pod{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_names_what_is_waited_for_or_the_number_of_pods() {
        for (responds, is_away, pods, expected) in [
            (false, true, 3, WAITS_FOR_RUNTIME),
            (true, true, 3, "STATUS=waiting for the API server, 3 pods"),
            (true, false, 1, "STATUS=1 pod"),
            (true, false, 0, "STATUS=0 pods"),
        ] {
            assert_eq!(text(responds, is_away, pods), expected);
        }
    }
}
