//! The HTTP server of the kubelet.
//!
//! `listener` accepts a connection and gives it one of a limited number of places (`connections`); on the main port TLS
//! follows (`tls`). `router` finds the request's route in the table first. Then the request passes the layers, assembled
//! in `router/port_handler.rs`, outermost first: metrics, panics, authentication, authorization by the route's
//! subresources (`auth`), trace. The dispatcher calls the handler (`handlers`), which reads stores and streams its
//! response with what `http` has. Exec, attach and port-forward are copied byte by byte between the client and the
//! runtime (`streaming`).
//!
//! A slow client holds its own connection, until a timeout or until another client needs the place. A panic in a
//! handler is a 500 for one request. If the API server cannot review a token, the request is refused, not let through.
//!
//! * Owns: the health port, the read-only port, the main port with its certificate, authentication and authorization,
//!   the local socket, and their connections; the socket of the Pods API.
//! * Woken by: requests, and by shutdown.
//! * Publishes: the routes of the table ([`ROUTE_TABLE`]), with data read from stores at the time of the request.
//! * Forwards: exec, attach, port-forward and checkpoints to the runtime; posted pods to their store.
//! * Must never decide about pods, call the runtime for data that a store has, hold a whole list in memory as text,
//!   or let one client exhaust shared resources (connections, headers, bodies, streams and idle time are limited).
//! * Upstream: `pkg/kubelet/server` and `k8s.io/apiserver/pkg/server/healthz`.

mod http;
mod known_pods;
pub mod tls;
pub mod auth;
mod connections;
mod streaming;
pub mod explain;
mod handlers;
mod router;
mod listener;
mod pods_api;
mod area;

pub use area::{Config, ServerDeps, build, pods_api};
pub use connections::ConnectionLimits;
pub use handlers::checkpoint::Checkpoints;
pub use handlers::container_logs::{LogDeps, LogQuery, LogReaders};
pub use handlers::events::EventsQuery;
pub use handlers::explanations::{
    ExplainPod, Explanations, OverviewQuery, OverviewVersion, ReadOverview,
};
pub use handlers::health::{CheckMetrics, HealthChecks, HealthQuery};
pub use handlers::legacy_stats::{LegacyStatsQuery, LegacyStatsTarget};
pub use handlers::node_logs::NodeLogs;
pub use handlers::pods::PodLists;
pub use handlers::posted::PostMode;
pub use handlers::pprof;
pub use handlers::process::Process;
pub use handlers::scrapes::{ReadMetrics, ScrapeHook, Scrapes};
pub use handlers::stats::{StatsReaders, TextChunks};
pub use http::params::RouteError;
pub use known_pods::KnownPods;
pub use listener::listen::{BindError, Listener};
pub use listener::ports::{Ports, ServerConfig};
pub use pods_api::PodsApi;
pub use router::dispatcher::RouteHandlers;
pub use router::metrics::HttpMetrics;
pub use router::port_handler::PortHandler;
pub use router::{Port, ROUTE_TABLE, Route, RouteEntry, RouteGroup, document, route, subresources};
pub use streaming::{ContainerName, PodName, StreamDeps, StreamMetrics, StreamTable};

#[cfg(test)]
mod tests;
