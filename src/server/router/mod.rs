//! From a request to its handler: the route table, what is done around every handler, and the dispatcher.
//!
//! * Owns: which paths are served, on which ports, to whom ([`ROUTE_TABLE`]).
//! * Must never read a store: handlers do.
//! * Upstream: `pkg/kubelet/server/server.go`, `pkg/kubelet/server/auth.go`.

mod route;
mod table;
mod find;
pub(super) mod metrics;
mod access;
mod trace;
pub(super) mod dispatcher;
pub(super) mod port_handler;

pub use find::{route, subresources};
pub use route::Route;
pub(in crate::server) use table::{POSTED_PODS_DISABLED, RouteGroupState};
pub use table::{Port, ROUTE_TABLE, RouteEntry, RouteGroup, document};
