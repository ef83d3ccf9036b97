//! Runs programs of the node; upstream's texts of their errors.

use crate::host::ProgramEnd;
use crate::volumes::Mounter;
use std::{io, time::Duration};

/// How a program failed, and its output.
pub(super) struct Failed {
    pub(super) status: String,
    pub(super) output: String,
}

/// Runs a program. Blocking.
///
/// # Errors
/// It has no result.
pub(super) fn run(
    mounter: &dyn Mounter,
    program: &str,
    args: &[String],
    limit: Duration,
) -> Result<ProgramEnd, String> {
    let end = mounter.run(program, args, limit);
    end.map_err(|error| not_run(program, &error))
}

/// The same; an error unless it exits with 0.
pub(super) fn succeed(
    mounter: &dyn Mounter,
    program: &str,
    args: &[String],
    limit: Duration,
) -> Result<(), Failed> {
    match run(mounter, program, args, limit) {
        Ok(end) if end.code == Some(0) => Ok(()),
        Ok(end) => Err(Failed {
            status: status(&end),
            output: output(&end),
        }),
        Err(error) => Err(Failed {
            status: error,
            output: String::new(),
        }),
    }
}

/// Runs `mount`. Blocking.
pub(super) fn mount(mounter: &dyn Mounter, args: &[String], limit: Duration) -> Result<(), String> {
    let mounted = succeed(mounter, "mount", args, limit);
    mounted.map_err(|Failed { status, output }| mount_failed(args, &status, &output))
}

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
