//! Digests as text.

use std::fmt::Write as _;

/// Bytes as lower-case hexadecimal digits, two each.
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    let mut text = String::new();
    for byte in bytes {
        // A string takes all.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 10, 0xab, 255]), "000aabff");
        assert_eq!(hex(&[]), "");
    }
}
