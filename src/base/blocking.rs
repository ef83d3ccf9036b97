//! The one place that starts blocking work; `clippy.toml` disallows the others.

use super::clock;
use tokio::task::JoinHandle;

/// Runs blocking work on a thread for it.
///
/// On a runtime in virtual time it is a task of that runtime instead, because the order in which threads end is the
/// machine's choice, and so that time does not advance before the work is done.
#[expect(clippy::disallowed_methods, reason = "every other place starts it here")]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    if clock::is_simulated() {
        tokio::spawn(async move { work() })
    } else {
        tokio::task::spawn_blocking(work)
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::SimulatedWallClock;
    use super::*;
    use jiff::Timestamp;
    use std::thread;
    use std::time::Duration;
    use tokio::runtime::Handle;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn in_virtual_time_blocking_work_is_a_task() {
        let here = thread::current().id();
        let ran_on = || spawn_blocking(|| thread::current().id());
        assert_ne!(ran_on().await.unwrap(), here);
        let clock = SimulatedWallClock::start(&Handle::current(), Timestamp::UNIX_EPOCH);
        let hour = Duration::from_secs(3600);
        let hour_passes = sleep(hour);
        let read = spawn_blocking(clock::timestamp);
        assert_eq!(ran_on().await.unwrap(), here);
        hour_passes.await;
        assert_eq!(read.await.unwrap(), Timestamp::UNIX_EPOCH);
        drop(clock);
        assert_ne!(ran_on().await.unwrap(), here);
    }
}
