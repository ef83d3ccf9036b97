//! Answers that go on for as long as there is something to say: a log that is followed, or a long one that
//! is read slowly.
//!
//! Such an answer is not bound by the age of connections, and gives back the connection's place among those
//! that may be open: there are places of its own kind. It ends when all is said, or when its client has
//! taken nothing for too long.

use super::reply::BodyError;
use bytes::Bytes;
use futures::Stream;
use hyper::body::{Body, Frame};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Where an answer stands.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// There is nothing to say for now.
    Quiet,
    /// Something was handed out at that time, and nobody has come for more.
    Handed(Instant),
}

/// Goes with an answer to the connection that sends it.
#[derive(Clone)]
pub(super) struct Lasting {
    phase: watch::Receiver<Phase>,
    stall: Duration,
}

impl Lasting {
    /// Ends with the answer, or when its client has taken nothing for too long.
    pub(super) async fn over(mut self) {
        loop {
            let phase = *self.phase.borrow_and_update();
            let stalled = async {
                match phase {
                    Phase::Handed(at) if !self.stall.is_zero() => {
                        sleep_until(at + self.stall).await
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.phase.changed() => if changed.is_err() { return },
                () = stalled => return,
            }
        }
    }
}

/// The body of such an answer.
pub(super) struct LastingBody<S> {
    pieces: S,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    phase: watch::Sender<Phase>,
    _slot: OwnedSemaphorePermit,
}

impl<S> LastingBody<S> {
    /// A body of these pieces that holds `slot` for as long as it is there. When the server stops it breaks
    /// off, so that nobody takes what came for all there is. A client that takes nothing for as long as
    /// `stall` has had it; zero is no limit.
    pub(super) fn new(
        pieces: S,
        slot: OwnedSemaphorePermit,
        stopping: &CancellationToken,
        stall: Duration,
    ) -> (Self, Lasting) {
        let (sender, phase) = watch::channel(Phase::Quiet);
        let body = Self {
            pieces,
            stopping: Box::pin(stopping.clone().cancelled_owned()),
            phase: sender,
            _slot: slot,
        };
        (body, Lasting { phase, stall })
    }
}

impl<S, E> Body for LastingBody<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("the kubelet stops".into())));
        }
        let piece = Pin::new(&mut self.pieces).poll_next(context);
        self.phase.send_replace(match piece {
            Poll::Pending => Phase::Quiet,
            Poll::Ready(_) => Phase::Handed(Instant::now()),
        });
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt as _, stream};
    use http_body_util::BodyExt as _;
    use std::{io, sync::Arc};
    use tokio::sync::Semaphore;

    type Piece = io::Result<Bytes>;

    fn lasting<S: Stream<Item = Piece> + Unpin>(
        pieces: S,
        stopping: &CancellationToken,
    ) -> (LastingBody<S>, Lasting) {
        let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        LastingBody::new(pieces, slot, stopping, Duration::from_secs(100))
    }

    fn piece(text: &'static str) -> Piece {
        Ok(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_over_when_its_client_has_taken_nothing_for_too_long() {
        let pieces = stream::iter([piece("a"), piece("b"), piece("c")]);
        let (mut body, lasting) = lasting(pieces, &CancellationToken::new());
        let begun = Instant::now();
        let over = tokio::spawn(lasting.over());
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(90)).await;
            body.frame().await.unwrap().unwrap();
        }
        over.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 280);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_source_is_not_the_clients_fault() {
        let pieces = stream::iter([piece("a")]).chain(stream::pending());
        let (mut body, lasting) = lasting(pieces, &CancellationToken::new());
        let over = tokio::spawn(lasting.over());
        body.frame().await.unwrap().unwrap();
        assert!(body.frame().now_or_never().is_none(), "it waits for more");
        tokio::time::sleep(Duration::from_secs(100_000)).await;
        assert!(!over.is_finished());
        drop(body);
        over.await.unwrap();
    }

    #[tokio::test]
    async fn it_breaks_off_when_the_server_stops() {
        let stopping = CancellationToken::new();
        let pieces = stream::iter([piece("a")]).chain(stream::pending());
        let (mut body, _lasting) = lasting(pieces, &stopping);
        body.frame().await.unwrap().unwrap();
        stopping.cancel();
        assert!(body.frame().await.unwrap().is_err());
    }

    use futures::StreamExt as _;
}
