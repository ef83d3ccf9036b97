//! A timeout that distinguishes a slow peer from a kubelet without processor time.

use crate::base::clock;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::sleep_until;

/// Why work did not end within its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutError {
    /// The peer did not respond within the timeout.
    TimedOut,
    /// This task was not scheduled in time: the sum of the delays of its wake-ups exceeds the tolerance, so
    /// the peer may have responded.
    Starved(Duration),
}

impl TimeoutError {
    /// The message for [`TimeoutError::Starved`].
    pub(super) fn starved_text(lag: Duration, timeout: Duration) -> String {
        format!(
            "kubelet was stalled for {} ms of a timeout of {} ms",
            lag.as_millis(),
            timeout.as_millis()
        )
    }
}

/// Number of wake-ups during a timeout, to measure how late they are.
const SLICES: u32 = 4;

/// How long this process may delay work with this timeout before a timeout is its own fault.
pub(super) fn tolerance(timeout: Duration) -> Duration {
    timeout / SLICES
}

/// Runs `work` for at most `timeout`. Meanwhile the task wakes up at most [`SLICES`] times and sums the
/// delays of these wake-ups.
pub(super) async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = T>,
) -> Result<T, TimeoutError> {
    let mut work = pin!(work);
    let slice = (timeout / SLICES).max(Duration::from_millis(1));
    let deadline = clock::instant() + timeout;
    let mut lag = Duration::ZERO;
    loop {
        let wake = (clock::instant() + slice).min(deadline);
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = sleep_until(wake) => {}
        }
        let now = clock::instant();
        lag += now.saturating_duration_since(wake);
        if now >= deadline {
            return Err(if lag > tolerance(timeout) {
                TimeoutError::Starved(lag)
            } else {
                TimeoutError::TimedOut
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_times_out() {
        let started_at = clock::instant();
        assert_eq!(within(S, pending::<()>()).await, Err(TimeoutError::TimedOut));
        assert_eq!(clock::since(started_at), S);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_woken_late_blames_itself_and_not_the_peer() {
        let waiting = tokio::spawn(within(S, pending::<()>()));
        tokio::task::yield_now().await;
        tokio::time::advance(3 * S).await;
        let late = waiting.await.unwrap();
        assert!(matches!(late, Err(TimeoutError::Starved(lag)) if lag > S), "{late:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_even_when_it_is_seen_late() {
        let (answer, question) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn(within(S, question));
        tokio::task::yield_now().await;
        answer.send("yes").unwrap();
        tokio::time::advance(3 * S).await;
        assert_eq!(waiting.await.unwrap(), Ok(Ok("yes")));
    }
}
