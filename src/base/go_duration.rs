//! Go durations, as `metav1.Duration` and duration flags write them: `1m30s`, `100ms`, `-1.5h`.
//!
//! Parsing and printing follow Go's `time.ParseDuration` and `Duration.String` exactly, so that a
//! value read from a Go kubelet's configuration means the same here and prints the same in
//! `/configz`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Go's zero time, which stands for a time that is not set.
pub const GO_ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Maximum magnitude that Go's parser accepts before the sign is applied: 2^63 nanoseconds.
const LIMIT: u64 = 1 << 63;

/// A signed duration in nanoseconds, Go's `time.Duration`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is not a Go duration; displays as the predicate of a sentence about the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// Not a sequence of decimal numbers with units.
    #[error("is not a duration: write for example \"1m30s\", \"100ms\" or \"0s\"")]
    Invalid,
    /// A number has no unit after it.
    #[error("has no unit: write for example \"30s\" or \"2m\"")]
    MissingUnit,
    /// A unit that Go does not know.
    #[error("has the unknown unit {0:?}: the units are ns, us, ms, s, m and h")]
    UnknownUnit(String),
    /// The duration exceeds Go's range of about 292 years.
    #[error("is too long: the limit is about 292 years")]
    Overflow,
}

impl GoDuration {
    /// A duration of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// A duration of `millis` milliseconds; saturates at the type's limits.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A duration of `secs` seconds; saturates at the type's limits.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Truncated to milliseconds, for messages.
    pub const fn truncated_to_millis(self) -> Self {
        Self(self.0 - self.0 % 1_000_000)
    }

    /// The signed length in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whether the duration is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Converts to an unsigned duration; a negative one becomes zero (validation rejects negative values before use).
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

/// Saturates at about 292 years.
impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // Micro sign (U+00B5) and Greek mu (U+03BC) are both in use.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Splits off leading decimal digits.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn whole_part(digits: &str) -> Result<u64, ParseDurationError> {
    let mut value: u64 = 0;
    for digit in digits.bytes().map(|b| u64::from(b - b'0')) {
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(digit))
            .filter(|v| *v <= LIMIT)
            .ok_or(ParseDurationError::Overflow)?;
    }
    Ok(value)
}

/// The digits of the fraction as an integer, and its scale; digits that do not fit are ignored.
fn fraction_part(digits: &str) -> (u64, f64) {
    let (mut value, mut scale) = (0u64, 1f64);
    for digit in digits.bytes().map(|b| u64::from(b - b'0')) {
        let next = value.checked_mul(10).and_then(|v| v.checked_add(digit));
        match next.filter(|v| *v <= LIMIT) {
            Some(next) => (value, scale) = (next, scale * 10.0),
            None => break,
        }
    }
    (value, scale)
}

/// Parses one number with its unit; returns its nanoseconds and the rest of the text.
fn parse_term(text: &str) -> Result<(u64, &str), ParseDurationError> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(ParseDurationError::Invalid);
    }
    let value = whole_part(whole)?;
    let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at_checked(end).unwrap_or((rest, ""));
    if unit.is_empty() {
        return Err(ParseDurationError::MissingUnit);
    }
    let nanos = unit_nanos(unit).ok_or_else(|| ParseDurationError::UnknownUnit(unit.to_owned()))?;
    let mut total =
        value.checked_mul(nanos).filter(|v| *v <= LIMIT).ok_or(ParseDurationError::Overflow)?;
    let (fraction, scale) = fraction_part(fraction);
    if fraction > 0 {
        // In floating point, for the same rounding as Go.
        let extra = (fraction as f64 * (nanos as f64 / scale)) as u64;
        total =
            total.checked_add(extra).filter(|v| *v <= LIMIT).ok_or(ParseDurationError::Overflow)?;
    }
    Ok((total, rest))
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(ParseDurationError::Invalid);
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (nanos, tail) = parse_term(rest)?;
            total = total
                .checked_add(nanos)
                .filter(|v| *v <= LIMIT)
                .ok_or(ParseDurationError::Overflow)?;
            rest = tail;
        }
        if negative {
            return Ok(Self(0i64.wrapping_sub_unsigned(total)));
        }
        i64::try_from(total).map(Self).map_err(|_| ParseDurationError::Overflow)
    }
}

