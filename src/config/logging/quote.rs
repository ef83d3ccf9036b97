//! Quotes values in log lines, so that no value can leave its quotes or its line.

use crate::base::push_go_escaped;
use std::fmt::{self, Write};

/// Maximum length of a value in characters; longer ones are truncated, so that they cannot flood the log.
const MAX_VALUE_CHARS: usize = 16 * 1024;

/// How special characters are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Go's `strconv.Quote`.
    Go,
    Json,
}

/// Appends `value` in quotes.
pub(super) fn quote(out: &mut String, style: Style, value: &dyn fmt::Display) {
    out.push('"');
    let mut quoter = Quoter { out, style, left: MAX_VALUE_CHARS };
    // `Quoter` returns an error only to stop after truncation.
    let _ = write!(quoter, "{value}");
    out.push('"');
}

/// Escapes the text that is written to it.
struct Quoter<'a> {
    out: &'a mut String,
    style: Style,
    left: usize,
}

impl Write for Quoter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.left == 0 {
                self.out.push_str("...");
                return Err(fmt::Error);
            }
            self.left -= 1;
            match self.style {
                Style::Go => push_go_escaped(self.out, c),
                Style::Json => push_json(self.out, c),
            }
        }
        Ok(())
    }
}

fn push_json(out: &mut String, c: char) {
    let _ = match c {
        '"' | '\\' => write!(out, "\\{c}"),
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
            write!(out, "\\u{:04x}", u32::from(c))
        }
        c => out.write_char(c),
    };
}

/// An error with its sources, separated by colons.
pub(super) struct Chain<'a>(pub(super) &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        // Bounded, in case an error's sources form a cycle.
        for _ in 0..32 {
            let Some(error) = cause else { break };
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quoted(style: Style, text: &str) -> String {
        let mut out = String::new();
        quote(&mut out, style, &text);
        out
    }

    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        let cases = [
            ("plain", r#""plain""#),
            ("say \"hi\"\\", r#""say \"hi\"\\""#),
            ("a\nb\tc\rd", r#""a\nb\tc\rd""#),
            ("\u{7}\u{8}\u{c}\u{b}", r#""\a\b\f\v""#),
            ("\u{1b}[31m\u{7f}\0", r#""\x1b[31m\x7f\x00""#),
            ("hé 世界 🦀", "\"hé 世界 🦀\""),
            ("\u{202e}\u{feff}\u{2028}\u{a0}", r#""\u202e\ufeff\u2028\u00a0""#),
            ("\u{e0001}", r#""\U000e0001""#),
        ];
        for (text, expected) in cases {
            assert_eq!(quoted(Style::Go, text), expected);
        }
    }

    #[test]
    fn a_huge_value_is_cut() {
        let text = "x".repeat(MAX_VALUE_CHARS + 5);
        assert_eq!(quoted(Style::Go, &text).len(), MAX_VALUE_CHARS + 5);
        assert!(quoted(Style::Json, &text).ends_with("x...\""));
    }

    #[test]
    fn an_error_is_printed_with_its_causes() {
        let error = anyhow::anyhow!("root").context("middle").context("top");
        assert_eq!(Chain(error.as_ref()).to_string(), "top: middle: root");
    }

    proptest! {
        #[test]
        fn a_value_never_leaves_its_line_or_quotes(text in any::<String>()) {
            let go = quoted(Style::Go, &text);
            prop_assert!(!go.chars().any(char::is_control));
            let inner = go[1..go.len() - 1].replace("\\\\", "").replace("\\\"", "");
            prop_assert!(!inner.contains('"'));
        }

        #[test]
        fn json_text_reads_back_the_same(text in any::<String>()) {
            let json = quoted(Style::Json, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
