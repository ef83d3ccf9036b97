//! Waiting for facts, with a deadline; never for time to pass.

use std::future::Future;
use std::time::{Duration, Instant};

/// How often a fact is looked at that cannot announce itself, and the longest time in between when a look
/// takes long.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

/// In between, so many times what a look took: those that run a program would keep the machine busy that
/// they wait for.
const PAUSE_PER_LOOK: u32 = 4;

/// Looks until `fact` gives a value and returns it; panics with `what` and the last refusal after `deadline`.
pub async fn wait_for<T, F, Fut>(what: &str, deadline: Duration, mut fact: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        let look = Instant::now();
        match fact().await {
            Ok(value) => return value,
            Err(why) if start.elapsed() >= deadline => {
                panic!("not within {deadline:?}: {what}; at last: {why}")
            }
            Err(_) => {
                let (shortest, longest) = LOOK_AGAIN;
                let pause = look.elapsed().saturating_mul(PAUSE_PER_LOOK);
                tokio::time::sleep(pause.clamp(shortest, longest)).await;
            }
        }
    }
}

/// `Ok` when it holds, for `wait_for`.
pub fn holds(fact: bool, otherwise: impl Into<String>) -> Result<(), String> {
    if fact { Ok(()) } else { Err(otherwise.into()) }
}
