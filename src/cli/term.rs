//! Properties of standard output: a terminal, a pipe or a file.

use super::table::plain;
use crate::base::is_printable;
use crate::host::terminal;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::{env, io};

/// How to write to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    /// Columns and rows, for a terminal that can be redrawn.
    pub(super) size: Option<(usize, usize)>,
    /// Whether colours are used.
    pub(super) paint: Paint,
}

/// Adds colours if they are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paint(pub(super) bool);

impl Paint {
    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(super) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }
}

impl Term {
    /// Standard output of this process. Colours and redrawing need a terminal other than `dumb`; `NO_COLOR` disables
    /// only the colours.
    pub(super) fn of_stdout() -> Self {
        let dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let size = terminal::size().filter(|_| !dumb);
        let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { size, paint: Paint(size.is_some() && !no_color) }
    }
}

/// Formats JSON on several lines or on one, without characters that a terminal interprets.
///
/// # Errors
/// The value cannot be serialized.
pub(super) fn json(value: &impl Serialize, many_lines: bool) -> serde_json::Result<String> {
    let text = if many_lines {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if c == '\n' || is_printable(c) {
            out.push(c)
        } else {
            // Only strings contain such characters.
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out.push('\n');
    Ok(out)
}

/// Prints an error to standard error.
pub(super) fn print_error(text: &str) {
    let lines: Vec<String> = text.lines().map(plain).collect();
    let _ = writeln!(io::stderr(), "kubelet: {}", lines.join("\n"));
}

/// Writes to standard output; false if the reader has closed it, which is not an error.
pub(super) fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_reads_back_the_same_and_is_no_command_to_a_terminal() {
        let hostile = "\u{1b}[2J \u{9b}2J \u{7f} \u{202e} \u{e0001} \"é\\\n";
        for many_lines in [true, false] {
            let text = json(&[hostile], many_lines).unwrap();
            assert!(text.trim().chars().all(|c| c == '\n' || is_printable(c)), "{text:?}");
            let read: Vec<String> = serde_json::from_str(&text).unwrap();
            assert_eq!(read, [hostile]);
        }
        assert_eq!(json(&["a"], false).unwrap(), "[\"a\"]\n");
    }
}
