//! Gives memory back after bursts. Hundreds of pods that start together need a lot for a moment, and
//! the C library keeps what it once had.

use crate::{host::memory, pods::status::Statuses};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long after a pod's status changed. What else changes meanwhile is part of the same burst.
const AFTER: Duration = Duration::from_secs(5);

/// Task `memory`. While nothing changes it does nothing.
pub(super) async fn run(statuses: Statuses, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut version = statuses.subscribe();
    let work = async {
        while version.changed().await.is_ok() {
            tokio::time::sleep(AFTER).await;
            version.mark_unchanged();
            tokio::task::spawn_blocking(memory::give_back).await?;
        }
        Ok(())
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        result = work => result,
    }
}
