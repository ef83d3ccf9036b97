//! One log event, ready for formatting.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::Level;

/// The parts of one log line.
pub(super) struct LogRecord<'a> {
    pub(super) level: Level,
    pub(super) verbosity: u32,
    pub(super) time: Timestamp,
    pub(super) zone: &'a TimeZone,
    pub(super) pid: u32,
    /// File with its directory: many files have the same name.
    pub(super) file: &'a str,
    pub(super) line: u32,
    pub(super) message: &'a str,
    /// The fields, already formatted.
    pub(super) fields: &'a str,
}
