//! The table of routes: what can be requested, on which ports, and with which rights.

mod find;
mod parts;
mod query;
mod route;
mod table;

pub use find::{route, subresources};
pub use parts::RouteError;
pub(super) use parts::RouteParts;
pub(super) use query::{BadQuery, pairs};
pub use route::Route;
pub use table::{ENTRIES, Port, RouteEntry, Switch, document};
