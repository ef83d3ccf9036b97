//! A client of HTTP/1.1: one request over a connection of its own. The caller connects, and sets the deadline.

use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    client::conn::http1::Builder,
};
use hyper_util::rt::TokioIo;
use std::{error::Error, pin::pin};
use tokio::io::{AsyncRead, AsyncWrite};

/// How requests are written, and how much of a response is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http1 {
    /// Header names begin with capitals, as Go writes them.
    pub title_case: bool,
    /// Largest head of a response, bytes; hyper's limit without one.
    pub max_head: Option<usize>,
}

impl Http1 {
    /// Sends the request, and returns what `read` makes of the response. Nothing runs beside this future: the
    /// connection is closed when it ends, unless `read` takes it by an upgrade.
    ///
    /// # Errors
    /// Those of the connection and of `read`.
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
                // An error of the connection reaches the exchange as well.
                _ = &mut connection, if connected => connected = false,
            }
        }
    }
}
