//! The HTTP surface: what the node's other programs and people read from the kubelet.
//!
//! * Owns: the health port, the read-only port, the secured port with its certificate and its gate, the
//!   local socket, and the connections on them.
//! * Woken by: requests, and by shutdown.
//! * Publishes: what the table of routes ([`ENTRIES`]) lists, read from boards at the moment of the request;
//!   nothing is computed for nobody.
//! * Hands on: commands in containers, their terminals, ports of pods and checkpoints to the runtime; posted
//!   pods to their store.
//! * Must never decide about pods, call the runtime to answer a question that boards answer, hold a whole
//!   list in memory as text, or let one client take what all need (connections, headers, bodies, streams and
//!   idle time are bounded).
//! * Answers to upstream's `pkg/kubelet/server` and `k8s.io/apiserver/pkg/server/healthz`.

pub mod explain;
pub mod auth;
mod bearer_protocol;
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
mod guarded_body;
mod html;
mod list;
mod listener;
mod unix_socket;
mod metrics;
mod observed;
mod page;
mod pods;
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
mod x509;

pub use checkpoint::Checkpoints;
pub use container_logs::{LogParts, LogQuery, LogReaders};
pub use events::EventsQuery;
pub use explanations::{
    ExplainQuery, ExplainView, Explanations, NewsView, OverviewQuery, OverviewView,
};
pub use handlers::Handlers;
pub use health::{HealthChecks, HealthQuery};
pub use legacy_stats::{InfoQuery, InfoTarget};
pub use listener::{BindError, Limits, Listener};
pub use metrics::{CheckMetrics, HttpMetrics, StreamMetrics};
pub use pods::PodLists;
pub use posted::Post;
pub use process::Process;
pub use router::Views;
pub use routes::{ENTRIES, Entry, Port, Route, RouteError, Switch, document, route, subresources};
pub use scrapes::{MetricsView, Scrapes};
pub use stats::{StatsViews, TextPieces};
pub use streaming::{ContainerName, PodName, StreamParts, Streams};
pub use views::{Known, PodsView, Recorded, RunningPodsView};
