//! The panic layer: a panic of a handler results in a 500 response.

use super::{ResponseFuture, RoutedRequest, RoutedService};
use crate::{
    base::panics::{PanicScope, contain},
    server::response::{Body, text},
};
use hyper::{Response, StatusCode};
use std::{
    convert::Infallible,
    task::{Context, Poll},
};
use tower::Service;

/// Contains panics of the inner layers: the client gets a 500, and the connection stays open.
#[derive(Clone)]
pub(in crate::server) struct CatchPanicService<S> {
    inner: S,
}

impl<S> CatchPanicService<S> {
    pub(in crate::server) fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S: RoutedService> Service<RoutedRequest> for CatchPanicService<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, routed: RoutedRequest) -> ResponseFuture {
        let mut inner = self.inner.clone();
        Box::pin(async move {
            // `call` is inside the future, so that its panics are contained too.
            let response = contain(PanicScope::HttpRequest, async { inner.call(routed).await });
            response.await.unwrap_or_else(|_| {
                let body = "internal error, see the log\n".to_owned();
                Ok(text(StatusCode::INTERNAL_SERVER_ERROR, body))
            })
        })
    }
}
