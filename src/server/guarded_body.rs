//! Values that live until a response has been sent.

use super::response::{Body, BodyError};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Response,
    body::{Frame, SizeHint},
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// Drops the value when the response has been sent or the client is gone.
pub(super) fn until_sent<T: Unpin + Send + 'static>(
    response: Response<Body>,
    value: T,
) -> Response<Body> {
    let value = |body| GuardedBody {
        body,
        _value: value,
    };
    response.map(|body| value(body).boxed_unsync())
}

/// A body with a value that lives as long. It has the size hint of the body within, from which responses are
/// framed.
struct GuardedBody<T> {
    body: Body,
    _value: T,
}

impl<T: Unpin> hyper::body::Body for GuardedBody<T> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
