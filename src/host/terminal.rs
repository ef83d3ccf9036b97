//! The terminal of standard output.

use std::io::IsTerminal as _;

/// Columns and rows of the terminal; `None` if standard output is not one.
pub fn size() -> Option<(usize, usize)> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some((size.ws_col.into(), size.ws_row.into()))
}
