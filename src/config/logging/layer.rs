//! The tracing layer: filters events, collects fields, writes lines.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record as SpanRecord};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::quote::{Chain, Style, quote};
use super::record::LogRecord;
use super::vmodule::{VModule, verbosity_at};
use super::{LogFormat, json, text};
use crate::base::clock;

/// klog verbosities of this crate's `debug!` and `trace!`, and of events of libraries.
const DEBUG: u32 = 4;
const TRACE: u32 = 6;
const LIBRARY_INFO: u32 = 4;
const LIBRARY_DEBUG: u32 = 8;
const LIBRARY_TRACE: u32 = 10;

/// A line buffer with a larger capacity is freed after use.
const KEPT_CAPACITY: usize = 8 * 1024;

/// The verbosity settings.
pub(super) struct LayerState {
    verbosity: AtomicU32,
    rules: Vec<VModule>,
}

impl LayerState {
    pub(super) fn new(verbosity: u32, rules: Vec<VModule>) -> Self {
        Self { verbosity: AtomicU32::new(verbosity), rules }
    }

    pub(super) fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub(super) fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
        rebuild_interest();
    }

    /// Rules only raise the verbosity. Called once per callsite, not per event: tracing caches the result until its
    /// interest cache is rebuilt.
    fn shows(&self, metadata: &Metadata<'_>) -> bool {
        let needed = needed_verbosity(metadata);
        needed <= self.verbosity()
            || verbosity_at(&self.rules, metadata.file()).is_some_and(|v| needed <= v)
    }

    fn highest(&self) -> u32 {
        self.rules.iter().map(|rule| rule.verbosity).fold(self.verbosity(), u32::max)
    }
}

/// Makes tracing evaluate every callsite again.
fn rebuild_interest() {
    tracing::callsite::rebuild_interest_cache();
}

/// The minimum klog verbosity at which such an event is logged.
fn needed_verbosity(metadata: &Metadata<'_>) -> u32 {
    let ours = metadata.target().split("::").next() == Some(env!("CARGO_PKG_NAME"));
    match (*metadata.level(), ours) {
        (Level::ERROR | Level::WARN, _) | (Level::INFO, true) => 0,
        (Level::DEBUG, true) => DEBUG,
        (Level::TRACE, true) => TRACE,
        (Level::INFO, false) => LIBRARY_INFO,
        (Level::DEBUG, false) => LIBRARY_DEBUG,
        (Level::TRACE, false) => LIBRARY_TRACE,
    }
}

fn write_record(record: &LogRecord<'_>, format: LogFormat, line: &mut String) {
    match format {
        LogFormat::Text => text::write_line(line, record),
        LogFormat::Json => json::write_line(line, record),
    }
}

/// The line that reports the number of dropped lines.
pub(super) fn dropped_line(format: LogFormat, zone: &TimeZone, count: u64) -> String {
    let mut fields = String::new();
    match format {
        LogFormat::Text => text::key(&mut fields, "count"),
        LogFormat::Json => json::key(&mut fields, "count"),
    }
    let _ = write!(fields, "{count}");
    let record = LogRecord {
        level: Level::WARN,
        verbosity: 0,
        time: clock::timestamp(),
        zone,
        pid: std::process::id(),
        file: caller(file!()),
        line: line!(),
        message: "Log lines were dropped because they were not read in time",
        fields: &fields,
    };
    let mut line = String::new();
    write_record(&record, format, &mut line);
    line
}

/// Writes events to `W`, one `write` per line.
pub(super) struct KlogLayer<W> {
    shared: Arc<LayerState>,
    format: LogFormat,
    zone: TimeZone,
    pid: u32,
    out: Mutex<W>,
}

impl<W: Write + Send> KlogLayer<W> {
    pub(super) fn new(shared: Arc<LayerState>, format: LogFormat, out: W) -> Self {
        let (zone, pid) = (TimeZone::system(), std::process::id());
        Self { shared, format, zone, pid, out: Mutex::new(out) }
    }

    #[cfg(test)]
    pub(super) fn with_identity(mut self, zone: TimeZone, pid: u32) -> Self {
        (self.zone, self.pid) = (zone, pid);
        self
    }
}

/// The formatted fields of a span, stored with the span.
#[derive(Default)]
struct SpanFields {
    text: String,
    /// The names of the fields, and where each starts in the text.
    starts: Vec<(&'static str, usize)>,
}

impl SpanFields {
    /// The fields that the event does not have itself.
    fn beside<'a>(&'a self, event: &'a Event<'_>) -> impl Iterator<Item = &'a str> {
        let ends = self.starts.iter().skip(1).map(|(_, start)| *start);
        let fields = self.starts.iter().zip(ends.chain([self.text.len()]));
        let own = event.metadata().fields();
        let beside = fields.filter(move |((name, _), _)| own.field(name).is_none());
        beside.filter_map(|((_, start), end)| self.text.get(*start..end))
    }
}

