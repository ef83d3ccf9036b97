//! The request handling of one port: its layers and its dispatcher.

use super::{
    Port, RouteGroup,
    dispatcher::{Dispatcher, DispatcherState, RouteHandlers},
    layers::{
        Access, AuthenticationLayer, AuthorizationLayer, CatchPanicLayer, MetricsLayer,
        ResponseFuture, RoutedRequest, TraceLayer, within,
    },
    metrics::HttpMetrics,
};
use crate::base::otel::Tracer;
use crate::server::auth::KubeletAuth;
use crate::server::handlers::health::HealthChecks;
use crate::server::http::response::{Body, BodyError, Request};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Response;
use std::{convert::Infallible, sync::Arc};
use tokio_util::sync::CancellationToken;
use tower::{Service as _, ServiceBuilder, util::BoxCloneSyncService};

/// Handles the requests of one connection; always ready.
#[derive(Clone)]
pub(in crate::server) struct RequestService(
    BoxCloneSyncService<Request, Response<Body>, Infallible>,
);

impl RequestService {
    pub(in crate::server) fn call<B>(&self, request: hyper::Request<B>) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        self.0.clone().call(request)
    }
}

/// Handles the requests of one port: its layers and its dispatcher. Cheap to clone.
#[derive(Clone)]
pub struct PortHandler {
    port: Port,
    access: Access,
    tracer: Tracer,
    metrics: Option<HttpMetrics>,
    state: Arc<DispatcherState>,
}

impl PortHandler {
    /// The handler of the health port.
    pub fn health(checks: HealthChecks) -> Self {
        let state = DispatcherState { checks, route_handlers: None, disabled: Vec::new() };
        Self {
            port: Port::Health,
            access: Access::Open,
            tracer: Tracer::disabled(),
            metrics: None,
            state: Arc::new(state),
        }
    }

    /// The unauthenticated handler of the read-only port; routes of `disabled` are rejected. [`Self::secured`] and
    /// [`Self::local`] make the handlers of the main port and the local socket from it.
    pub fn read_only(
        checks: HealthChecks,
        route_handlers: RouteHandlers,
        disabled: Vec<RouteGroup>,
    ) -> Self {
        let metrics = route_handlers.http_metrics.clone();
        let state = DispatcherState { checks, route_handlers: Some(route_handlers), disabled };
        Self {
            port: Port::ReadOnly,
            access: Access::Open,
            tracer: Tracer::disabled(),
            metrics,
            state: Arc::new(state),
        }
    }

    /// Adds a span for each request.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// The handler of the local socket, which serves every client that can connect to it.
    #[must_use]
    pub fn local(&self) -> Self {
        Self { port: Port::Local, access: Access::Open, ..self.clone() }
    }

    /// The handler of the main port, for authenticated and authorized clients.
    #[must_use]
    pub fn secured(&self, auth: KubeletAuth) -> Self {
        Self { port: Port::Main, access: Access::Secured(Arc::new(auth)), ..self.clone() }
    }

    /// A handler that rejects every request, for clients of the local socket in other namespaces.
    #[must_use]
    pub(in crate::server) fn refusing(&self) -> Self {
        let why =
            "403 only processes in the kubelet's mount and pid namespaces may use this socket\n";
        Self { access: Access::Refused(why), ..self.clone() }
    }

    /// Maximum size of a request's head in bytes. Larger on ports with exec, whose query contains the command.
    pub(in crate::server) fn max_head_size(&self) -> usize {
        match self.port {
            Port::Health | Port::ReadOnly => 16 * 1024,
            Port::Main | Port::Local => 96 * 1024,
        }
    }

    /// Builds the layers around the dispatcher. When `shutdown` is cancelled, requests that wait for a change are
    /// answered immediately.
    pub(in crate::server) fn service(&self, shutdown: &CancellationToken) -> RequestService {
        let port = self.port;
        let stack = ServiceBuilder::new()
            .map_request(move |request| RoutedRequest::new(port, request))
            .layer_fn(within(MetricsLayer(self.metrics.clone())))
            .layer_fn(within(CatchPanicLayer))
            .layer_fn(within(AuthenticationLayer(self.access.clone())))
            .layer_fn(within(AuthorizationLayer(self.access.clone())))
            .layer_fn(within(TraceLayer(self.tracer.clone())))
            .service(Dispatcher::new(self.state.clone(), shutdown.clone()));
        RequestService(BoxCloneSyncService::new(stack))
    }
}
