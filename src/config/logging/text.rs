//! klog's text format: `I1121 03:04:05.678901    1234 dir/file.rs:12] "Message" key="value"`.

use std::fmt::Write;

use tracing::Level;

use super::quote::{Style, quote};
use super::record::LogRecord;

/// Appends one line. `record.fields` holds ` key=value` pairs.
pub(super) fn write_line(out: &mut String, record: &LogRecord<'_>) {
    let severity = match record.level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let at = record.zone.to_datetime(record.time);
    let _ = write!(
        out,
        "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {}:{}] ",
        at.month(),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.subsec_nanosecond() / 1_000,
        record.pid,
        record.file,
        record.line,
    );
    quote(out, Style::Go, &record.message);
    out.push_str(record.fields);
    out.push('\n');
}

/// Starts one ` key=` of a text line.
pub(super) fn key(out: &mut String, name: &str) {
    out.push(' ');
    out.push_str(name);
    out.push('=');
}
