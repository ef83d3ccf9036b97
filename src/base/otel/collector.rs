//! The address of the collector, in the syntax of gRPC target names as far as it applies. Pure.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// A collector that accepts OTLP over gRPC without TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collector {
    /// `host:port`.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Default for Collector {
    /// OpenTelemetry's default port on localhost.
    fn default() -> Collector {
        Collector::Tcp("localhost:4317".to_owned())
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collector::Tcp(address) => f.write_str(address),
            Collector::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Why an address is invalid. The address is not repeated, because it may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CollectorError {
    /// Unsupported scheme.
    #[error("must be host:port, dns:///host:port or unix:///path; other schemes are not supported")]
    Scheme,
    /// The path is not absolute.
    #[error("must have an absolute path after unix://")]
    Path,
    /// Missing or invalid port.
    #[error("must end with a port between 1 and 65535, such as localhost:4317")]
    Port,
    /// Missing host name or address.
    #[error("must have a host name or an IP address before the port, an IPv6 address in brackets")]
    Host,
}

impl FromStr for Collector {
    type Err = CollectorError;

    fn from_str(text: &str) -> Result<Collector, CollectorError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let absolute = path.starts_with('/') && path.len() > 1 && !path.contains('\0');
            return if absolute {
                Ok(Collector::Unix(PathBuf::from(path)))
            } else {
                Err(CollectorError::Path)
            };
        }
        let address = text.strip_prefix("dns:///").unwrap_or(text);
        if address.contains("//") {
            return Err(CollectorError::Scheme);
        }
        let (host, port) = address.rsplit_once(':').ok_or(CollectorError::Port)?;
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(CollectorError::Port);
        }
        if is_host(host) {
            Ok(Collector::Tcp(address.to_owned()))
        } else {
            Err(CollectorError::Host)
        }
    }
}

fn is_host(host: &str) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    if let Some(address) = bracketed {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !host.is_empty() && host.len() <= 253 && host.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_grpc_names_them() {
        let tcp = |text: &str| Ok(Collector::Tcp(text.to_owned()));
        for (text, expected) in [
            ("localhost:4317", tcp("localhost:4317")),
            ("10.0.0.1:1", tcp("10.0.0.1:1")),
            ("[::1]:4317", tcp("[::1]:4317")),
            ("dns:///otel.example:65535", tcp("otel.example:65535")),
            ("unix:///run/otel.sock", Ok(Collector::Unix("/run/otel.sock".into()))),
            ("unix:/run/otel.sock", Ok(Collector::Unix("/run/otel.sock".into()))),
            ("unix://run/otel.sock", Err(CollectorError::Path)),
            ("unix:///", Err(CollectorError::Path)),
            ("http://localhost:4317", Err(CollectorError::Scheme)),
            ("dns://1.1.1.1/localhost:4317", Err(CollectorError::Scheme)),
            ("localhost", Err(CollectorError::Port)),
            ("localhost:", Err(CollectorError::Port)),
            ("localhost:0", Err(CollectorError::Port)),
            ("localhost:+80", Err(CollectorError::Port)),
            ("localhost:65536", Err(CollectorError::Port)),
            ("localhost:4317/v1/traces", Err(CollectorError::Port)),
            (":4317", Err(CollectorError::Host)),
            ("::1:4317", Err(CollectorError::Host)),
            ("[::g]:4317", Err(CollectorError::Host)),
            ("user:secret@host:4317", Err(CollectorError::Host)),
            ("a b:4317", Err(CollectorError::Host)),
            ("", Err(CollectorError::Port)),
        ] {
            assert_eq!(text.parse::<Collector>(), expected, "{text}");
        }
        assert_eq!(Collector::default().to_string().parse(), Ok(Collector::default()));
    }
}
