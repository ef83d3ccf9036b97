//! The layers of request handling. The route is found first ([`RoutedRequest::new`]); then follow, outermost first:
//! metrics, panics, authentication, authorization, trace. Each one is a `tower` service that wraps the next; the
//! dispatcher is the innermost.

mod authentication;
mod authorization;
mod metrics;
mod panics;
mod trace;

pub(super) use authentication::{Access, AuthenticationLayer};
pub(super) use authorization::AuthorizationLayer;
pub(super) use metrics::MetricsLayer;
pub(super) use panics::CatchPanicLayer;
pub(super) use trace::TraceLayer;

use super::{Port, Route, RouteEntry, route};
use crate::server::auth::User;
use crate::server::http::params::RouteError;
use crate::server::http::response::{Body, Request};
use futures::future::BoxFuture;
use hyper::Response;
use std::{
    convert::Infallible,
    task::{Context, Poll},
};

/// A request with its entry in the route table.
pub(super) struct RoutedRequest {
    pub(super) request: Request,
    pub(super) port: Port,
    pub(super) route: Result<(&'static RouteEntry, Route), RouteError>,
    /// The user; set by the authentication layer on ports that have one.
    pub(super) user: Option<User>,
}

impl RoutedRequest {
    pub(super) fn new(port: Port, request: Request) -> Self {
        let (method, uri) = (request.method(), request.uri());
        Self { route: route(port, method, uri.path(), uri.query()), port, user: None, request }
    }

    /// The entry in the route table, if there is one.
    pub(super) fn entry(&self) -> Option<&'static RouteEntry> {
        self.route.as_ref().ok().map(|(entry, _)| *entry)
    }
}

/// The result of every layer. Rejections are responses too.
pub(super) type ResponseFuture = BoxFuture<'static, Result<Response<Body>, Infallible>>;

/// A `tower` service of routed requests that is always ready.
pub(super) trait RoutedService:
    tower::Service<
        RoutedRequest,
        Response = Response<Body>,
        Error = Infallible,
        Future = ResponseFuture,
    > + Clone
    + Send
    + 'static
{
}

impl<S> RoutedService for S where
    S: tower::Service<
            RoutedRequest,
            Response = Response<Body>,
            Error = Infallible,
            Future = ResponseFuture,
        > + Clone
        + Send
        + 'static
{
}

/// What one layer does with a request; `inner` is the next layer.
pub(super) trait RequestLayer: Clone + Send + 'static {
    fn call(&self, routed: RoutedRequest, inner: &mut impl RoutedService) -> ResponseFuture;
}

/// A service inside a layer.
#[derive(Clone)]
pub(super) struct LayeredService<L, S> {
    layer: L,
    inner: S,
}

/// Puts a service inside a layer, for `tower::ServiceBuilder::layer_fn`.
pub(super) fn within<L: RequestLayer, S>(layer: L) -> impl Fn(S) -> LayeredService<L, S> + Clone {
    move |inner| LayeredService { layer: layer.clone(), inner }
}

impl<L: RequestLayer, S: RoutedService> tower::Service<RoutedRequest> for LayeredService<L, S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, routed: RoutedRequest) -> ResponseFuture {
        self.layer.call(routed, &mut self.inner)
    }
}
