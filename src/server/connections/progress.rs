//! The progress of one connection, which determines its timeout.

use super::state::ConnectionLimits;
use crate::base::clock::{self, Instant};
use crate::base::{StreamObserver, wait_until};
use std::io;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPhase {
    /// Between two requests, since this instant.
    Idle(Instant),
    /// The head of a request is being read, since this instant.
    Head(Instant),
    /// A request is in progress; its handler has its own timeouts.
    Request,
}

#[derive(Clone, Copy, Debug)]
struct ConnectionStatus {
    phase: RequestPhase,
    /// Since when a write is blocked because the client does not read.
    blocked: Option<Instant>,
    /// Timeout of a blocked write; zero means none.
    write_timeout: Duration,
}

impl ConnectionStatus {
    /// When the connection times out if nothing happens.
    fn deadline(&self, limits: &ConnectionLimits) -> Option<Instant> {
        match (self.blocked, self.phase) {
            (Some(since), _) => (!self.write_timeout.is_zero()).then(|| since + self.write_timeout),
            (None, RequestPhase::Idle(since)) => Some(since + limits.idle_timeout),
            (None, RequestPhase::Head(since)) => Some(since + limits.head_timeout),
            (None, RequestPhase::Request) => None,
        }
    }
}

/// The progress of one connection; clones share it.
#[derive(Clone)]
pub(in crate::server) struct ConnectionProgress {
    status: watch::Sender<ConnectionStatus>,
    limits: ConnectionLimits,
}

impl ConnectionProgress {
    /// The progress of a new connection, which has to send the head of its first request.
    pub(in crate::server) fn new(limits: ConnectionLimits) -> Self {
        let status = ConnectionStatus {
            phase: RequestPhase::Head(clock::instant()),
            blocked: None,
            write_timeout: limits.write_timeout,
        };
        Self { status: watch::Sender::new(status), limits }
    }

    pub(in crate::server) fn begin_request(&self) {
        self.status.send_modify(|status| {
            status.phase = RequestPhase::Request;
            status.write_timeout = self.limits.write_timeout;
        });
    }

    /// Sets the timeout of blocked writes for the current response; zero means none.
    pub(in crate::server) fn set_write_timeout(&self, timeout: Duration) {
        self.status.send_modify(|status| status.write_timeout = timeout);
    }

    /// The response was sent or dropped.
    pub(in crate::server) fn end_request(&self) {
        let idle = RequestPhase::Idle(clock::instant());
        self.status.send_modify(|status| status.phase = idle);
    }

    /// Waits until the connection has timed out.
    pub(in crate::server) async fn timed_out(&self) {
        let mut changes = self.status.subscribe();
        loop {
            let deadline = changes.borrow_and_update().deadline(&self.limits);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = wait_until(deadline) => return,
            }
        }
    }

    /// Records whether a write or flush was blocked.
    fn record_blocked<T>(&self, poll: &Poll<io::Result<T>>) {
        self.status.send_if_modified(|status| {
            let changes = status.blocked.is_some() == poll.is_ready();
            if changes {
                status.blocked = poll.is_pending().then(clock::instant);
            }
            changes
        });
    }
}

impl StreamObserver for ConnectionProgress {
    fn read(&self) {
        self.status.send_if_modified(|status| {
            let begins = matches!(status.phase, RequestPhase::Idle(_));
            if begins {
                status.phase = RequestPhase::Head(clock::instant());
            }
            begins
        });
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        self.record_blocked(written);
    }

    fn flushed(&self, flushed: &Poll<io::Result<()>>) {
        self.record_blocked(flushed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ObservedStream, clock};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::{sleep, timeout};

    /// When a connection is overdue, in seconds after its start; `None` when not within a day.
    async fn overdue(progress: &ConnectionProgress, start: Instant) -> Option<u64> {
        let day = Duration::from_secs(86_400);
        let overdue = timeout(day, progress.timed_out()).await;
        overdue.ok().map(|()| clock::since(start).as_secs())
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn progress() -> ConnectionProgress {
        ConnectionProgress::new(ConnectionLimits {
            head_timeout: seconds(10),
            idle_timeout: seconds(90),
            write_timeout: seconds(60),
            ..ConnectionLimits::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_a_short_deadline_and_an_idle_connection_a_long_one() {
        let (start, progress) = (clock::instant(), progress());
        assert_eq!(overdue(&progress, start).await, Some(10));
        progress.begin_request();
        assert_eq!(overdue(&progress, start).await, None);
        let start = clock::instant();
        progress.end_request();
        assert_eq!(overdue(&progress, start).await, Some(90));
        // From its first byte on, however many follow.
        let (mut client, ours) = duplex(100);
        let mut ours = ObservedStream::new(ours, progress.clone());
        let start = clock::instant();
        progress.end_request();
        let dribbling = async {
            loop {
                sleep(seconds(4)).await;
                client.write_all(b"G").await.unwrap();
                ours.read_u8().await.unwrap();
            }
        };
        let overdue = tokio::select! {
            overdue = overdue(&progress, start) => overdue,
            () = dribbling => None,
        };
        assert_eq!(overdue, Some(14));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_now_and_then_has_no_deadline() {
        let progress = progress();
        let (mut client, ours) = duplex(10);
        let mut ours = ObservedStream::new(ours, progress.clone());
        progress.begin_request();
        let writing = tokio::spawn(async move { ours.write_all(&[7; 1000]).await });
        let start = clock::instant();
        let taking = async {
            let mut taken = [0; 10];
            for _ in 0..20 {
                sleep(seconds(50)).await;
                client.read_exact(&mut taken).await.unwrap();
            }
        };
        let (found, ()) = futures::future::join(overdue(&progress, start), taking).await;
        assert_eq!(found, Some(20 * 50 + 60));
        writing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_sets_how_long_its_client_may_stall() {
        let progress = progress();
        let (_client, ours) = duplex(10);
        let mut ours = ObservedStream::new(ours, progress.clone());
        progress.begin_request();
        progress.set_write_timeout(seconds(3600));
        let start = clock::instant();
        let writing = tokio::spawn(async move { ours.write_all(&[7; 1000]).await });
        assert_eq!(overdue(&progress, start).await, Some(3600));
        progress.set_write_timeout(Duration::ZERO);
        assert_eq!(overdue(&progress, start).await, None);
        writing.abort();
    }
}
