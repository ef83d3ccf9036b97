//! Connects to the Unix socket. After a failure, retries are delayed with exponential back-off, and calls during the
//! delay fail immediately with the last error instead of queueing.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tower::Service;

use crate::base::clock::{self, Instant};
use crate::cri::endpoint::RuntimeEndpoint;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The socket could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectFailure {
    path: PathBuf,
    kind: io::ErrorKind,
    text: String,
}

impl ConnectFailure {
    /// The kind of error: `NotFound`, `PermissionDenied`, `ConnectionRefused`, `TimedOut`, …
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot connect to unix://{}: {}", self.path.display(), self.text)
    }
}

impl std::error::Error for ConnectFailure {}

#[derive(Clone)]
pub(super) struct UnixConnector {
    endpoint: RuntimeEndpoint,
    back_off: Arc<Mutex<ConnectBackOff>>,
}

impl UnixConnector {
    pub(super) fn new(endpoint: RuntimeEndpoint) -> UnixConnector {
        UnixConnector { endpoint, back_off: Arc::default() }
    }

    async fn connect(self) -> Result<TokioIo<UnixStream>, ConnectFailure> {
        if let Some(failure) = self.back_off.lock().error_during_delay(clock::instant()) {
            return Err(failure);
        }
        let path = self.endpoint.path();
        let result = match timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let mut back_off = self.back_off.lock();
        match result {
            Ok(stream) => {
                *back_off = ConnectBackOff::default();
                Ok(TokioIo::new(stream))
            }
            Err(error) => {
                let failure = ConnectFailure {
                    path: path.to_owned(),
                    kind: error.kind(),
                    text: error.to_string(),
                };
                back_off.failed(failure.clone(), clock::instant());
                Err(failure)
            }
        }
    }
}

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = ConnectFailure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// The back-off of connection attempts.
#[derive(Default)]
struct ConnectBackOff {
    wait: Duration,
    last: Option<(ConnectFailure, Instant)>,
}

impl ConnectBackOff {
    fn error_during_delay(&self, now: Instant) -> Option<ConnectFailure> {
        self.last.as_ref().filter(|(_, until)| now < *until).map(|(failure, _)| failure.clone())
    }

    fn failed(&mut self, failure: ConnectFailure, now: Instant) {
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, MAX_WAIT);
        self.last = Some((failure, now + self.wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_tenth_of_a_second_to_three_seconds_and_start_over_after_a_success() {
        let failure = ConnectFailure {
            path: "/run/x".into(),
            kind: io::ErrorKind::NotFound,
            text: "gone".into(),
        };
        let mut now = clock::instant();
        let mut back_off = ConnectBackOff::default();
        for expected in [100, 200, 400, 800, 1600, 3000, 3000] {
            assert!(back_off.error_during_delay(now).is_none());
            back_off.failed(failure.clone(), now);
            let wait = Duration::from_millis(expected);
            assert!(back_off.error_during_delay(now + wait - Duration::from_millis(1)).is_some());
            now += wait;
        }
        back_off = ConnectBackOff::default();
        back_off.failed(failure, now);
        assert!(back_off.error_during_delay(now + FIRST_WAIT).is_none());
    }
}
