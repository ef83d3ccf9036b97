//! An HTTP/1.1 client: one request per connection. The caller connects, and sets the timeout.

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncWrite};

/// Options of requests and responses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http1 {
    /// Writes header names capitalized, as Go does.
    pub title_case: bool,
    /// Maximum size of a response's head in bytes; `None` for hyper's default.
    pub max_head: Option<usize>,
}

impl Http1 {
    /// Sends the request, and returns the result of `read` for the response. No task is started: the connection is
    /// closed when the future ends, unless `read` takes it by an upgrade.
    ///
    /// # Errors
    /// Errors of the connection and of `read`.
    pub async fn exchange<B, T, E>(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<B>,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, E>,
    ) -> Result<T, E>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
        E: From<hyper::Error>,
    {
        let mut builder = Builder::new();
        builder.title_case_headers(self.title_case);
        if let Some(bytes) = self.max_head {
            builder.max_buf_size(bytes);
        }
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let mut connection = pin!(connection.with_upgrades());
        let mut exchange = pin!(async move { read(sender.send_request(request).await?).await });
        let mut connected = true;
        loop {
            tokio::select! {
                biased;
                result = &mut exchange => return result,
                // Errors of the connection are also returned by the exchange.
                _ = &mut connection, if connected => connected = false,
            }
        }
    }
}
