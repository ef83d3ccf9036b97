//! Hexadecimal and percent-encoding (RFC 3986, strict).

use percent_encoding::percent_decode_str;
use std::fmt::Write as _;

/// Lower-case hexadecimal digits, two per byte.
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    let mut text = String::new();
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Decodes a percent-encoded text; `None` if a `%` is not followed by two hexadecimal digits.
pub fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let mut encoded = text.as_bytes().split(|byte| *byte == b'%').skip(1);
    let good = encoded.all(|rest| is_digit(rest.first()) && is_digit(rest.get(1)));
    good.then(|| percent_decode_str(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 10, 0xab, 255]), "000aabff");
        assert_eq!(hex(&[]), "");
    }

    #[test]
    fn what_is_no_encoding_is_refused() {
        for (text, expected) in [
            ("", Some("")),
            ("a+b", Some("a+b")),
            ("%41%2fb", Some("A/b")),
            ("%c3%A9", Some("é")),
            ("%2541", Some("%41")),
            ("%", None),
            ("%4", None),
            ("%4%41", None),
            ("%+1", None),
            ("%zz", None),
        ] {
            let decoded = percent_decoded(text);
            assert_eq!(decoded.as_deref(), expected.map(str::as_bytes), "{text}");
        }
    }
}
