//! The request handling of one port: what is done around the dispatcher, and for whom.

use super::access::Access;
use super::dispatcher::{Dispatcher, RouteHandlers};
use super::metrics::HttpMetrics;
use super::{Port, RouteGroup, route, trace};
use crate::base::otel::Tracer;
use crate::base::panics::{PanicScope, catch_panic};
use crate::server::auth::KubeletAuth;
use crate::server::handlers::health::HealthChecks;
use crate::server::http::response::{Body, BodyError, Request, text, until_sent};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Handles the requests of one connection.
pub(in crate::server) struct RequestService {
    handler: Arc<PortHandler>,
    shutdown: CancellationToken,
}

impl RequestService {
    pub(in crate::server) fn call<B>(
        &self,
        request: hyper::Request<B>,
    ) -> BoxFuture<'static, Result<Response<Body>, Infallible>>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        let (handler, shutdown) = (self.handler.clone(), self.shutdown.clone());
        Box::pin(async move { Ok(handler.respond(request, &shutdown).await) })
    }
}

/// Handles the requests of one port; cheap to clone.
#[derive(Clone)]
pub struct PortHandler {
    port: Port,
    access: Access,
    tracer: Tracer,
    metrics: Option<HttpMetrics>,
    dispatcher: Arc<Dispatcher>,
}

impl PortHandler {
    /// The handler of the health port.
    pub fn health(checks: HealthChecks) -> Self {
        let dispatcher = Dispatcher { checks, route_handlers: None, disabled: Vec::new() };
        Self {
            port: Port::Health,
            access: Access::Open,
            tracer: Tracer::disabled(),
            metrics: None,
            dispatcher: Arc::new(dispatcher),
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
        let dispatcher = Dispatcher { checks, route_handlers: Some(route_handlers), disabled };
        Self {
            port: Port::ReadOnly,
            access: Access::Open,
            tracer: Tracer::disabled(),
            metrics,
            dispatcher: Arc::new(dispatcher),
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

    /// The service of one connection. When `shutdown` is cancelled, requests that wait for a change are answered
    /// immediately.
    pub(in crate::server) fn service(&self, shutdown: &CancellationToken) -> RequestService {
        RequestService { handler: Arc::new(self.clone()), shutdown: shutdown.clone() }
    }

    /// Finds the route, then, from the outside to the inside: metrics, so that rejected requests are counted too;
    /// panics, after which the client gets a 500 and the connection stays open; authentication and authorization; the
    /// span; the dispatcher.
    async fn respond(&self, mut request: Request, shutdown: &CancellationToken) -> Response<Body> {
        let (port, method, uri) = (self.port, request.method(), request.uri());
        let route = route(port, method, uri.path(), uri.query());
        let entry = route.as_ref().ok().map(|(entry, _)| *entry);
        let metrics = self.metrics.as_ref();
        let in_flight = metrics.map(|metrics| metrics.begin(port, method, entry));
        let response = catch_panic(PanicScope::HttpRequest, async {
            if let Err(refused) = self.access.check(port, &mut request).await {
                return *refused;
            }
            let span = trace::begin(&self.tracer, port, entry, &request);
            let response = self.dispatcher.serve(port, route, request, shutdown);
            match span {
                Some(span) => trace::within(span, response).await,
                None => response.await,
            }
        });
        let response = response.await.unwrap_or_else(|_| {
            text(StatusCode::INTERNAL_SERVER_ERROR, "internal error, see the log\n".into())
        });
        match in_flight {
            Some(in_flight) => until_sent(response, in_flight),
            None => response,
        }
    }
}
