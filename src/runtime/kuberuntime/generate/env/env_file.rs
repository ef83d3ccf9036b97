//! Environment files that one container writes for another (`fileKeyRef`). Pure.
//!
//! A strict subset of shell syntax: `NAME='value'`, one after the other. Everything between the quotes is the value,
//! line breaks included; there are no escapes. Empty lines, lines that begin with `#`, blanks before a name and comments
//! after a value are skipped.

/// Maximum size of a file, bytes.
pub const MAX_FILE: usize = 4 << 20;

/// Why a file cannot be read as variables; texts as upstream's. They never contain the file's content, which may be a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvFileError {
    /// A line without an equals sign.
    #[error("invalid environment variable format at line {0}: missing '='")]
    NoEquals(usize),
    /// Nothing before the equals sign.
    #[error("invalid environment variable format at line {0}: empty variable name")]
    NoName(usize),
    /// A blank between name and equals sign.
    #[error(
        "invalid environment variable format at line {0}: whitespace before '=' is not allowed"
    )]
    BlankBeforeEquals(usize),
    /// The value has no quotes.
    #[error(
        "invalid environment variable format at line {0}: value must be enclosed in single quotes"
    )]
    NoQuote(usize),
    /// Text other than a comment after the value.
    #[error(
        "invalid environment variable format at line {0}: unexpected content after closing quote"
    )]
    Trailing(usize),
    /// The file ends within a value.
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
    /// Not text.
    #[error("invalid environment variable format: the file is not UTF-8 text")]
    NotText,
    /// The file is larger than [`MAX_FILE`].
    #[error("the environment variable file is larger than {} bytes", MAX_FILE)]
    TooLong,
    /// The file does not exist.
    #[error("failed to open environment variable file: it does not exist")]
    Missing,
    /// The file cannot be read.
    #[error("failed to open environment variable file: {0}")]
    Unreadable(String),
}

/// The value of `key` in a file; empty if its value is empty or the key does not exist. Like upstream's, it
/// stops at the key: what comes after is not validated.
pub fn value_of_key(file: &[u8], key: &str) -> Result<String, EnvFileError> {
    let text = std::str::from_utf8(file).map_err(|_| EnvFileError::NotText)?;
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(EnvFileError::NoEquals(number))?;
        match name.trim_end_matches(BLANKS) {
            "" => return Err(EnvFileError::NoName(number)),
            trimmed if trimmed != name => return Err(EnvFileError::BlankBeforeEquals(number)),
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
            .ok_or(EnvFileError::NoQuote(number))?;
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
) -> Result<String, EnvFileError> {
    let mut value = String::new();
    let (mut number, mut rest) = (start, first);
    loop {
        if let Some((end, behind)) = rest.split_once('\'') {
            value.push_str(end);
            let behind = behind.trim_start_matches(BLANKS);
            return if behind.is_empty() || behind.starts_with('#') {
                Ok(value)
            } else {
                Err(EnvFileError::Trailing(number))
            };
        }
        value.push_str(rest);
        value.push('\n');
        (number, rest) = lines.next().ok_or(EnvFileError::Unclosed(start))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, key: &str) -> Result<String, EnvFileError> {
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
            (
                "A='one\ntwo\n\n  # three'\nB='2'\n",
                "A",
                "one\ntwo\n\n  # three",
            ),
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
            assert_eq!(read(text, key).as_deref(), Ok(value), "{text:?} {key}");
        }
    }

    #[test]
    fn anything_else_is_an_error_that_names_the_line() {
        use EnvFileError as E;
        for (text, error) in [
            ("A='1'\nnonsense\n", E::NoEquals(2)),
            ("='1'\n", E::NoName(1)),
            ("A ='1'\n", E::BlankBeforeEquals(1)),
            ("A = '1'\n", E::BlankBeforeEquals(1)),
            ("export A='1'\nA=1\n", E::NoQuote(2)),
            ("\nA=\"1\"\n", E::NoQuote(2)),
            ("A=\n", E::NoQuote(1)),
            ("A='1'x\n", E::Trailing(1)),
            ("A='1'\\''2'\n", E::Trailing(1)),
            ("A='one\ntwo' three\n", E::Trailing(2)),
            ("\n\nA='one\ntwo\n", E::Unclosed(3)),
        ] {
            assert_eq!(read(text, "Z"), Err(error), "{text:?}");
        }
        assert_eq!(value_of_key(b"A='\xff'", "A"), Err(E::NotText));
        let text = read("x=secret", "x").unwrap_err().to_string();
        assert!(!text.contains("secret"));
    }
}
