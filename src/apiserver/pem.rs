//! PEM encoding with Go's layout. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Characters per line.
const LINE: usize = 64;

/// Appends a block with this label.
pub(super) fn add_block(label: &str, der: &[u8], text: &mut String) {
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    for (at, character) in STANDARD.encode(der).chars().enumerate() {
        if at > 0 && at % LINE == 0 {
            text.push('\n');
        }
        text.push(character);
    }
    text.push_str(&format!("\n-----END {label}-----\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_64_characters() {
        let mut text = String::new();
        add_block("KEY", &[0xff; 50], &mut text);
        add_block("CERTIFICATE", &[1], &mut text);
        let first = "/".repeat(64);
        let expected = format!(
            "-----BEGIN KEY-----\n{first}\n//8=\n-----END KEY-----\n\
             -----BEGIN CERTIFICATE-----\nAQ==\n-----END CERTIFICATE-----\n"
        );
        assert_eq!(text, expected);
    }
}
