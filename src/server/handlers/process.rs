//! `/configz`, `/flagz`, `/statusz` and `/debug/flags/v`: the process itself.

use crate::server::http::response::{Body, bad_request, json_object, text};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// First line of pages that are not machine-readable, as upstream.
const FOR_PEOPLE: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
     and is for debugging purposes only.";

/// Information about this process, and control of its log verbosity.
#[derive(Clone)]
pub struct Process {
    /// Start time of the process.
    pub started: Timestamp,
    /// This program's version.
    pub version: &'static str,
    /// The Kubernetes version that it implements.
    pub emulation_version: &'static str,
    /// The effective configuration without secrets.
    pub configuration: Arc<Value>,
    /// All flags with their effective values, without secrets.
    pub flags: Arc<Vec<(String, String)>>,
    /// The verbosity of the log.
    pub verbosity: Arc<dyn Fn() -> u32 + Send + Sync>,
    /// Sets the verbosity.
    pub set_verbosity: Arc<dyn Fn(u32) + Send + Sync>,
}

impl Process {
    /// `/configz`, in upstream's envelope.
    pub(in crate::server) fn configz(&self) -> Response<Body> {
        json_object(&json!({"kubeletconfig": *self.configuration}))
    }

    /// `/flagz`.
    pub(in crate::server) fn flagz(&self) -> Response<Body> {
        let mut body = format!("\nkubelet flagz\n{FOR_PEOPLE}\n\n");
        for (name, value) in self.flags.iter() {
            let _ = writeln!(body, "{name}={value}");
        }
        text(StatusCode::OK, body)
    }

    /// `/statusz`. `paths` are those that can be opened in a browser.
    pub(in crate::server) fn statusz(&self, paths: &[&str], now: Timestamp) -> Response<Body> {
        let up = now.duration_since(self.started).as_secs().max(0);
        let (days, hours) = (up / 86_400, up / 3_600 % 24);
        let (minutes, seconds) = (up / 60 % 60, up % 60);
        let body = format!(
            "\nkubelet statusz\n{FOR_PEOPLE}\n\nStarted: {}\nUp: {days} d {hours:02} hr {minutes:02} min {seconds:02} sec\n\
             Binary version: {}\nEmulation version: {}\nPaths: {}\n",
            self.started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            self.version,
            self.emulation_version,
            paths.join(" "),
        );
        text(StatusCode::OK, body)
    }

    /// `PUT /debug/flags/v`: the body is the new verbosity.
    pub(in crate::server) fn put_verbosity(&self, body: &[u8]) -> Response<Body> {
        let given = String::from_utf8_lossy(body);
        let Ok(verbosity) = given.trim().parse::<u32>() else {
            let quoted: String = given.chars().take(40).collect();
            return bad_request(&format!(
                "failed to set logging.verbosity: {quoted:?} is not a non-negative integer"
            ));
        };
        let before = (self.verbosity)();
        (self.set_verbosity)(verbosity);
        tracing::info!(before, verbosity, "Changed the log verbosity");
        let body = format!("successfully set klog.logging.verbosity to {verbosity}");
        text(StatusCode::OK, body)
    }
}
