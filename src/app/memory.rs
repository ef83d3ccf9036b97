//! Returns memory to the kernel after the start and after bursts: the C library keeps what hundreds of pods that start
//! together needed for a moment, and the code that ran for them stays mapped.

use crate::{host::memory, pods::status::Statuses};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Delay after the start, or after a change of a pod's status; later changes within it belong to the same burst.
const AFTER: Duration = Duration::from_secs(5);

/// Task `memory`. It is idle while no status changes.
pub(super) async fn run(statuses: Statuses, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut version = statuses.subscribe();
    let work = async {
        loop {
            tokio::time::sleep(AFTER).await;
            version.mark_unchanged();
            tokio::task::spawn_blocking(memory::give_back).await?;
            if version.changed().await.is_err() {
                return Ok(());
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        result = work => result,
    }
}
