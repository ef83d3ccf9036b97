//! Waiting for facts, with a deadline; never for time to pass.

use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// How often a condition without a notification is polled.
const RETRY_AFTER: Duration = Duration::from_millis(25);

/// Looks until `fact` gives a value and returns it; panics with `what` and the last refusal after `deadline`.
pub async fn wait_for<T, F, Fut>(what: &str, deadline: Duration, mut fact: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        match fact().await {
            Ok(value) => return value,
            Err(why) if start.elapsed() >= deadline => {
                panic!("not within {deadline:?}: {what}; at last: {why}")
            }
            Err(_) => tokio::time::sleep(RETRY_AFTER).await,
        }
    }
}

/// `Ok` when it holds, for `wait_for`.
pub fn holds(fact: bool, otherwise: impl Into<String>) -> Result<(), String> {
    if fact { Ok(()) } else { Err(otherwise.into()) }
}
