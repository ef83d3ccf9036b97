//! The layers of the request path, from the outermost in: metrics, panics, authentication, authorization,
//! trace. Each one is a `tower` service around the next; the router is the innermost.

mod authentication;
mod authorization;
mod metrics;
mod panics;
mod trace;

pub(super) use authentication::{Access, Authentication};
pub(super) use authorization::AuthorizationLayer;
pub(super) use metrics::MetricsLayer;
pub(super) use panics::ContainPanics;
pub(super) use trace::Trace;

use super::{
    auth::User,
    response::{Body, Request},
    route_parts::RouteError,
    routes::{Port, Route, RouteEntry, route},
};
use futures::future::BoxFuture;
use hyper::Response;
use std::convert::Infallible;

/// A request with its entry in the table of routes.
pub(super) struct RoutedRequest {
    pub(super) request: Request,
    pub(super) port: Port,
    pub(super) found: Result<(&'static RouteEntry, Route), RouteError>,
    /// Set by the authentication, on ports that have one.
    pub(super) user: Option<User>,
}

impl RoutedRequest {
    pub(super) fn new(port: Port, request: Request) -> Self {
        let (method, uri) = (request.method(), request.uri());
        Self {
            found: route(port, method, uri.path(), uri.query()),
            port,
            user: None,
            request,
        }
    }

    /// The entry of the table, if the request has one.
    pub(super) fn entry(&self) -> Option<&'static RouteEntry> {
        self.found.as_ref().ok().map(|(entry, _)| *entry)
    }
}

/// What every layer returns. A refusal is a response too.
pub(super) type ResponseFuture = BoxFuture<'static, Result<Response<Body>, Infallible>>;

/// A service of routed requests that is always ready.
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
