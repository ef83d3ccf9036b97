//! The kubelet's own log: klog text or component-base JSON on stderr.
//!
//! - **Owns**: the process's tracing subscriber, its verbosity and its output.
//! - **Woken by**: tracing events; [`LogControl`] when someone changes the verbosity.
//! - **Publishes**: lines on stderr, by a thread of its own; the current verbosity; how many lines were
//!   dropped because they were not read in time.
//! - **Must never**: wait for the log to be read, allocate for a line that is not shown, split a line
//!   over two writes, or let a value break out of its line.
//! - **Upstream**: `k8s.io/klog/v2` (text), `k8s.io/component-base/logs/json`.
//!
//! Levels to klog verbosity: `error!`, `warn!` and `info!` are always shown; `debug!` needs `-v 4`,
//! `trace!` needs `-v 6`. Events of libraries are shown at `-v 4` (info), `-v 8` (debug) and
//! `-v 10` (trace), their warnings and errors always.

mod json;
mod layer;
mod queue;
mod quote;
mod record;
#[cfg(test)]
mod tests;
mod text;
mod vmodule;

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::tz::TimeZone;
use tracing_subscriber::layer::SubscriberExt;

use self::layer::{KlogLayer, LayerState};
use self::queue::LogQueue;
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
    shared: Arc<LayerState>,
    queue: LogQueue,
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

    /// Lines that were dropped because the log was not read fast enough.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
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

/// Writes what is still queued when it is dropped, and waits for that up to three seconds.
#[derive(Debug)]
pub struct LogGuard(LogQueue);

impl Drop for LogGuard {
    fn drop(&mut self) {
        LogQueue::flush(&self.0, FLUSH_TIMEOUT);
    }
}

/// How long the process waits at its end for its last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Installs the log for the whole process, writing to stderr. Nothing waits for stderr to be read. The
/// guard is to be dropped last.
///
/// # Errors
/// A log is installed already, or no thread can be started.
pub fn init(config: &LoggingConfig) -> anyhow::Result<(LogControl, LogGuard)> {
    let (format, zone) = (config.format, TimeZone::system());
    let report = move |count| layer::dropped_line(format, &zone, count);
    let queue = LogQueue::start(std::io::stderr(), report).context("cannot start the log")?;
    let (layer, control) = build(config, queue.clone(), jiff::Timestamp::now);
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).context("cannot install the log")?;
    let (own, previous) = (queue.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        // A panic ends the process, and what led to it is in the queue.
        LogQueue::flush(&own, FLUSH_TIMEOUT);
        previous(panic);
    }));
    let control = LogControl {
        queue: queue.clone(),
        ..control
    };
    Ok((control, LogGuard(queue)))
}

/// The handle of a log without readers, for a kubelet inside another program.
pub fn detached(config: &LoggingConfig) -> LogControl {
    build(config, std::io::sink(), jiff::Timestamp::now).1
}

fn build<W: Write + Send + 'static>(
    config: &LoggingConfig,
    out: W,
    clock: fn() -> jiff::Timestamp,
) -> (KlogLayer<W>, LogControl) {
    let shared = Arc::new(LayerState::new(config.verbosity, config.vmodule.clone()));
    let layer = KlogLayer::new(Arc::clone(&shared), config.format, out, clock);
    let queue = LogQueue::default();
    (layer, LogControl { shared, queue })
}
