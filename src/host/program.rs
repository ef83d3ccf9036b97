//! Runs programs of the node, such as `mount` and `mkfs.ext4`, with a timeout.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum number of bytes kept of each output stream.
const MAX_OUTPUT: u64 = 4096;
/// How long the output of a program is read after it has exited: a process that it started may keep the pipes.
const OUTPUT_TIME: Duration = Duration::from_secs(1);
/// How long a killed program is waited for. It may hang in the kernel.
const KILL_TIME: Duration = Duration::from_secs(5);

/// A program to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path, or its name in `PATH`.
    pub name: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// After this time it is killed.
    pub limit: Duration,
    /// It is killed when this fires.
    pub ended: CancellationToken,
    /// Maximum number of bytes kept of each output stream.
    pub max_output: u64,
}

impl Program {
    /// A program that only its timeout ends.
    pub fn new(name: &str, args: &[String], limit: Duration) -> Self {
        Self {
            name: name.to_owned(),
            args: args.to_vec(),
            limit,
            ended: CancellationToken::new(),
            max_output: MAX_OUTPUT,
        }
    }
}

/// The result of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramEnd {
    /// Its exit code; `None` if a signal terminated it.
    pub code: Option<i32>,
    /// The beginning of its standard output.
    pub stdout: String,
    /// The beginning of its standard error.
    pub stderr: String,
}

/// Runs a program and waits for it to exit. Call it from `spawn_blocking`.
///
/// # Errors
/// As [`execute`].
pub fn run(program: Program) -> io::Result<ProgramEnd> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    runtime.block_on(execute(program))
}

/// Runs a program and waits for it to exit.
///
/// # Errors
/// The program does not exist (`NotFound`), exceeds its timeout (`TimedOut`), or is ended (`Interrupted`). Then it is killed
/// with the processes that it started, such as the helper that `mount` waits for. A process that cannot be killed,
/// because it hangs in the kernel, is left behind.
pub async fn execute(program: Program) -> io::Result<ProgramEnd> {
    let child = Command::new(&program.name)
        .args(&program.args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let mut running = RunningProgram { child };
    let (limit, ended) = (program.limit, &program.ended);
    let exited = timeout(limit, running.exited(program.max_output));
    let why = match ended.run_until_cancelled(exited).await {
        Some(Ok(end)) => return end,
        Some(Err(_)) => io::Error::new(io::ErrorKind::TimedOut, format!("it ran for {limit:?}")),
        None => io::ErrorKind::Interrupted.into(),
    };
    running.kill();
    // What it was about to do must not happen later.
    let _ = timeout(KILL_TIME, running.child.wait()).await;
    Err(why)
}

/// A running program; dropping it kills its process group.
struct RunningProgram {
    child: Child,
}

impl RunningProgram {
    async fn exited(&mut self, max_output: u64) -> io::Result<ProgramEnd> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = {
            let reading = async {
                // On an error, the output read so far is used.
                let _ = tokio::join!(
                    read_head(stdout, max_output, &mut out),
                    read_head(stderr, max_output, &mut err)
                );
            };
            let mut reading = std::pin::pin!(reading);
            let mut is_read = false;
            let status = loop {
                tokio::select! {
                    status = self.child.wait() => break status?,
                    () = &mut reading, if !is_read => is_read = true,
                }
            };
            if !is_read {
                let _ = timeout(OUTPUT_TIME, reading).await;
            }
            status
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(ProgramEnd { code: status.code(), stdout: text(out), stderr: text(err) })
    }

    fn kill(&self) {
        // `id` is `None` once the process was reaped; its PID may be reused by then.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            // The process may just have exited.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Appends the beginning of a program's output to `head`, at most `limit` bytes; the rest is read and discarded, so
/// that the program does not block.
///
/// # Errors
/// The pipe cannot be read; `head` has what was read before.
pub async fn read_head(
    output: Option<impl AsyncRead + Unpin>,
    limit: u64,
    head: &mut Vec<u8>,
) -> io::Result<()> {
    if let Some(mut output) = output {
        (&mut output).take(limit).read_to_end(head).await?;
        tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{clock, spawn_blocking};

    async fn sh(script: &'static str, limit: Duration) -> io::Result<ProgramEnd> {
        let args = ["-c".to_owned(), script.to_owned()];
        let run = move || run(Program::new("sh", &args, limit));
        spawn_blocking(run).await.unwrap()
    }

    #[tokio::test]
    async fn a_program_ends_with_its_code_and_both_streams() {
        let limit = Duration::from_secs(30);
        let end = sh("echo out; echo err >&2; exit 3", limit).await.unwrap();
        let expected = ProgramEnd { code: Some(3), stdout: "out\n".into(), stderr: "err\n".into() };
        assert_eq!(end, expected);
        let end = sh("head -c 100000 /dev/zero", limit).await.unwrap();
        assert_eq!((end.code, end.stdout.len()), (Some(0), 4096));
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_and_one_that_is_missing_is_not_found() {
        let started_at = clock::instant();
        let error = sh("exec sleep 60", Duration::from_millis(50)).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(clock::since(started_at) < Duration::from_secs(30));
        let run = || run(Program::new("no-such-program", &[], Duration::from_secs(1)));
        let error = spawn_blocking(run).await.unwrap();
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A shell that starts a process which writes its PID to this file and does not end.
    fn lasting(file: &std::path::Path, then: &str) -> Program {
        let file = file.display();
        let script = format!("sleep 600 & echo $! > {file}.new; mv {file}.new {file}; {then}");
        Program::new("sh", &["-c".to_owned(), script], Duration::from_secs(60))
    }

    async fn pid_in(file: &std::path::Path) -> i32 {
        loop {
            if let Ok(pid) = std::fs::read_to_string(file) {
                return pid.trim().parse().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_running(pid: i32) -> bool {
        // A zombie of another parent is dead as well.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
    }

    #[tokio::test]
    async fn an_ended_program_is_killed_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let program = lasting(&file, "wait");
        let ended = program.ended.clone();
        let run = tokio::spawn(execute(program));
        let pid = pid_in(&file).await;
        assert!(is_running(pid));
        ended.cancel();
        let error = run.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        let begun = clock::instant();
        while is_running(pid) {
            assert!(clock::since(begun) < Duration::from_secs(30));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_program_that_leaves_a_process_with_its_output_has_exited() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let end = execute(lasting(&file, "echo done")).await.unwrap();
        assert_eq!((end.code, &*end.stdout), (Some(0), "done\n"));
        let pid = Pid::from_raw(pid_in(&file).await).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
}
