//! The context of a span, in the format of W3C Trace Context. Pure.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};

/// Names of the two headers, which are also gRPC metadata keys.
pub mod headers {
    /// Trace ID, span ID, and the sampled flag.
    pub const PARENT: &str = "traceparent";
    /// Vendor-specific data; propagated unchanged.
    pub const STATE: &str = "tracestate";
}

/// Maximum length of a `tracestate` that is propagated: the minimum that the standard requires.
const MAX_STATE: usize = 512;
const SAMPLED: u8 = 1;

/// The value of `tracestate`: printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceState(Arc<str>);

impl TraceState {
    /// The value as received.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The identity of a span, as propagated to other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanContext {
    trace: u128,
    span: u64,
    sampled: bool,
    state: Option<TraceState>,
}

impl SpanContext {
    /// The context of a trace's first span.
    pub(super) fn root(trace: u128, span: u64, sampled: bool) -> SpanContext {
        SpanContext { trace, span, sampled, state: None }
    }

    /// The context of a child span.
    pub(super) fn child(&self, span: u64) -> SpanContext {
        SpanContext { span, ..self.clone() }
    }

    /// The trace ID; not 0.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// The span ID; not 0.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// Whether the span is sampled, that is, recorded.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// The `tracestate` to propagate.
    pub fn state(&self) -> Option<&TraceState> {
        self.state.as_ref()
    }

    /// The flags for `traceparent`.
    pub(super) fn flags(&self) -> u8 {
        if self.sampled { SAMPLED } else { 0 }
    }

    /// The parent span of a request. `None` if the header is missing, repeated or invalid.
    pub fn of_headers(headers: &HeaderMap) -> Option<SpanContext> {
        let mut parents = headers.get_all(headers::PARENT).iter();
        let (parent, None) = (parents.next()?, parents.next()) else {
            return None;
        };
        let context = parse_parent(parent.as_bytes())?;
        let state = parse_state(headers);
        Some(SpanContext { state, ..context })
    }

    /// Sets the headers of a request, replacing existing ones.
    pub fn put_into(&self, headers: &mut HeaderMap) {
        if let Ok(parent) = HeaderValue::from_str(&self.to_string()) {
            headers.insert(headers::PARENT, parent);
        }
        headers.remove(headers::STATE);
        let state = self.state.as_ref();
        if let Some(Ok(state)) = state.map(|state| HeaderValue::from_str(state.as_str())) {
            headers.insert(headers::STATE, state);
        }
    }
}

/// Formats the value of `traceparent`.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span, flags) = (self.trace, self.span, self.flags());
        write!(f, "00-{trace:032x}-{span:016x}-{flags:02x}")
    }
}

/// Parses `version-trace-span-flags`. Later versions may append further fields after a `-`.
fn parse_parent(text: &[u8]) -> Option<SpanContext> {
    let mut parts = text.split(|byte| *byte == b'-');
    let version = hex(parts.next()?, 2)?;
    let trace = hex(parts.next()?, 32)?;
    let span = u64::try_from(hex(parts.next()?, 16)?).ok()?;
    let flags = u8::try_from(hex(parts.next()?, 2)?).ok()?;
    let more = parts.next().is_some();
    if version == 0xff || (version == 0 && more) || trace == 0 || span == 0 {
        return None;
    }
    Some(SpanContext::root(trace, span, flags & SAMPLED != 0))
}

/// Parses a number of exactly that many lower-case hexadecimal digits.
fn hex(digits: &[u8], number: usize) -> Option<u128> {
    let lower = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let text = std::str::from_utf8(digits).ok()?;
    let right = digits.len() == number && digits.iter().all(lower);
    right.then(|| u128::from_str_radix(text, 16).ok())?
}

