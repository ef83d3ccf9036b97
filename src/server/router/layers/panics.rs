//! The panic layer: a panic of a handler results in a 500 response.

use super::{RequestLayer, ResponseFuture, RoutedRequest, RoutedService};
use crate::base::panics::{PanicScope, catch_panic};
use crate::server::http::response::text;
use hyper::StatusCode;

/// Catches panics of the inner layers: the client gets a 500, and the connection stays open.
#[derive(Clone)]
pub(in crate::server) struct CatchPanicLayer;

impl RequestLayer for CatchPanicLayer {
    fn call(&self, routed: RoutedRequest, inner: &mut impl RoutedService) -> ResponseFuture {
        let mut inner = inner.clone();
        Box::pin(async move {
            // `call` is inside the future, so that its panics are caught too.
            let response = catch_panic(PanicScope::HttpRequest, async { inner.call(routed).await });
            response.await.unwrap_or_else(|_| {
                let body = "internal error, see the log\n".to_owned();
                Ok(text(StatusCode::INTERNAL_SERVER_ERROR, body))
            })
        })
    }
}
