//! A request before the gate: it comes out with nothing in it that could let somebody else in, or not at all.

use super::{
    auth::{Gate, Peer, Refusal},
    connections::Place,
    response::{Body, closing, text},
    routes::{Port, subresources},
};
use hyper::{
    Request, Response, StatusCode,
    header::{self, HeaderValue},
};
use std::sync::Arc;

/// Lets a request through whose sender is known and may ask for this.
///
/// # Errors
/// The answer to all others.
pub(super) async fn admit<B>(
    gate: &Gate,
    port: Port,
    request: Request<B>,
) -> Result<Request<B>, Box<Response<Body>>> {
    let (mut head, body) = request.into_parts();
    let peer = head.extensions.get::<Arc<Peer>>().cloned();
    let needed = subresources(port, head.uri.path());
    let admitted = gate.admit(&head.method, &head.headers, peer.as_deref(), needed);
    match admitted.await {
        Ok(user) => {
            // It is for nobody else, and requests go on to runtimes.
            head.headers.remove(header::AUTHORIZATION);
            // Who is anonymous could be anybody, and keeps to the places of those.
            if !user.is_anonymous()
                && let Some(place) = head.extensions.get::<Arc<Place>>()
            {
                place.authenticated().map_err(|_| Box::new(busy()))?;
            }
            Ok(Request::from_parts(head, body))
        }
        Err(refusal) => {
            let mut answer = text(refusal.status(), refusal.text() + "\n");
            if refusal == Refusal::TooMany {
                let seconds = HeaderValue::from_static("1");
                answer.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
            Err(Box::new(closing(answer)))
        }
    }
}

fn busy() -> Response<Body> {
    let why = "too many requests are in progress; try again later\n";
    closing(text(StatusCode::TOO_MANY_REQUESTS, why.into()))
}
