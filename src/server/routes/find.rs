//! From method, path and query to a row of the table.

use super::{
    parts::{Parts, RouteError, captures},
    route::Route,
    table::{ENTRIES, Entry, Port},
};
use crate::server::auth::{PROXY, Subresources};
use hyper::Method;

/// Finds the row of the table and what exactly is asked for by it. HEAD is answered wherever GET is; one
/// slash at the end of a list's path does not matter, and parameters that nobody reads do not either.
///
/// # Errors
/// Nothing on this port has that path; it does not take that method; a parameter cannot be read.
pub fn route(
    port: Port,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<(&'static Entry, Route), RouteError> {
    let on_port = ENTRIES.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter_map(|entry| Some((entry, captures(entry.pattern, path)?)));
    let Some((entry, captures)) = found.next() else {
        return Err(RouteError::NotFound);
    };
    if !entry.allows(method.as_str()) {
        return Err(RouteError::MethodNotAllowed(entry.methods));
    }
    let query = query.unwrap_or_default();
    let route = (entry.parse)(&Parts { captures, query })?;
    Ok((entry, route))
}

/// The rights to the node that are asked for at this path, whatever the method: one of these subresources.
/// What is not there takes the right to everything, so that nobody else learns what is.
pub fn subresources(port: Port, path: &str) -> Subresources {
    let on_port = ENTRIES.iter().filter(|entry| entry.is_on(port));
    let mut found = on_port.filter(|entry| captures(entry.pattern, path).is_some());
    found.next().map_or(PROXY, |entry| entry.subresources)
}
