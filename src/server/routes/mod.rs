//! What can be asked for, where, and by whom: one table, read by the parser, the gate and the
//! documentation.

mod query;
mod route;
mod table;

pub(super) use query::{BadQuery, pairs};
pub use route::{
    EventsQuery, ExplainQuery, HealthQuery, OverviewQuery, Post, Route, RouteError, route,
    subresources,
};
pub use table::{ENTRIES, Entry, Port, Switch, document};
