//! What is recorded of a span.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::context::SpanContext;

/// What a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceSpanKind {
    /// Work of its own.
    Internal,
    /// A request that is answered.
    Server,
    /// A call that is made.
    Client,
}

/// An attribute's value.
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
    /// The span above, and whether it is another process's.
    pub(super) parent: Option<(u64, bool)>,
    pub(super) link: Option<SpanContext>,
    pub(super) kind: TraceSpanKind,
    pub(super) name: Cow<'static, str>,
    pub(super) began: SystemTime,
    pub(super) took: Duration,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    /// Why it failed, if it did.
    pub(super) failure: Option<String>,
}
