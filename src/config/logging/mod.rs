//! The kubelet's own log: klog text or component-base JSON on stderr.
//!
//! - **Owns**: the process's tracing subscriber, its verbosity and its output.
//! - **Woken by**: tracing events; [`LogControl`] when someone changes the verbosity.
//! - **Publishes**: lines on stderr, each written at once; the current verbosity.
//! - **Must never**: allocate for a line that is not shown, split a line over two writes, or let a
//!   value break out of its line.
//! - **Upstream**: `k8s.io/klog/v2` (text), `k8s.io/component-base/logs/json`.
//!
//! Levels to klog verbosity: `error!`, `warn!` and `info!` are always shown; `debug!` needs `-v 4`,
//! `trace!` needs `-v 6`. Events of libraries are shown at `-v 4` (info), `-v 8` (debug) and
//! `-v 10` (trace), their warnings and errors always.

mod json;
mod layer;
mod quote;
#[cfg(test)]
mod tests;
mod text;
mod vmodule;

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use tracing_subscriber::layer::SubscriberExt;

use self::layer::{KlogLayer, Shared};
pub use self::vmodule::VModule;

/// The shape of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// klog text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How to log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggingConfig {
    /// The shape of lines.
    pub format: LogFormat,
    /// klog verbosity everywhere.
    pub verbosity: u32,
    /// Higher verbosity in some source files; the first match counts.
    pub vmodule: Vec<VModule>,
}

/// A format's name is neither `text` nor `json`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("log format must be text or json, got {0:?}")]
pub struct UnknownLogFormat(String);

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownLogFormat(text.to_owned())),
        }
    }
}

/// Changes what is logged while the process runs.
#[derive(Clone)]
pub struct LogControl {
    shared: Arc<Shared>,
}

impl LogControl {
    /// The current verbosity.
    pub fn verbosity(&self) -> u32 {
        self.shared.verbosity()
    }

    /// Changes the verbosity everywhere (`PUT /debug/flags/v` upstream).
    pub fn set_verbosity(&self, verbosity: u32) {
        self.shared.set_verbosity(verbosity);
    }

    /// Replaces the per-file rules.
    pub fn set_vmodule(&self, rules: Vec<VModule>) {
        self.shared.set_rules(rules);
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl")
            .field("verbosity", &self.verbosity())
            .finish_non_exhaustive()
    }
}

/// Installs the log for the whole process, writing to stderr.
///
/// # Errors
/// A log is installed already.
pub fn init(config: &LoggingConfig) -> anyhow::Result<LogControl> {
    let (layer, control) = build(config, std::io::stderr(), jiff::Timestamp::now);
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).context("cannot install the log")?;
    Ok(control)
}

/// The handle of a log that nobody reads, for a kubelet inside of another program.
pub fn detached(config: &LoggingConfig) -> LogControl {
    build(config, std::io::sink(), jiff::Timestamp::now).1
}

fn build<W: Write + Send + 'static>(
    config: &LoggingConfig,
    out: W,
    clock: fn() -> jiff::Timestamp,
) -> (KlogLayer<W>, LogControl) {
    let shared = Arc::new(Shared::new(config.verbosity, config.vmodule.clone()));
    let layer = KlogLayer::new(Arc::clone(&shared), config.format, out, clock);
    (layer, LogControl { shared })
}
