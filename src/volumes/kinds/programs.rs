//! Runs programs of the node; upstream's texts of their errors.

use crate::host::ProgramEnd;
use crate::host::program::Program;
use crate::volumes::Mounter;
use std::io;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub(super) const MOUNT: &str = "mount";

/// How a program failed, and its output.
pub(super) struct ProgramFailure {
    pub(super) status: String,
    pub(super) output: String,
}

impl ProgramFailure {
    /// The error of `mount`, with its arguments.
    pub(super) fn of_mount(&self, args: &[String]) -> String {
        let (status, output, args) = (&self.status, &self.output, args.join(" "));
        format!(
            "mount failed: {status}\nMounting command: mount\nMounting arguments: {args}\nOutput: {output}"
        )
    }
}

/// Runs a program. Blocking.
///
/// # Errors
/// It has no result.
pub(super) fn run(mounter: &dyn Mounter, program: Program) -> Result<ProgramEnd, String> {
    let name = program.name.clone();
    mounter.run(program).map_err(|error| not_run(&name, &error))
}

/// The result of a program.
///
/// # Errors
/// It has not exited with 0.
pub(super) fn success(program: &str, end: io::Result<ProgramEnd>) -> Result<(), ProgramFailure> {
    match end {
        Ok(end) if end.code == Some(0) => Ok(()),
        Ok(end) => Err(ProgramFailure { status: status(&end), output: output(&end) }),
        Err(error) => {
            Err(ProgramFailure { status: not_run(program, &error), output: String::new() })
        }
    }
}

/// Runs `mount`, which ends early if `ended` fires. Blocking.
pub(super) fn mount(
    mounter: &dyn Mounter,
    args: &[String],
    limit: Duration,
    ended: &CancellationToken,
) -> Result<(), String> {
    let program = Program { ended: ended.clone(), ..Program::new(MOUNT, args, limit) };
    let mounted = success(MOUNT, mounter.run(program));
    mounted.map_err(|failure| failure.of_mount(args))
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