/// Joins repeated headers to one list. If it is too long or not text it is dropped completely, as the standard
/// allows.
fn parse_state(headers: &HeaderMap) -> Option<TraceState> {
    let mut joined = String::new();
    for value in headers.get_all(headers::STATE) {
        let text = value.to_str().ok()?.trim();
        if text.is_empty() {
            continue;
        }
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(text);
        if joined.len() > MAX_STATE {
            return None;
        }
    }
    (!joined.is_empty()).then(|| TraceState(joined.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parse(lines: &[(&'static str, &str)]) -> Option<SpanContext> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        SpanContext::of_headers(&headers)
    }

    #[test]
    fn a_parent_is_read_as_the_standard_has_it() {
        let found = parse(&[(headers::PARENT, GOOD)]).unwrap();
        assert_eq!(found.trace(), 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(found.span(), 0xb7ad_6b71_6920_3331);
        assert!(found.is_sampled());
        assert_eq!(found.to_string(), GOOD);
        for (text, sampled) in [
            (GOOD.replace("-01", "-00"), false),
            (GOOD.replace("-01", "-02"), false),
            (GOOD.replace("-01", "-ff"), true),
            (GOOD.replacen("00-", "cc-", 1), true),
            (GOOD.replacen("00-", "cc-", 1) + "-what-else", true),
        ] {
            let found = parse(&[(headers::PARENT, &text)]);
            let found = found.map(|context| context.is_sampled());
            assert_eq!(found, Some(sampled), "{text}");
        }
    }

    #[test]
    fn what_is_no_parent_is_none() {
        for text in [
            "".to_owned(),
            "00".to_owned(),
            GOOD.to_uppercase(),
            GOOD.replacen("00-", "ff-", 1),
            GOOD.replacen("00-", "0-", 1),
            GOOD.to_owned() + "-more",
            GOOD.to_owned() + "0",
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            GOOD.replace("b7ad6b7169203331", "b7ad6b716920333"),
            GOOD.replace("b7ad6b7169203331", "+7ad6b7169203331"),
            GOOD.replace("b7ad6b7169203331", "b7ad6b716920333é"),
        ] {
            assert_eq!(parse(&[(headers::PARENT, &text)]), None, "{text}");
        }
        let twice = [(headers::PARENT, GOOD), (headers::PARENT, GOOD)];
        assert_eq!(parse(&twice), None, "of two it is none");
    }

    #[test]
    fn what_goes_along_is_handed_on_in_one_line_unless_it_is_too_long() {
        let long = format!("a={}", "x".repeat(MAX_STATE));
        for (states, expected) in [
            (&[][..], None),
            (&["", " "][..], None),
            (&["a=1, b=2"][..], Some("a=1, b=2")),
            (&["a=1", "", "b=2"][..], Some("a=1,b=2")),
            (&["a=é"][..], None),
            (&[long.as_str()][..], None),
        ] {
            let mut lines = vec![(headers::PARENT, GOOD)];
            lines.extend(states.iter().map(|state| (headers::STATE, *state)));
            let found = parse(&lines).unwrap();
            let state = found.state().map(TraceState::as_str);
            assert_eq!(state, expected, "{states:?}");
            let mut sent = HeaderMap::new();
            sent.insert(headers::STATE, HeaderValue::from_static("old=1"));
            found.child(7).put_into(&mut sent);
            let again = SpanContext::of_headers(&sent).unwrap();
            assert_eq!(again, found.child(7));
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_is_read_again(trace in 1u128.., span in 1u64.., sampled: bool) {
            let context = SpanContext::root(trace, span, sampled);
            let mut sent = HeaderMap::new();
            context.put_into(&mut sent);
            prop_assert_eq!(SpanContext::of_headers(&sent), Some(context));
        }

        #[test]
        fn nonsense_is_no_parent_and_no_harm(text in prop_oneof!["[0-9a-f-]{0,70}", "\\PC{0,70}"]) {
            if let Some(found) = parse_parent(text.as_bytes()) {
                prop_assert!(found.trace() != 0 && found.span() != 0);
            }
        }
    }
}
