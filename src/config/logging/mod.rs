//! The kubelet's own log: klog text or component-base JSON on stderr.
//!
//! - **Owns**: the process's tracing subscriber, its verbosity and its output.
//! - **Woken by**: tracing events; [`LogControl`], which changes the verbosity.
//! - **Publishes**: lines on stderr, written by a separate thread; the current verbosity; the number of lines dropped
//!   because the output was too slow.
//! - **Must never**: block on the output, allocate for a line that is not logged, split a line over two writes, or
//!   let a value start a new line.
//! - **Upstream**: `k8s.io/klog/v2` (text), `k8s.io/component-base/logs/json`.
//!
//! klog verbosity by level: `error!`, `warn!` and `info!` are always logged; `debug!` needs `-v 4`, `trace!` needs
//! `-v 6`. Events of libraries are logged at `-v 4` (info), `-v 8` (debug) and `-v 10` (trace), their warnings and
//! errors always.

mod json;
mod layer;
mod queue;
mod quote;
mod record;
#[cfg(test)]
mod tests;
mod text;
mod vmodule;

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

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// klog text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Configuration of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggingConfig {
    /// The format of lines.
    pub format: LogFormat,
    /// The default klog verbosity.
    pub verbosity: u32,
    /// Higher verbosity for some source files; the first match counts.
    pub vmodule: Vec<VModule>,
}

/// A format name other than `text` and `json`.
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

/// Changes the verbosity at run time.
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

    /// Changes the default verbosity (upstream's `PUT /debug/flags/v`).
    pub fn set_verbosity(&self, verbosity: u32) {
        self.shared.set_verbosity(verbosity);
    }

    /// Number of lines dropped because the output was too slow.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }
}

/// When dropped, writes the queued lines; waits at most three seconds.
#[derive(Debug)]
pub struct LogGuard(LogQueue);

impl Drop for LogGuard {
    fn drop(&mut self) {
        LogQueue::flush(&self.0, FLUSH_TIMEOUT);
    }
}

/// Timeout for writing the last lines when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Installs the log of the process, which writes to stderr. Logging does not block on stderr. The guard has to be
/// dropped last.
///
/// # Errors
/// A log is already installed, or the thread cannot be started.
pub fn init(config: &LoggingConfig) -> anyhow::Result<(LogControl, LogGuard)> {
    let (format, zone) = (config.format, TimeZone::system());
    let report = move |count| layer::dropped_line(format, &zone, count);
    let queue = LogQueue::start(std::io::stderr(), report).context("cannot start the log")?;
    let (layer, control) = build(config, queue.clone());
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).context("cannot install the log")?;
    let (own, previous) = (queue.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        // The panic may end the process, and the lines that led to it are still queued.
        LogQueue::flush(&own, FLUSH_TIMEOUT);
        previous(panic);
    }));
    let control = LogControl { queue: queue.clone(), ..control };
    Ok((control, LogGuard(queue)))
}

/// The handle of a log without output, for a kubelet inside another program.
pub fn detached(config: &LoggingConfig) -> LogControl {
    build(config, std::io::sink()).1
}

fn build<W: Write + Send + 'static>(config: &LoggingConfig, out: W) -> (KlogLayer<W>, LogControl) {
    let shared = Arc::new(LayerState::new(config.verbosity, config.vmodule.clone()));
    let layer = KlogLayer::new(Arc::clone(&shared), config.format, out);
    let queue = LogQueue::default();
    (layer, LogControl { shared, queue })
}
