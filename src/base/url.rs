//! URLs that may contain credentials.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// Replaces parts that may be a credential.
const MASKED: &str = "<masked>";

/// A URL whose user information and query may be credentials. `Display` and `Debug` mask them; serialization and
/// `Deref` give the full URL.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl<T: Into<String>> From<T> for SecretUrl {
    fn from(url: T) -> Self {
        Self(url.into())
    }
}

impl Deref for SecretUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.0.split('#').next().unwrap_or_default();
        let (url, query) = match url.split_once('?') {
            Some((url, _)) => (url, true),
            None => (url, false),
        };
        let (scheme, rest) = match url.find("://") {
            Some(end) => url.split_at(end + "://".len()),
            None => ("", url),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        f.write_str(scheme)?;
        match authority.rsplit_once('@') {
            Some((_, host)) => write!(f, "{MASKED}@{host}{path}")?,
            None => write!(f, "{authority}{path}")?,
        }
        if query {
            write!(f, "?{MASKED}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_url_are_masked() {
        for (url, expected) in [
            ("http://u:p@a:81/x?token=y#z", "http://<masked>@a:81/x?<masked>"),
            ("http://u:p@q@a?token=y/z", "http://<masked>@a?<masked>"),
            ("https://a", "https://a"),
            ("http://a/u@b", "http://a/u@b"),
            ("http://a/x#u:p@b", "http://a/x"),
            ("u:p@a/x", "<masked>@a/x"),
            ("", ""),
        ] {
            let secret = SecretUrl::from(url);
            assert_eq!(secret.to_string(), expected);
            assert_eq!(format!("{secret:?}"), format!("{expected:?}"));
            assert_eq!(&*secret, url);
        }
    }
}
