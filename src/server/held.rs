//! What lasts as long as an answer is being sent.

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

/// Drops `held` when the answer has been sent, or nobody takes it any more.
pub(super) fn until_sent<T: Unpin + Send + 'static>(
    response: Response<Body>,
    held: T,
) -> Response<Body> {
    let held = |body| Held { body, _held: held };
    response.map(|body| held(body).boxed_unsync())
}

/// A body that holds something until it is gone. It says as much of its length as the one within, by
/// which answers are framed.
struct Held<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> hyper::body::Body for Held<T> {
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
