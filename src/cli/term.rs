//! Where output goes: a terminal, a pipe, a file.

use crate::host::terminal;
use std::{env, io, io::Write as _};

/// What standard output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    /// It may be drawn on: columns and rows.
    pub(super) size: Option<(usize, usize)>,
    /// It shows colours.
    pub(super) paint: Paint,
}

/// Emphasis, where it is wanted.
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
        match self.0 && !text.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

impl Term {
    /// Standard output. It counts as plain when it is no terminal or a dumb one; `NO_COLOR` leaves
    /// only the colours out.
    pub(super) fn of_stdout() -> Self {
        let dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let size = terminal::size().filter(|_| !dumb);
        let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            size,
            paint: Paint(size.is_some() && !no_color),
        }
    }
}

/// Writes to standard output; false when nobody reads it any more, which is no error.
pub(super) fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