/// Writes `value / 10^digits` without trailing zeros in the fraction.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, digits: u32) -> fmt::Result {
    let unit = 10u64.pow(digits);
    write!(f, "{}", value / unit)?;
    let fraction = value % unit;
    if fraction > 0 {
        let text = format!("{fraction:0width$}", width = digits as usize);
        write!(f, ".{}", text.trim_end_matches('0'))?;
    }
    Ok(())
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match self.0.unsigned_abs() {
            0 => f.write_str("0s"),
            n if n < 1_000 => write!(f, "{n}ns"),
            n if n < 1_000_000 => write_scaled(f, n, 3).and_then(|()| f.write_str("\u{b5}s")),
            n if n < 1_000_000_000 => write_scaled(f, n, 6).and_then(|()| f.write_str("ms")),
            n => {
                let minutes = n / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write_scaled(f, n % 60_000_000_000, 9)?;
                f.write_str("s")
            }
        }
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"1m30s\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<GoDuration, E> {
        text.parse().map_err(|error| E::custom(format_args!("{text:?} {error}")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<GoDuration, E> {
        Err(E::custom(format_args!(
            "the number {number} has no unit: write for example \"{number}s\""
        )))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<GoDuration, E> {
        self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_parse_as_go_parses_them() {
        let cases: &[(&str, i64)] = &[
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("1m30s", 90_000_000_000),
            ("100ms", 100_000_000),
            ("1h", 3_600_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-1h", -3_600_000_000_000),
            ("+2us", 2_000),
            ("2\u{b5}s", 2_000),
            ("2\u{3bc}s", 2_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("9007199254740993ns", 9_007_199_254_740_993),
        ];
        for (text, nanos) in cases {
            assert_eq!(text.parse(), Ok(GoDuration(*nanos)), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_with_its_reason() {
        use ParseDurationError::*;
        let cases: &[(&str, ParseDurationError)] = &[
            ("", Invalid),
            ("-", Invalid),
            ("s", Invalid),
            (".", Invalid),
            (".s", Invalid),
            ("1 s", UnknownUnit(" s".into())),
            ("3", MissingUnit),
            ("1m30", MissingUnit),
            ("1d", UnknownUnit("d".into())),
            ("1e3s", UnknownUnit("e".into())),
            ("9223372036854775808ns", Overflow),
            ("3000000h", Overflow),
            ("99999999999999999999s", Overflow),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<GoDuration>(), Err(error.clone()), "{text}");
        }
    }

    #[test]
    fn durations_print_as_go_prints_them() {
        let cases: &[(i64, &str)] = &[
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (345_000_000, "345ms"),
            (1_500_000_000, "1.5s"),
            (90_000_000_000, "1m30s"),
            (300_000_000_000, "5m0s"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (245_000_000_000, "4m5s"),
            (3_600_000_000_000, "1h0m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (-1, "-1ns"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(GoDuration(*nanos).to_string(), *text);
        }
    }

    #[test]
    fn texts_for_people_stop_at_milliseconds() {
        let table = [
            (999_999, "0s"),
            (7_000_001, "7ms"),
            (15_981_654_321, "15.981s"),
            (3_661_010_999_999, "1h1m1.01s"),
        ];
        for (nanos, text) in table {
            let duration = GoDuration::from(Duration::from_nanos(nanos));
            assert_eq!(duration.truncated_to_millis().to_string(), text);
        }
        assert_eq!(GoDuration::from(Duration::MAX), GoDuration(i64::MAX));
    }

    proptest! {
        #[test]
        fn printing_and_parsing_return_the_same_duration(
            // Above 2^53 Go itself loses digits of a fraction to floating point.
            nanos in -(1i64 << 53)..(1i64 << 53)
        ) {
            let printed = GoDuration(nanos).to_string();
            prop_assert_eq!(printed.parse(), Ok(GoDuration(nanos)));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,24}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
