//! Which clients a port serves: authentication and authorization.

use super::{Port, subresources};
use crate::server::auth::{AuthRejection, KubeletAuth, Peer};
use crate::server::connections::ConnectionSlot;
use crate::server::http::response::{Body, Request, text, with_connection_close};
use crate::server::http::websocket::is_upgrade;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use std::sync::Arc;

/// The clients that a port serves.
#[derive(Clone)]
pub(super) enum Access {
    /// All clients, unauthenticated.
    Open,
    /// Authenticated and authorized clients.
    Secured(Arc<KubeletAuth>),
    /// No clients; the text is the response.
    Refused(&'static str),
}

impl Access {
    /// Authenticates and authorizes the client, and removes its credentials from the request. The error is the response.
    pub(super) async fn check(
        &self,
        port: Port,
        request: &mut Request,
    ) -> Result<(), Box<Response<Body>>> {
        let auth = match self {
            Self::Open => return Ok(()),
            Self::Secured(auth) => auth,
            Self::Refused(why) => return Err(refused(StatusCode::FORBIDDEN, why)),
        };
        let peer = request.extensions().get::<Arc<Peer>>().cloned();
        let user = auth.authenticate(request.headers(), peer.as_deref()).await;
        let user = user.map_err(|rejection| rejected(&rejection))?;
        // Requests may be forwarded to the runtime, which must not receive the token.
        request.headers_mut().remove(header::AUTHORIZATION);
        let needed = subresources(port, request.uri().path());
        let upgrades = is_upgrade(request.headers());
        let slot = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
        let authorized = auth.authorize(&user, request.method(), upgrades, needed).await;
        authorized.map_err(|rejection| rejected(&rejection))?;
        // Anonymous users' connections stay subject to the limit of unauthenticated ones.
        if !user.is_anonymous()
            && let Some(slot) = slot
        {
            let busy = "too many requests are in progress; try again later\n";
            let marked = slot.mark_authenticated();
            marked.map_err(|_| refused(StatusCode::TOO_MANY_REQUESTS, busy))?;
        }
        Ok(())
    }
}

fn refused(status: StatusCode, why: &str) -> Box<Response<Body>> {
    Box::new(with_connection_close(text(status, why.into())))
}

/// The response to a request that is not authenticated or not authorized.
fn rejected(rejection: &AuthRejection) -> Box<Response<Body>> {
    let mut response = refused(rejection.status(), &(rejection.text() + "\n"));
    if *rejection == AuthRejection::RateLimited {
        let seconds = HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}
