//! The node as a whole: Node object, lease, certificates, statistics, evictions and shutdown.
//!
//! * Owns: the content of the Node object, the lease, the event sink, certificates, usage statistics, and the decisions
//!   which pods to evict or to kill before a shutdown.
//! * Woken by: see the modules; most have their own task.
//! * Publishes: [`node_object`](crate::state::node_object), [`node_pressure`](crate::state::node_pressure) and
//!   [`node_shutdown`](crate::state::node_shutdown); kills through the pod workers.
//! * Must never stop a container itself.
//! * Upstream: `nodestatus`, `nodelease`, `eviction`, `nodeshutdown`, `certificate` and `stats`.

pub mod stats;
pub mod certificates;
pub mod node_status;
pub mod registration;
pub mod runtime_facts;
pub mod startup_latency;
pub mod node_manager;
pub mod lease;
pub mod event_sink;
pub mod csi_node;
mod membership;
pub mod reclaim;
mod active_pods;
pub mod eviction;
pub mod shutdown;
pub mod oom;
mod area;

pub use area::{Config, NodeDeps, start};
pub use membership::{NodeConfig, NodeProfile, facts, standalone_node};
