//! Lets heavy calls through a few at a time; everything else passes untouched.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tower::{BoxError, Service, ServiceExt};

use crate::cri::limit::Limiter;
use crate::cri::rpc::{Lane, Rpc};

/// Admits calls lane by lane.
#[derive(Clone)]
pub struct Admission<S> {
    inner: S,
    start: Limiter,
    tear_down: Limiter,
}

impl<S> Admission<S> {
    pub(super) fn new(inner: S) -> Admission<S> {
        Admission {
            inner,
            start: Limiter::default(),
            tear_down: Limiter::default(),
        }
    }

    /// The limiter of a lane.
    pub(in crate::cri) fn lane(&self, lane: Lane) -> &Limiter {
        match lane {
            Lane::Start => &self.start,
            Lane::TearDown => &self.tear_down,
        }
    }
}

impl<S> Service<Request<Body>> for Admission<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let rpc = Rpc::from_path(request.uri().path());
        let call = self.inner.clone().oneshot(request);
        match rpc.and_then(|rpc| Some((rpc, rpc.lane()?))) {
            Some((rpc, lane)) => {
                let limiter = self.lane(lane).clone();
                Box::pin(async move { limiter.run(rpc, call, succeeded).await })
            }
            None => Box::pin(call),
        }
    }
}

/// A reply with content; an error's status stands in its headers.
fn succeeded(reply: &Result<Response<Body>, BoxError>) -> bool {
    reply
        .as_ref()
        .is_ok_and(|response| !response.headers().contains_key("grpc-status"))
}
