//! The route table: which paths are served, on which ports, and with which authorization.

mod find;
mod route;
mod table;

pub use find::{route, subresources};
pub use route::Route;
pub(in crate::server) use table::{POSTED_PODS_DISABLED, RouteGroupState};
pub use table::{Port, ROUTE_TABLE, RouteEntry, RouteGroup, document};
