//! The table of routes: what can be requested, on which ports, and with which rights.

mod find;
mod route;
mod table;

pub use find::{route, subresources};
pub use route::Route;
pub use table::{ENTRIES, Port, RouteEntry, Switch, document};
