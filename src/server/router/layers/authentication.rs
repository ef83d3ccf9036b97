//! The authentication layer.

use super::{RequestLayer, ResponseFuture, RoutedRequest, RoutedService};
use crate::server::auth::{AuthRejection, KubeletAuth, Peer};
use crate::server::http::response::{Body, text, with_connection_close};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
};
use std::{future::ready, sync::Arc};

/// The clients that a port serves.
#[derive(Clone)]
pub(in crate::server) enum Access {
    /// All clients, unauthenticated.
    Open,
    /// Authenticated and authorized clients.
    Secured(Arc<KubeletAuth>),
    /// No clients; the text is the response.
    Refused(&'static str),
}

/// Authenticates the client, and removes its credentials from the request.
#[derive(Clone)]
pub(in crate::server) struct AuthenticationLayer(pub(in crate::server) Access);

impl RequestLayer for AuthenticationLayer {
    fn call(&self, mut routed: RoutedRequest, inner: &mut impl RoutedService) -> ResponseFuture {
        let auth = match &self.0 {
            Access::Open => return inner.call(routed),
            Access::Refused(why) => {
                let rejected = with_connection_close(text(StatusCode::FORBIDDEN, (*why).into()));
                return Box::pin(ready(Ok(rejected)));
            }
            Access::Secured(auth) => auth.clone(),
        };
        let mut inner = inner.clone();
        Box::pin(async move {
            let request = &mut routed.request;
            let peer = request.extensions().get::<Arc<Peer>>().cloned();
            let user = auth.authenticate(request.headers(), peer.as_deref()).await;
            match user {
                Ok(user) => routed.user = Some(user),
                Err(rejection) => return Ok(rejected(&rejection)),
            }
            // Requests may be forwarded to the runtime, which must not receive the token.
            request.headers_mut().remove(header::AUTHORIZATION);
            inner.call(routed).await
        })
    }
}

/// The response to a request that is not authenticated or not authorized.
pub(super) fn rejected(rejection: &AuthRejection) -> Response<Body> {
    let mut response = text(rejection.status(), rejection.text() + "\n");
    if *rejection == AuthRejection::RateLimited {
        let seconds = HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    with_connection_close(response)
}
