//! The metrics of requests, with upstream's names.

use super::{Port, RouteEntry};
use crate::base::clock::{self, Instant};
use crate::base::metrics::{DEFAULT_BUCKETS, Gauge, Histogram, metric_set};
use hyper::Method;

/// First path segments of long-running requests.
const LONG_RUNNING: [&str; 4] = ["exec", "attach", "portforward", "debug"];

metric_set! {
    /// Handles to the metrics. Clones share them.
    pub struct HttpMetrics {
        requests: Counter["method", "path", "server_type", "long_running"] =
            "kubelet_http_requests_total", "Number of the http requests received since the server started";
        duration: Histogram(DEFAULT_BUCKETS)["method", "path", "server_type", "long_running"] =
            "kubelet_http_requests_duration_seconds", "Duration in seconds to serve http requests";
        inflight: Gauge["method", "path", "server_type", "long_running"] =
            "kubelet_http_inflight_requests", "Number of the inflight http requests";
    }
}

impl HttpMetrics {
    /// Records the start of a request, which ends when the returned value is dropped. Labels contain nothing that the
    /// client controls: paths are the patterns of the table.
    pub(super) fn begin(
        &self,
        port: Port,
        method: &Method,
        entry: Option<&RouteEntry>,
    ) -> InFlight {
        let path = entry.map_or("other".to_owned(), |entry| bucket(entry.pattern));
        let server_type = match port {
            Port::ReadOnly | Port::Health => "readonly",
            Port::Main | Port::Local => "readwrite",
        };
        let long_running = LONG_RUNNING.contains(&path.to_ascii_lowercase().as_str());
        let long_running = if long_running { "true" } else { "false" };
        let request = [method_label(method), &path, server_type, long_running];
        self.requests.with(request).inc();
        let inflight = self.inflight.with(request);
        inflight.inc();
        InFlight { inflight, duration: self.duration.with(request), started_at: clock::instant() }
    }
}

/// A request in progress. Dropping this ends it.
pub(super) struct InFlight {
    inflight: Gauge,
    duration: Histogram,
    started_at: Instant,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.inflight.dec();
        self.duration.observe(clock::since(self.started_at).as_secs_f64());
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// Upstream's `path` label: the first segment, and two below `/metrics`.
fn bucket(pattern: &str) -> String {
    let mut segments = pattern.split('/').filter(|segment| !segment.is_empty());
    match (segments.next(), segments.next()) {
        (Some("metrics"), Some("slis")) => "other".to_owned(),
        (Some("metrics"), Some(page)) => format!("metrics/{page}"),
        (Some(first), _) if !first.starts_with('{') => first.to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_table_have_upstreams_buckets() {
        for (pattern, expected) in [
            ("/pods/", "pods"),
            ("/healthz/{check}", "healthz"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/slis", "other"),
            ("/stats/summary", "stats"),
            ("/debug/flags/v", "debug"),
            ("/", ""),
        ] {
            assert_eq!(bucket(pattern), expected, "{pattern}");
        }
    }
}
