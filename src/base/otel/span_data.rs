//! The data of a span.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::context::SpanContext;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceSpanKind {
    /// An internal operation.
    Internal,
    /// The handling of a request.
    Server,
    /// An outgoing call.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// Text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> AttributeValue {
        AttributeValue::Text(text.into())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> AttributeValue {
        AttributeValue::Text(text.into())
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> AttributeValue {
        AttributeValue::Number(number)
    }
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub(super) struct SpanData {
    pub(super) context: SpanContext,
    /// The parent span's ID, and whether it is a remote one.
    pub(super) parent: Option<(u64, bool)>,
    pub(super) link: Option<SpanContext>,
    pub(super) kind: TraceSpanKind,
    pub(super) name: Cow<'static, str>,
    pub(super) began: SystemTime,
    pub(super) took: Duration,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    /// The error message, if the span failed.
    pub(super) failure: Option<String>,
}
