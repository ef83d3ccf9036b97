//! The handlers of the routes: one file, or folder, for each subject. A handler parses its own part of the query, reads
//! stores, and streams its response; streaming requests have a room of their own (`streaming`).
//!
//! * Publishes: what the stores have at the time of the request.
//! * Must never decide about pods, or know who the client is: the layers of `router` have let it in.
//! * Upstream: the handlers of `pkg/kubelet/server/server.go`, and `pkg/kubelet/server/stats`.

pub(super) mod health;
pub(super) mod scrapes;
pub(super) mod stats;
pub(super) mod legacy_stats;
pub(super) mod pods;
pub(super) mod posted;
pub(super) mod events;
pub(super) mod checkpoint;
pub(super) mod container_logs;
mod html;
mod page;
pub(super) mod explanations;
pub(super) mod pod_explainer;
mod files;
pub(super) mod node_log_query;
pub(super) mod node_logs;
pub mod pprof;
pub(super) mod profile;
pub(super) mod process;
