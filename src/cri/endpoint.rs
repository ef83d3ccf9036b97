//! The endpoint of the runtime. Pure.

use std::fmt;
use std::path::{Path, PathBuf};

/// A unix socket given as `unix:///path` or as a plain absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEndpoint {
    path: PathBuf,
}

/// Why an endpoint is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint is empty.
    #[error(
        "the container runtime endpoint is empty; give a unix socket such as unix:///run/containerd/containerd.sock"
    )]
    Empty,
    /// Network endpoints are not supported, because the CRI has no authentication.
    #[error(
        "container runtime endpoint {0:?} is not a unix socket; only unix:///path is supported"
    )]
    NotUnix(String),
    /// The path is relative, so it would depend on the working directory.
    #[error("container runtime endpoint {0:?} is not an absolute path; write unix:///path")]
    NotAbsolute(String),
    /// The path exceeds the kernel's limit for Unix sockets.
    #[error(
        "container runtime endpoint {0:?} is longer than the 107 bytes a unix socket path may have"
    )]
    TooLong(String),
}

/// The path of `sockaddr_un` has 108 bytes, including the final NUL.
const MAX_PATH: usize = 107;

impl RuntimeEndpoint {
    /// Parses an endpoint of a flag or a configuration file.
    pub fn parse(text: &str) -> Result<RuntimeEndpoint, EndpointError> {
        let text = text.trim();
        let path = match text.split_once("://") {
            Some(("unix", path)) => path,
            Some(_) => return Err(EndpointError::NotUnix(text.to_owned())),
            None => text.strip_prefix("unix:").unwrap_or(text),
        };
        if path.is_empty() {
            return Err(EndpointError::Empty);
        }
        if !path.starts_with('/') {
            return Err(EndpointError::NotAbsolute(text.to_owned()));
        }
        if path.len() > MAX_PATH {
            return Err(EndpointError::TooLong(text.to_owned()));
        }
        Ok(RuntimeEndpoint { path: PathBuf::from(path) })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for RuntimeEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_plain_absolute_paths_name_the_same_socket() {
        for text in
            ["unix:///run/cri.sock", "/run/cri.sock", "unix:/run/cri.sock", " /run/cri.sock\n"]
        {
            let endpoint = RuntimeEndpoint::parse(text).unwrap();
            assert_eq!(endpoint.path(), Path::new("/run/cri.sock"), "{text}");
            assert_eq!(endpoint.to_string(), "unix:///run/cri.sock");
        }
    }

    #[test]
    fn anything_but_an_absolute_unix_path_is_refused() {
        let long = format!("/{}", "x".repeat(200));
        let table = [
            ("", EndpointError::Empty),
            ("unix://", EndpointError::Empty),
            ("tcp://127.0.0.1:3735", EndpointError::NotUnix("tcp://127.0.0.1:3735".into())),
            ("http://localhost", EndpointError::NotUnix("http://localhost".into())),
            ("run/cri.sock", EndpointError::NotAbsolute("run/cri.sock".into())),
            ("unix://run/cri.sock", EndpointError::NotAbsolute("unix://run/cri.sock".into())),
            (long.as_str(), EndpointError::TooLong(long.clone())),
        ];
        for (text, expected) in table {
            assert_eq!(RuntimeEndpoint::parse(text), Err(expected), "{text}");
        }
    }
}
