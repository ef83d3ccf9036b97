//! Query strings.

use crate::base::percent_decoded;

/// An invalid query parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("query parameter {parameter:?}: {detail}")]
pub struct BadQuery {
    /// The parameter's name.
    pub parameter: String,
    /// The error.
    pub detail: String,
}

impl BadQuery {
    pub(in crate::server) fn new(parameter: &str, detail: impl Into<String>) -> Self {
        Self { parameter: parameter.to_owned(), detail: detail.into() }
    }
}

/// Parses a query string to decoded pairs, in order. A parameter without `=` has an empty value.
pub(in crate::server) fn pairs(query: &str) -> Result<Vec<(String, String)>, BadQuery> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = |detail: &str| BadQuery::new(key, detail);
            let name = decode(key).map_err(bad)?;
            Ok((name, decode(value).map_err(bad)?))
        })
        .collect()
}

/// Decodes percent encoding; `+` is a space.
fn decode(text: &str) -> Result<String, &'static str> {
    decode_path(&text.replace('+', " "))
}

/// Decodes the percent-encoding of a path, in which `+` stands for itself.
pub(super) fn decode_path(text: &str) -> Result<String, &'static str> {
    let bytes = percent_decoded(text).ok_or("% must be followed by two hexadecimal digits")?;
    String::from_utf8(bytes).map_err(|_| "is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_order() {
        let read = pairs("a=1&b&c=x%20y+z&&d=%C3%A9&a=2").unwrap();
        let expected = [("a", "1"), ("b", ""), ("c", "x y z"), ("d", "é"), ("a", "2")];
        assert_eq!(
            read.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn a_broken_encoding_names_its_parameter() {
        for query in ["limit=%", "limit=%4", "limit=%zz", "limit=%ff"] {
            assert_eq!(pairs(query).unwrap_err().parameter, "limit", "{query}");
        }
    }
}
