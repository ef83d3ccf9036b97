//! Waiting for a moment that may not be set.

use tokio::time::{Instant, sleep_until};

/// Waits until `due`; without one, for ever.
pub async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
