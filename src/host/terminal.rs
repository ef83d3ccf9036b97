//! The terminal that standard output may be.

use std::io::IsTerminal as _;

/// Columns and rows of the terminal that standard output is; `None` when it is not a terminal.
pub fn size() -> Option<(usize, usize)> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some((size.ws_col.into(), size.ws_row.into()))
}
