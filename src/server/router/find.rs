//! Finds the entry of the route table for a request.

use super::route::Route;
use super::table::{Port, ROUTE_TABLE, RouteEntry};
use crate::server::auth::{PROXY, Subresources};
use crate::server::http::params::{RequestParams, RouteError, captures};
use hyper::Method;

/// Finds the entry for a request, and parses the route. HEAD is served wherever GET is; the trailing slash of a
/// list's path is optional, and unknown parameters are ignored.
///
/// # Errors
/// No entry of this port matches the path; the entry does not have the method; a parameter is invalid.
pub fn route(
    port: Port,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<(&'static RouteEntry, Route), RouteError> {
    let on_port = ROUTE_TABLE.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter_map(|entry| Some((entry, captures(entry.pattern, path)?)));
    let Some((entry, captures)) = found.next() else {
        return Err(RouteError::NotFound);
    };
    if !entry.allows(method.as_str()) {
        return Err(RouteError::MethodNotAllowed(entry.methods));
    }
    let query = query.unwrap_or_default();
    let route = (entry.parse)(&RequestParams { captures, query })?;
    Ok((entry, route))
}

/// The `nodes` subresources of a path; access to any one of them is enough. Unknown paths need `nodes/proxy`, so
/// that only clients with full access learn which paths exist.
pub fn subresources(port: Port, path: &str) -> Subresources {
    let on_port = ROUTE_TABLE.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter(|entry| captures(entry.pattern, path).is_some());
    found.next().map_or(PROXY, |entry| entry.subresources)
}

/// The paths of a port that a browser can open: those without variable segments that are read.
pub(super) fn browsable(port: Port) -> Vec<&'static str> {
    let entries = ROUTE_TABLE.iter().filter(|entry| entry.is_on(port) && entry.allows("GET"));
    entries.map(|entry| entry.pattern).filter(|pattern| !pattern.contains('{')).collect()
}
