//! The authorization layer.

use super::{Access, ResponseFuture, RoutedRequest, RoutedService, authentication::refused};
use crate::server::{
    auth::{AuthRefusal, KubeletAuth, Subresources, User},
    connections::ConnectionSlot,
    response::{Body, text, with_connection_close},
    routes::subresources,
};
use hyper::{Method, Response, StatusCode};
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};
use tower::Service;

/// Authorizes the user that the authentication layer found.
#[derive(Clone)]
pub(in crate::server) struct AuthorizationService<S> {
    auth: Option<KubeletAuth>,
    inner: S,
}

impl<S> AuthorizationService<S> {
    pub(in crate::server) fn new(access: &Access, inner: S) -> Self {
        let auth = match access {
            Access::Secured(auth) => Some(auth.clone()),
            Access::Open | Access::Refused(_) => None,
        };
        Self { auth, inner }
    }
}

impl<S: RoutedService> Service<RoutedRequest> for AuthorizationService<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, routed: RoutedRequest) -> ResponseFuture {
        let Some(auth) = self.auth.clone() else {
            return self.inner.call(routed);
        };
        let mut inner = self.inner.clone();
        Box::pin(async move {
            let request = &routed.request;
            let needed = subresources(routed.port, request.uri().path());
            let slot = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
            let (user, method) = (routed.user.as_ref(), request.method());
            match authorize(&auth, user, method, needed, slot).await {
                Ok(()) => inner.call(routed).await,
                Err(response) => Ok(*response),
            }
        })
    }
}

async fn authorize(
    auth: &KubeletAuth,
    user: Option<&User>,
    method: &Method,
    needed: Subresources,
    slot: Option<Arc<ConnectionSlot>>,
) -> Result<(), Box<Response<Body>>> {
    let refuse = |refusal| Box::new(refused(&refusal));
    let user = user.ok_or_else(|| refuse(AuthRefusal::Unauthenticated(None)))?;
    let authorized = auth.authorize(user, method, needed).await;
    authorized.map_err(refuse)?;
    // Anonymous users' connections stay subject to the limit of unauthenticated ones.
    if !user.is_anonymous()
        && let Some(slot) = slot
    {
        slot.mark_authenticated().map_err(|_| Box::new(busy()))?;
    }
    Ok(())
}

fn busy() -> Response<Body> {
    let why = "too many requests are in progress; try again later\n";
    with_connection_close(text(StatusCode::TOO_MANY_REQUESTS, why.into()))
}
