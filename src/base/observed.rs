//! A stream that reports its reads and writes to an observer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Is notified of a stream's reads and writes, and dropped with it.
pub trait StreamObserver {
    /// Called after a read that returned at least one byte.
    fn read(&self) {}

    /// Called after each attempt to write, also a pending one.
    fn wrote(&self, _written: &Poll<io::Result<usize>>) {}

    /// Called after each attempt to flush, also a pending one.
    fn flushed(&self, _flushed: &Poll<io::Result<()>>) {}
}

/// A stream with an observer.
pub struct ObservedStream<S, O> {
    stream: S,
    observer: O,
}

impl<S, O> ObservedStream<S, O> {
    /// Reports reads and writes of `stream` to `observer`.
    pub fn new(stream: S, observer: O) -> Self {
        Self { stream, observer }
    }
}

impl<S: AsyncRead + Unpin, O: StreamObserver + Unpin> AsyncRead for ObservedStream<S, O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.observer.read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, O: StreamObserver + Unpin> AsyncWrite for ObservedStream<S, O> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.observer.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.observer.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.observer.flushed(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
