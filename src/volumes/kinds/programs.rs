//! The results of programs of the node, with upstream's texts. Pure.

use crate::host::ProgramEnd;
use std::io;

/// The exit status of a program as Go prints it.
pub(super) fn status(end: &ProgramEnd) -> String {
    match end.code {
        Some(code) => format!("exit status {code}"),
        None => "it was killed".to_owned(),
    }
}

/// The combined output of a program.
pub(super) fn output(end: &ProgramEnd) -> String {
    format!("{}{}", end.stdout, end.stderr)
}

/// Why a program has no result.
pub(super) fn not_run(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("exec: {program:?}: executable file not found in $PATH")
        }
        _ => error.to_string(),
    }
}

/// The error of `mount`.
pub(super) fn mount_failed(args: &[String], status: &str, output: &str) -> String {
    let args = args.join(" ");
    format!(
        "mount failed: {status}\nMounting command: mount\nMounting arguments: {args}\nOutput: {output}"
    )
}
