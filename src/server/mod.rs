//! The HTTP server of the kubelet.
//!
//! The listener accepts a connection and gives it one of a limited number of places; on the main port TLS follows. The
//! route of a request is found in the table first. Then the request passes the layers (`layers`, assembled in
//! `port_handler.rs`), outermost first: metrics, panics, authentication, authorization by the route's subresources,
//! trace. The dispatcher calls the handler, which reads stores and streams its response. Exec, attach and port-forward
//! are copied byte by byte between the client and the runtime.
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

mod query;
mod response;
mod route_parts;
mod handler_deps;
mod list;
mod websocket;
mod streaming;
mod checkpoint;
mod container_logs;
pub mod tls;
pub mod auth;
mod health;
mod connections;
mod events;
pub mod explain;
mod html;
mod page;
mod explanations;
mod scrapes;
mod stats;
mod legacy_stats;
mod node_log_query;
mod pods;
mod pods_api;
mod posted;
pub mod pprof;
mod profile;
mod routes;
mod metrics;
mod layers;
mod cross_site;
mod gzip;
mod files;
mod node_logs;
mod process;
mod dispatcher;
mod port_handler;
mod pod_explainer;
mod listener;
mod ports;
mod area;

pub use area::{Config, ServerDeps, build, pods_api};
pub use checkpoint::Checkpoints;
pub use connections::ConnectionLimits;
pub use container_logs::{LogDeps, LogQuery, LogReaders};
pub use dispatcher::RouteHandlers;
pub use events::EventsQuery;
pub use explanations::{ExplainPod, Explanations, OverviewQuery, OverviewVersion, ReadOverview};
pub use handler_deps::{FlushStatuses, ListPods, WaitForPods};
pub use health::{CheckMetrics, HealthChecks, HealthQuery};
pub use legacy_stats::{LegacyStatsQuery, LegacyStatsTarget};
pub use listener::{BindError, Listener};
pub use metrics::HttpMetrics;
pub use node_logs::NodeLogs;
pub use pod_explainer::PendingVolumesOf;
pub use pods::PodLists;
pub use pods_api::PodsApi;
pub use port_handler::PortHandler;
pub use ports::{Ports, ServerConfig};
pub use posted::PostMode;
pub use process::Process;
pub use route_parts::RouteError;
pub use routes::{Port, ROUTE_TABLE, Route, RouteEntry, RouteGroup, document, route, subresources};
pub use scrapes::{ReadMetrics, ScrapeHook, Scrapes};
pub use stats::{StatsReaders, TextChunks};
pub use streaming::{ContainerName, PodName, StreamDeps, StreamMetrics, StreamTable};

#[cfg(test)]
mod tests;
