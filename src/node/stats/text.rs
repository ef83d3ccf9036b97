//! Writes the Prometheus text format 0.0.4. Pure.

use std::fmt::Write as _;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MetricValue {
    Whole(u64),
    /// Nanoseconds, written as seconds.
    Nanos(u64),
    /// Microseconds, written as seconds.
    Micros(u64),
}

/// A buffer of formatted metrics.
#[derive(Debug, Default)]
pub(super) struct Text {
    out: String,
}

impl Text {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { out: String::with_capacity(bytes) }
    }

    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// Writes the `HELP` and `TYPE` lines of a family.
    pub(super) fn head(&mut self, name: &str, help: &str, kind: MetricKind) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"] {
            self.out.push_str(part);
        }
    }

    /// Writes one sample. `labels` are formatted by [`LabelText`]; `more` are additional labels. `at` is in nanoseconds
    /// since the epoch.
    pub(super) fn sample(
        &mut self,
        name: &str,
        labels: &str,
        more: &[(&str, &str)],
        value: MetricValue,
        at: Option<i64>,
    ) {
        self.out.push_str(name);
        if !labels.is_empty() || !more.is_empty() {
            self.out.push('{');
            self.out.push_str(labels);
            for (number, (label, value)) in more.iter().enumerate() {
                if number > 0 || !labels.is_empty() {
                    self.out.push(',');
                }
                pair(&mut self.out, label, value);
            }
            self.out.push('}');
        }
        self.out.push(' ');
        self.value(value);
        if let Some(at) = at {
            // Writing to a string cannot fail.
            let _ = write!(self.out, " {}", at.div_euclid(1_000_000));
        }
        self.out.push('\n');
    }

    fn value(&mut self, value: MetricValue) {
        let nanos = match value {
            MetricValue::Whole(number) => {
                let _ = write!(self.out, "{number}");
                return;
            }
            MetricValue::Nanos(nanos) => nanos,
            MetricValue::Micros(micros) => micros.saturating_mul(1000),
        };
        let _ = write!(self.out, "{}", nanos / SECOND);
        let rest = nanos % SECOND;
        if rest > 0 {
            let _ = write!(self.out, ".{rest:09}");
            let length = self.out.trim_end_matches('0').len();
            self.out.truncate(length);
        }
    }
}

/// Formatted labels, which many samples share.
#[derive(Debug, Default)]
pub(super) struct LabelText(String);

impl LabelText {
    pub(super) fn and(mut self, label: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        pair(&mut self.0, label, value);
        self
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

fn pair(out: &mut String, label: &str, value: &str) {
    out.push_str(label);
    out.push_str("=\"");
    if value.contains(['\\', '"', '\n']) {
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
    } else {
        out.push_str(value);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_and_seconds_have_no_zeros_too_many() {
        for (value, expected) in [
            (MetricValue::Whole(0), "0"),
            (MetricValue::Whole(u64::MAX), "18446744073709551615"),
            (MetricValue::Nanos(0), "0"),
            (MetricValue::Nanos(10 * SECOND), "10"),
            (MetricValue::Nanos(1), "0.000000001"),
            (MetricValue::Nanos(1_500_000_000), "1.5"),
            (MetricValue::Micros(70), "0.00007"),
            (MetricValue::Micros(u64::MAX), "18446744073.709551615"),
        ] {
            let mut text = Text::default();
            text.sample("a", "", &[], value, None);
            assert_eq!(text.take(), format!("a {expected}\n"));
        }
    }

    #[test]
    fn hostile_labels_stay_in_their_quotes_and_moments_are_milliseconds() {
        let labels = LabelText::default().and("a", "x\"} 1\n\\").and("b", "").finish();
        let mut text = Text::default();
        text.head("n", "Help", MetricKind::Counter);
        text.sample("n", &labels, &[("c", "é")], MetricValue::Whole(1), Some(1_234_567_890));
        let expected =
            "# HELP n Help\n# TYPE n counter\nn{a=\"x\\\"} 1\\n\\\\\",b=\"\",c=\"é\"} 1 1234\n";
        assert_eq!(text.take(), expected);
    }
}
