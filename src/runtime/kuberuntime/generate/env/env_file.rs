//! Environment files that one container writes for another (`fileKeyRef`). Pure.
//!
//! A strict subset of shell syntax: `NAME='value'`, one after the other. Everything between the quotes is the value,
//! line breaks included; there are no escapes. Empty lines, lines that begin with `#`, blanks before a name and comments
//! after a value are skipped. Errors never contain the file's content, which may be a secret.

use anyhow::{Context as _, bail};

/// Maximum size of a file, bytes.
pub const MAX_FILE: usize = 4 << 20;

/// The value of `key` in a file; empty if its value is empty or the key does not exist. Like upstream's, it
/// stops at the key: what comes after is not validated.
pub fn value_of_key(file: &[u8], key: &str) -> anyhow::Result<String> {
    let text = std::str::from_utf8(file).ok();
    let text = text.context("invalid environment variable format: the file is not UTF-8 text")?;
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let invalid =
            |what| format!("invalid environment variable format at line {number}: {what}");
        let parts = line.split_once('=');
        let (name, value) = parts.with_context(|| invalid("missing '='"))?;
        match name.trim_end_matches(BLANKS) {
            "" => bail!(invalid("empty variable name")),
            trimmed if trimmed != name => {
                bail!(invalid("whitespace before '=' is not allowed"))
            }
            _ => {}
        }
        let wanted = name == key;
        if value.starts_with(BLANKS) {
            // A shell assigns nothing here and takes the rest for a command.
            if wanted {
                return Ok(String::new());
            } else {
                continue;
            }
        }
        let first = value
            .strip_prefix('\'')
            .with_context(|| invalid("value must be enclosed in single quotes"))?;
        let value = quoted(number, first, &mut lines)?;
        if wanted {
            return Ok(value);
        }
    }
    Ok(String::new())
}

const BLANKS: [char; 2] = [' ', '\t'];

/// The rest of a quoted value that begins in line `start`.
fn quoted<'a>(
    start: usize,
    first: &str,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> anyhow::Result<String> {
    let mut value = String::new();
    let (mut number, mut rest) = (start, first);
    loop {
        if let Some((end, behind)) = rest.split_once('\'') {
            value.push_str(end);
            let behind = behind.trim_start_matches(BLANKS);
            return if behind.is_empty() || behind.starts_with('#') {
                Ok(value)
            } else {
                bail!(
                    "invalid environment variable format at line {number}: unexpected content after closing quote"
                )
            };
        }
        value.push_str(rest);
        value.push('\n');
        (number, rest) = lines.next().with_context(|| {
            format!("invalid environment variable format starting at line {start}: unclosed single quote")
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, key: &str) -> anyhow::Result<String> {
        value_of_key(text.as_bytes(), key)
    }

    #[test]
    fn values_are_what_stands_between_the_quotes() {
        for (text, key, value) in [
            ("A='1'\nB='2'\n", "B", "2"),
            ("  A='1'\n\t\tB='2'", "B", "2"),
            ("# a remark\n\n   # another\nA='x # y'\n", "A", "x # y"),
            ("A='1' # a remark\nB='2'#another\n", "B", "2"),
            ("A='  a b  '\n", "A", "  a b  "),
            ("A='$B \\n \"q\"'\n", "A", "$B \\n \"q\""),
            ("A='x=y=z'\n", "A", "x=y=z"),
            ("A='one\ntwo\n\n  # three'\nB='2'\n", "A", "one\ntwo\n\n  # three"),
            ("A='one\ntwo'\nB='2'\n", "B", "2"),
            ("A='1'\r\nB='2\r\n3'\r\n", "B", "2\n3"),
            ("A=''\n", "A", ""),
            ("A='1'\n", "B", ""),
            ("", "A", ""),
            ("A= '1'\nB='2'\n", "A", ""),
            ("A= '1'\nB='2'\n", "B", "2"),
            ("a.b-c='1'\n", "a.b-c", "1"),
            // The first of two stands, and nothing after it is read.
            ("A='1'\nA='2'\nnonsense\n", "A", "1"),
        ] {
            assert_eq!(read(text, key).unwrap(), value, "{text:?} {key}");
        }
    }

    #[test]
    fn anything_else_is_an_error_that_names_the_line() {
        for (text, error) in [
            ("A='1'\nnonsense\n", "at line 2: missing '='"),
            ("='1'\n", "at line 1: empty variable name"),
            ("A ='1'\n", "at line 1: whitespace before '=' is not allowed"),
            ("A = '1'\n", "at line 1: whitespace before '=' is not allowed"),
            ("export A='1'\nA=1\n", "at line 2: value must be enclosed in single quotes"),
            ("\nA=\"1\"\n", "at line 2: value must be enclosed in single quotes"),
            ("A=\n", "at line 1: value must be enclosed in single quotes"),
            ("A='1'x\n", "at line 1: unexpected content after closing quote"),
            ("A='1'\\''2'\n", "at line 1: unexpected content after closing quote"),
            ("A='one\ntwo' three\n", "at line 2: unexpected content after closing quote"),
            ("\n\nA='one\ntwo\n", "starting at line 3: unclosed single quote"),
        ] {
            let error = format!("invalid environment variable format {error}");
            assert_eq!(read(text, "Z").unwrap_err().to_string(), error, "{text:?}");
        }
        assert_eq!(
            value_of_key(b"A='\xff'", "A").unwrap_err().to_string(),
            "invalid environment variable format: the file is not UTF-8 text"
        );
        let text = read("x=secret", "x").unwrap_err().to_string();
        assert!(!text.contains("secret"));
    }
}
