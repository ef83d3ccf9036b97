//! component-base's JSON format:
//! `{"ts":1637474585678.901,"caller":"dir/file.rs:12","msg":"Message","v":0,"key":"value"}`.

use std::fmt::Write;

use tracing::Level;

use super::quote::{Style, quote};
use super::record::LogRecord;

/// Appends one line. `record.fields` holds `,"key":value` pairs. Errors have no verbosity.
pub(super) fn write_line(out: &mut String, record: &LogRecord<'_>) {
    let micros = record.time.as_microsecond();
    let _ = write!(out, "{{\"ts\":{}", micros.div_euclid(1_000));
    let fraction = micros.rem_euclid(1_000);
    if fraction > 0 {
        let digits = format!("{fraction:03}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
    let _ = write!(out, ",\"caller\":\"{}:{}\",\"msg\":", record.file, record.line);
    quote(out, Style::Json, &record.message);
    if record.level != Level::ERROR {
        let _ = write!(out, ",\"v\":{}", record.verbosity);
    }
    out.push_str(record.fields);
    out.push_str("}\n");
}

/// Starts one `,"key":` of a JSON line.
pub(super) fn key(out: &mut String, name: &str) {
    out.push(',');
    quote(out, Style::Json, &name);
    out.push(':');
}
