//! Accepts the connections of a listener, and limits the requests of agents on the node.

use super::clock;
use super::path_authority::PathAuthority;
use super::rate::TokenBucket;
use futures::stream::{self, Stream};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::time::sleep;
use tonic::Status;

/// The rate limit of the requests of agents to one gRPC server, with upstream's values.
pub struct RequestRate(Mutex<TokenBucket>);

impl Default for RequestRate {
    fn default() -> Self {
        Self(Mutex::new(TokenBucket::new(Self::QPS, Self::BURST)))
    }
}

impl RequestRate {
    /// Requests per second.
    const QPS: f64 = 100.0;
    /// Requests at once.
    pub const BURST: u32 = 10;

    /// Admits a request if the rate limit allows it. The error text is upstream's.
    ///
    /// # Errors
    /// `ResourceExhausted`: there were too many.
    pub fn admit(&self) -> Result<(), Status> {
        let taken = self.0.lock().take(clock::instant(), Duration::ZERO);
        taken.map(drop).ok_or_else(|| Status::resource_exhausted("rejected by rate limit"))
    }
}

/// Pause after a failed accept, which is mostly caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A stream of accepted connections. Errors are logged and do not end it.
pub fn connections(
    name: &'static str,
    listener: UnixListener,
) -> impl Stream<Item = io::Result<PathAuthority>> {
    let listener = Arc::new(listener);
    accepted(name, move || {
        let listener = listener.clone();
        async move {
            let (stream, _) = listener.accept().await?;
            Ok(PathAuthority::new(stream))
        }
    })
}

fn accepted<T, F: Future<Output = io::Result<T>>>(
    name: &'static str,
    accept: impl Fn() -> F,
) -> impl Stream<Item = io::Result<T>> {
    stream::unfold(accept, move |accept| async move {
        loop {
            match accept().await {
                Ok(stream) => return Some((Ok(stream), accept)),
                Err(error) => {
                    tracing::warn!(name, err = %error, "Accepting a connection failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;
    use std::cell::Cell;
    use std::pin::pin;

    #[tokio::test(start_paused = true)]
    async fn after_an_error_there_is_a_pause_and_then_the_next_connection() {
        let calls = Cell::new(0);
        let accept = || {
            calls.set(calls.get() + 1);
            let failed = calls.get() % 4 != 0;
            async move { if failed { Err(io::Error::other("too many open files")) } else { Ok(()) } }
        };
        let began = clock::instant();
        let mut all = pin!(accepted("test", accept));
        assert!(matches!(all.next().await, Some(Ok(()))));
        assert_eq!(clock::since(began), ACCEPT_PAUSE * 3);
        assert!(matches!(all.next().await, Some(Ok(()))));
        assert_eq!((clock::since(began), calls.get()), (ACCEPT_PAUSE * 6, 8));
    }
}
