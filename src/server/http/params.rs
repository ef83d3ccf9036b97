//! The variable parts of a request's path and query, and why a request has no route.

use super::query::{BadQuery, decode_path, pairs};
use super::response::{Body, text};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

/// Why a request has no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No entry of this port matches the path: 404.
    #[error("404 page not found")]
    NotFound,
    /// The path exists, but not with this method: 405.
    #[error("405 method not allowed")]
    MethodNotAllowed(&'static [&'static str]),
    /// A parameter is invalid: 400.
    #[error("400 bad request: {0}")]
    BadQuery(BadQuery),
}

impl From<BadQuery> for RouteError {
    fn from(bad: BadQuery) -> Self {
        Self::BadQuery(bad)
    }
}

impl RouteError {
    /// The response to such a request.
    pub(in crate::server) fn response(&self) -> Response<Body> {
        let status = match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::BadQuery(_) => StatusCode::BAD_REQUEST,
        };
        let mut response = text(status, format!("{self}\n"));
        if let Self::MethodNotAllowed(methods) = self {
            let allowed = methods.join(", ").replace("GET", "GET, HEAD");
            if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                response.headers_mut().insert(header::ALLOW, allowed);
            }
        }
        response
    }
}

/// The variable parts of a request's target.
pub(in crate::server) struct RequestParams<'a> {
    pub(in crate::server) captures: Vec<(&'static str, String)>,
    /// The encoded query; it is not parsed for routes without parameters.
    pub(in crate::server) query: &'a str,
}

#[cfg(test)]
impl<'a> RequestParams<'a> {
    /// For a path without variable segments.
    pub(in crate::server) fn of_query(query: &'a str) -> Self {
        Self { captures: Vec::new(), query }
    }
}

impl RequestParams<'_> {
    /// The value of `{name}` in the path.
    pub(in crate::server) fn path_parameter(&self, name: &str) -> String {
        let mut named = self.captures.iter().filter(|(known, _)| *known == name);
        named.next().map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// The value of `{name}` if it is a valid name of a namespace, pod or container, which needs no percent-encoding;
    /// `NotFound` otherwise.
    pub(in crate::server) fn name(&self, name: &str) -> Result<String, RouteError> {
        let value = self.path_parameter(name);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        if value.chars().all(plain) {
            return Ok(value);
        }
        Err(RouteError::NotFound)
    }

    /// The value of a parameter; the last one if it is repeated.
    pub(in crate::server) fn query_parameter(
        &self,
        parameter: &str,
    ) -> Result<Option<String>, BadQuery> {
        Ok(self.query_parameters(parameter)?.pop())
    }

    /// All values of a parameter.
    pub(in crate::server) fn query_parameters(
        &self,
        parameter: &str,
    ) -> Result<Vec<String>, BadQuery> {
        let of_it = self.pairs()?.into_iter().filter(|(key, _)| key == parameter);
        Ok(of_it.map(|(_, value)| value).collect())
    }

    /// The value of an integer parameter.
    pub(in crate::server) fn query_usize(
        &self,
        parameter: &str,
    ) -> Result<Option<usize>, BadQuery> {
        let Some(value) = self.query_parameter(parameter)? else {
            return Ok(None);
        };
        let detail = || format!("{value:?} is not a non-negative integer");
        let number = value.parse().map_err(|_| BadQuery::new(parameter, detail()));
        number.map(Some)
    }

    /// All parameters, decoded.
    pub(in crate::server) fn pairs(&self) -> Result<Vec<(String, String)>, BadQuery> {
        pairs(self.query)
    }
}

/// Matches a path with a pattern and returns the variable segments; `None` if they do not match.
pub(in crate::server) fn captures(
    pattern: &'static str,
    path: &str,
) -> Option<Vec<(&'static str, String)>> {
    let mut captured = Vec::new();
    let (mut pattern, mut path) = (pattern.strip_prefix('/')?, path.strip_prefix('/')?);
    loop {
        let (segment, more) = match pattern.split_once('/') {
            Some((segment, more)) => (segment, Some(more)),
            None => (pattern, None),
        };
        let variable = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}'));
        if let Some(rest) = variable.and_then(|name| name.strip_suffix("...")) {
            captured.push((rest, decode_path(path).ok()?));
            return Some(captured);
        }
        let (given, left) = match path.split_once('/') {
            Some((given, left)) => (given, Some(left)),
            None => (path, None),
        };
        match variable {
            Some(name) => {
                let value = decode_path(given).ok()?;
                if value.is_empty() || value.contains('/') {
                    return None;
                }
                captured.push((name, value));
            }
            None if segment == given => {}
            None => return None,
        }
        match (more, left) {
            (None, None) | (Some(""), None | Some("")) => return Some(captured),
            (Some(more), Some(left)) => (pattern, path) = (more, left),
            _ => return None,
        }
    }
}
