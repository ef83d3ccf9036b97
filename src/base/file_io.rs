//! Short blocking work on the kubelet's own files, with limited concurrency; the rule for missing files.

use super::{clock, spawn_blocking};
use std::io;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, block_in_place};

/// Concurrency limit. The work takes microseconds, so more threads would only cost memory; without a limit, hundreds
/// of pods that start together would create hundreds of threads.
const MAX_CONCURRENT: usize = 4;

static PERMITS: Semaphore = Semaphore::const_new(MAX_CONCURRENT);

/// Runs blocking work that only accesses the kubelet's own directories and small text files of the node, which are on
/// local disks. Work that may hang, such as on a user's volume, must not run here, because it would block all other
/// callers.
///
/// On a multi-thread runtime the work runs on the caller's thread, whose other tasks move to another one
/// (`block_in_place`): handing it to a blocking thread and back takes several times as long as the work, and delays a
/// pod's start twice.
///
/// # Errors
/// The work panicked on a blocking thread, or the runtime is shutting down. On a multi-thread runtime a panic unwinds
/// through the caller instead.
pub async fn run_file_io<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if clock::is_simulated() {
        return spawn_blocking(work).await;
    }
    // The semaphore is never closed; if it were, the work would run without a permit.
    let _permit = PERMITS.acquire().await.ok();
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => Ok(block_in_place(work)),
        _ => spawn_blocking(work).await,
    }
}

/// `None` for [`io::ErrorKind::NotFound`].
///
/// # Errors
/// All others.
pub fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_few_at_a_time_and_all_in_the_end() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = (0..40).map(|i| {
            let (running, most) = (running.clone(), most.clone());
            run_file_io(move || {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                i
            })
        });
        let done = futures::future::join_all(work).await;
        let done: Vec<usize> = done.into_iter().map(Result::unwrap).collect();
        assert_eq!(done, (0..40).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= MAX_CONCURRENT);
    }
}
