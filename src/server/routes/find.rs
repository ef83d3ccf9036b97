//! Finds the entry of the table for a request.

use super::{
    route::Route,
    table::{ENTRIES, Port, RouteEntry},
};
use crate::server::{
    auth::{PROXY, Subresources},
    route_parts::{RouteError, RouteParts, captures},
};
use hyper::Method;

/// The row of the table for a request, and its parsed route. HEAD is served wherever GET is; a trailing slash
/// of a list's path is optional, and unknown parameters are ignored.
///
/// # Errors
/// No row of this port has the path; the row does not have the method; a parameter cannot be read.
pub fn route(
    port: Port,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<(&'static RouteEntry, Route), RouteError> {
    let on_port = ENTRIES.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter_map(|entry| Some((entry, captures(entry.pattern, path)?)));
    let Some((entry, captures)) = found.next() else {
        return Err(RouteError::NotFound);
    };
    if !entry.allows(method.as_str()) {
        return Err(RouteError::MethodNotAllowed(entry.methods));
    }
    let query = query.unwrap_or_default();
    let route = (entry.parse)(&RouteParts { captures, query })?;
    Ok((entry, route))
}

/// The subresources of the node of which a path needs one, independent of the method. An unknown path needs
/// `nodes/proxy`, so that only clients with access to everything learn which paths exist.
pub fn subresources(port: Port, path: &str) -> Subresources {
    let on_port = ENTRIES.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter(|entry| captures(entry.pattern, path).is_some());
    found.next().map_or(PROXY, |entry| entry.subresources)
}