/// Buffers of one thread, reused from line to line.
#[derive(Default)]
struct LineBuffers {
    line: String,
    message: String,
    fields: String,
}

thread_local! {
    static SCRATCH: RefCell<LineBuffers> = RefCell::default();
}

/// Calls `work` with this thread's buffers, or with new ones if the formatting of a value logs an event itself.
fn with_scratch(work: impl FnOnce(&mut LineBuffers)) {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => {
            work(&mut scratch);
            let LineBuffers { line, message, fields } = &mut *scratch;
            for buffer in [line, message, fields] {
                buffer.clear();
                buffer.shrink_to(KEPT_CAPACITY);
            }
        }
        Err(_) => work(&mut LineBuffers::default()),
    });
}

impl<S, W> Layer<S> for KlogLayer<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + Send + 'static,
{
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.shared.shows(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.shared.shows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.shared.highest() {
            0..DEBUG => LevelFilter::INFO,
            DEBUG..TRACE => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = SpanFields::default();
        let mut message = String::new();
        attributes.record(&mut Fields {
            format: self.format,
            fields: &mut fields.text,
            starts: Some(&mut fields.starts),
            message: &mut message,
        });
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &SpanRecord<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut message = String::new();
        let mut extensions = span.extensions_mut();
        if let Some(fields) = extensions.get_mut::<SpanFields>() {
            values.record(&mut Fields {
                format: self.format,
                fields: &mut fields.text,
                starts: Some(&mut fields.starts),
                message: &mut message,
            });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        with_scratch(|scratch| {
            let LineBuffers { line, message, fields } = scratch;
            for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
                if let Some(known) = span.extensions().get::<SpanFields>() {
                    known.beside(event).for_each(|field| fields.push_str(field));
                }
            }
            event.record(&mut Fields { format: self.format, fields, starts: None, message });
            let metadata = event.metadata();
            let path = metadata.file().unwrap_or("unknown");
            let record = LogRecord {
                level: *metadata.level(),
                verbosity: needed_verbosity(metadata),
                time: clock::timestamp(),
                zone: &self.zone,
                pid: self.pid,
                file: caller(path),
                line: metadata.line().unwrap_or(0),
                message,
                fields,
            };
            write_record(&record, self.format, line);
            // A write error cannot be reported anywhere.
            let _ = self.out.lock().write_all(line.as_bytes());
        });
    }
}

/// The last two components of a path.
fn caller(path: &str) -> &str {
    let mut slashes = path.rmatch_indices('/').map(|(at, _)| at);
    let start = slashes.nth(1).map_or(0, |at| at + 1);
    path.get(start..).unwrap_or(path)
}

/// Collects the formatted fields of an event or span, and its message separately.
struct Fields<'a> {
    format: LogFormat,
    fields: &'a mut String,
    /// Where each field starts, if that is needed.
    starts: Option<&'a mut Vec<(&'static str, usize)>>,
    message: &'a mut String,
}

impl Fields<'_> {
    fn key(&mut self, field: &Field) {
        if let Some(starts) = &mut self.starts {
            starts.push((field.name(), self.fields.len()));
        }
        let name = match field.name() {
            // Upstream's key for errors.
            "error" => "err",
            // `message` is reserved by tracing for the event's message.
            "event_message" => "message",
            name => name.strip_prefix("r#").unwrap_or(name),
        };
        match self.format {
            LogFormat::Text => text::key(self.fields, name),
            LogFormat::Json => json::key(self.fields, name),
        }
    }

    fn bare(&mut self, field: &Field, value: &dyn fmt::Display) {
        self.key(field);
        let _ = write!(self.fields, "{value}");
    }

    fn quoted(&mut self, field: &Field, value: &dyn fmt::Display) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value}");
            return;
        }
        self.key(field);
        let style = match self.format {
            LogFormat::Text => Style::Go,
            LogFormat::Json => Style::Json,
        };
        quote(self.fields, style, value);
    }
}

impl Visit for Fields<'_> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field, &value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.bare(field, &value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.bare(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no representation of infinities and NaN.
        if value.is_finite() { self.bare(field, &value) } else { self.quoted(field, &value) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.quoted(field, &value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.quoted(field, &Chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.quoted(field, &format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_logs_while_it_is_formatted_gets_buffers_of_its_own() {
        with_scratch(|outer| {
            outer.line.push_str("outer");
            with_scratch(|inner| {
                assert_eq!(inner.line, "");
                inner.line.push_str("inner");
            });
            assert_eq!(outer.line, "outer");
        });
        with_scratch(|next| assert_eq!(next.line, ""));
    }
}
