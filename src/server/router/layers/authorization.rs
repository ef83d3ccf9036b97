//! The authorization layer.

use super::{
    Access, RequestLayer, ResponseFuture, RoutedRequest, RoutedService, authentication::rejected,
};
use crate::server::auth::{AuthRejection, KubeletAuth, Subresources, User};
use crate::server::connections::ConnectionSlot;
use crate::server::http::response::{Body, text, with_connection_close};
use crate::server::http::websocket::is_upgrade;
use crate::server::router::subresources;
use hyper::{Method, Response, StatusCode};
use std::sync::Arc;

/// Authorizes the user that the authentication layer found.
#[derive(Clone)]
pub(in crate::server) struct AuthorizationLayer(pub(in crate::server) Access);

impl RequestLayer for AuthorizationLayer {
    fn call(&self, routed: RoutedRequest, inner: &mut impl RoutedService) -> ResponseFuture {
        let Access::Secured(auth) = self.0.clone() else {
            return inner.call(routed);
        };
        let mut inner = inner.clone();
        Box::pin(async move {
            let request = &routed.request;
            let needed = subresources(routed.port, request.uri().path());
            let slot = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
            // Not the request itself, whose body cannot be shared between threads.
            let (method, upgrades) = (request.method(), is_upgrade(request.headers()));
            let user = routed.user.as_ref();
            match authorize(&auth, user, method, upgrades, needed, slot).await {
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
    upgrades: bool,
    needed: Subresources,
    slot: Option<Arc<ConnectionSlot>>,
) -> Result<(), Box<Response<Body>>> {
    let reject = |rejection| Box::new(rejected(&rejection));
    let user = user.ok_or_else(|| reject(AuthRejection::Unauthenticated(None)))?;
    let authorized = auth.authorize(user, method, upgrades, needed).await;
    authorized.map_err(reject)?;
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
