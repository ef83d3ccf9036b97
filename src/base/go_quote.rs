//! Quotes text like Go's `strconv.Quote`, so that no content can leave its quotes or its line.

use std::fmt::Write as _;

/// The text in double quotes.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| push_go_escaped(&mut out, c));
    out.push('"');
    out
}

/// Appends one character, escaped if necessary.
pub fn push_go_escaped(out: &mut String, c: char) {
    let short = match c {
        '"' | '\\' => Some(c),
        '\u{7}' => Some('a'),
        '\u{8}' => Some('b'),
        '\u{c}' => Some('f'),
        '\n' => Some('n'),
        '\r' => Some('r'),
        '\t' => Some('t'),
        '\u{b}' => Some('v'),
        _ => None,
    };
    let code = u32::from(c);
    let _ = match short {
        Some(letter) => write!(out, "\\{letter}"),
        None if is_printable(c) => out.write_char(c),
        None if code < 0x80 => write!(out, "\\x{code:02x}"),
        None if code < 0x10000 => write!(out, "\\u{code:04x}"),
        None => write!(out, "\\U{code:08x}"),
    };
}

/// Whether a character is printable as Go defines it, also as combining mark. Control and format characters
/// (including bidirectional overrides), unusual spaces, unassigned and private code points are not.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_graphic() || c == ' ';
    }
    // `escape_debug` escapes characters that are not printable, and combining marks at the start of a string.
    c.escape_debug().count() == 1 || {
        let after_a_letter: String = ['a', c].iter().collect();
        after_a_letter.escape_debug().count() == 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        for (text, expected) in [
            ("", r#""""#),
            ("say \"hi\"\\", r#""say \"hi\"\\""#),
            ("a\nb\tc\rd", r#""a\nb\tc\rd""#),
            ("\u{1b}[31m\u{7f}\0", r#""\x1b[31m\x7f\x00""#),
            ("hé 世界", "\"hé 世界\""),
            // Marks that belong to the letter before them.
            ("e\u{301} ก็ की", "\"e\u{301} ก็ की\""),
            ("\u{200c}\u{9b}", r#""\u200c\u009b""#),
            ("\u{202e}\u{e0001}", r#""\u202e\U000e0001""#),
        ] {
            assert_eq!(go_quote(text), expected);
        }
    }
}
