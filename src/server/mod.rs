//! The HTTP server of the kubelet.
//!
//! * Owns: the health port, the read-only port, the main port with its certificate, authentication and
//!   authorization, the local socket, and their connections.
//! * Woken by: requests, and by shutdown.
//! * Publishes: the routes of the table ([`ENTRIES`]), read from stores at the time of the request.
//! * Forwards: exec, attach, port-forward and checkpoints to the runtime; posted pods to their store.
//! * Must never decide about pods, call the runtime for what a store has, hold a whole list in memory as text,
//!   or let one client exhaust what all need (connections, headers, bodies, streams and idle time are bounded).
//! * Answers to upstream's `pkg/kubelet/server` and `k8s.io/apiserver/pkg/server/healthz`.
//!
//! A request passes through the listener, the layers (`layers`, stacked in `handlers.rs`) and the router.

pub mod explain;
mod area;
pub mod auth;
mod checkpoint;
mod connections;
mod legacy_stats;
mod container_logs;
mod cross_site;
mod events;
mod explanations;
mod files;
mod gzip;
mod handlers;
mod layers;
mod health;
mod html;
mod list;
mod listener;
mod metrics;
mod node_log_query;
mod node_logs;
mod observed;
mod page;
mod pod_reporter;
mod pods;
mod ports;
mod posted;
pub mod pprof;
mod process;
mod profile;
mod response;
mod router;
mod routes;
mod scrapes;
mod stats;
mod streaming;
#[cfg(test)]
mod tests;
pub mod tls;
mod views;
mod websocket;

pub use area::{Config, ServerDeps, build};
pub use checkpoint::Checkpoints;
pub use connections::ConnectionLimits;
pub use container_logs::{LogParts, LogQuery, LogReaders};
pub use events::EventsQuery;
pub use explanations::{
    ExplainQuery, ExplainView, Explanations, OverviewQuery, OverviewVersion, OverviewView,
};
pub use handlers::Handlers;
pub use health::{CheckMetrics, HealthChecks, HealthQuery};
pub use legacy_stats::{InfoQuery, InfoTarget};
pub use listener::{BindError, Listener};
pub use metrics::HttpMetrics;
pub use node_logs::NodeLogs;
pub use pods::PodLists;
pub use ports::{Ports, ServerConfig};
pub use posted::Post;
pub use process::Process;
pub use router::Views;
pub use routes::{
    ENTRIES, Port, Route, RouteEntry, RouteError, Switch, document, route, subresources,
};
pub use scrapes::{BeforeScrape, MetricsView, Scrapes};
pub use stats::{StatsViews, TextPieces};
pub use streaming::{ContainerName, PodName, StreamMetrics, StreamParts, StreamTable};
pub use views::{PodsView, Recorded, RunningPodsView, ViewsReady};
