//! Copies bytes in both directions until both sides have closed or the idle timeout expires.

use crate::base::clock::{self, Instant};
use crate::base::{ObservedStream, StreamObserver};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Buffer size per direction, in bytes.
const BUFFER: usize = 32 * 1024;
/// How long a stream may continue at shutdown, so that data in flight arrives.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(super) enum SpliceEnd {
    /// Both sides closed, after this many bytes to the runtime and from it.
    #[error("closed after {0} bytes to the runtime and {1} from it")]
    Closed(u64, u64),
    #[error("connection failed: {0}")]
    Broken(io::Error),
    /// The idle timeout, during which no side sent anything.
    #[error("idle for {0:?}")]
    Idle(Duration),
    #[error("the kubelet is stopping")]
    Stopped,
}

/// Copies until both sides have closed. The end of one direction is forwarded, and the other direction may continue.
/// A side is not read faster than the other one accepts the data. `idle` of zero means no timeout.
pub(super) async fn splice<C, R>(
    client: C,
    mut runtime: R,
    idle: Duration,
    shutdown: CancellationToken,
) -> SpliceEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let activity = Activity::now();
    // Observes the bytes of both directions.
    let mut client = ObservedStream::new(client, activity.clone());
    let copied = copy_bidirectional_with_sizes(&mut client, &mut runtime, BUFFER, BUFFER);
    let stopped = async {
        shutdown.cancelled().await;
        sleep(LAST_WORDS).await;
    };
    tokio::select! {
        copied = copied => match copied {
            Ok((sent, received)) => SpliceEnd::Closed(sent, received),
            Err(error) => SpliceEnd::Broken(error),
        },
        () = activity.quiet_for(idle) => SpliceEnd::Idle(idle),
        () = stopped => SpliceEnd::Stopped,
    }
}

/// The time of the last activity.
#[derive(Clone)]
struct Activity {
    start: Instant,
    /// In milliseconds after `start`.
    last: Arc<AtomicU64>,
}

impl Activity {
    fn now() -> Self {
        Self { start: clock::instant(), last: Arc::default() }
    }

    fn happened(&self) {
        let since = u64::try_from(clock::since(self.start).as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    /// Waits until there was no activity for `idle`; forever if that is zero.
    async fn quiet_for(&self, idle: Duration) {
        if idle.is_zero() {
            std::future::pending().await
        }
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = self.start + last + idle;
            if until <= clock::instant() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl StreamObserver for Activity {
    fn read(&self) {
        self.happened();
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.happened();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A client and a runtime that are spliced together.
    fn spliced(
        idle: Duration,
        shutdown: &CancellationToken,
    ) -> (DuplexStream, DuplexStream, JoinHandle<SpliceEnd>) {
        let (client, ours) = duplex(1024);
        let (theirs, runtime) = duplex(1024);
        let task = tokio::spawn(splice(ours, theirs, idle, shutdown.clone()));
        (client, runtime, task)
    }

    #[tokio::test]
    async fn each_side_gets_every_byte_and_the_end_of_the_other_and_may_still_send() {
        let (mut client, mut runtime, task) = spliced(HOUR, &CancellationToken::new());
        let question: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        let sent = question.clone();
        let asking = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut got = Vec::new();
        runtime.read_to_end(&mut got).await.unwrap();
        assert!(got == question, "{} bytes of {}", got.len(), question.len());
        runtime.write_all(b"and all that").await.unwrap();
        drop(runtime);
        assert_eq!(asking.await.unwrap(), b"and all that");
        let end = task.await.unwrap();
        assert!(matches!(end, SpliceEnd::Closed(300_000, 12)), "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_read_only_as_the_other_side_takes_them() {
        let (mut client, runtime, _task) = spliced(HOUR, &CancellationToken::new());
        let mut taken = 0;
        // Far more than fits into all buffers in between.
        while let Ok(written) = timeout(Duration::from_secs(60), client.write(&[0; 1024])).await {
            taken += written.unwrap();
            assert!(taken < 100_000, "it is held somewhere");
        }
        assert!(taken >= BUFFER, "{taken}");
        drop(runtime);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_is_closed() {
        let idle = Duration::from_secs(100);
        let (mut client, mut runtime, task) = spliced(idle, &CancellationToken::new());
        let started_at = clock::instant();
        for round in 0..4 {
            sleep(Duration::from_secs(90)).await;
            let (from, to) = match round % 2 {
                0 => (&mut client, &mut runtime),
                _ => (&mut runtime, &mut client),
            };
            from.write_all(b"x").await.unwrap();
            assert_eq!(to.read_u8().await.unwrap(), b'x');
        }
        let end = task.await.unwrap();
        assert!(matches!(end, SpliceEnd::Idle(_)), "{end:?}");
        let lasted = clock::since(started_at);
        assert!(lasted >= Duration::from_secs(460) && lasted < Duration::from_secs(465));
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(runtime.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_limit_of_zero_is_no_limit() {
        let (mut client, mut runtime, task) = spliced(Duration::ZERO, &CancellationToken::new());
        sleep(HOUR * 24 * 365).await;
        client.write_all(b"still").await.unwrap();
        let mut got = [0; 5];
        runtime.read_exact(&mut got).await.unwrap();
        assert!(!task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn at_shutdown_bytes_in_flight_still_arrive() {
        let shutdown = CancellationToken::new();
        let (mut client, mut runtime, task) = spliced(HOUR, &shutdown);
        shutdown.cancel();
        runtime.write_all(b"bye").await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"bye");
        assert!(matches!(task.await.unwrap(), SpliceEnd::Stopped));
    }
}
