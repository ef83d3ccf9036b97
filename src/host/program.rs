//! Runs programs of the node, such as `mount` and `mkfs.ext4`, with a timeout.

use std::{io, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    runtime::Handle,
    time::timeout,
};

/// Maximum number of bytes kept of each output stream.
const MAX_OUTPUT: u64 = 4096;

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
/// The program does not exist (`NotFound`), or exceeds the timeout `limit` (`TimedOut`) and is killed. A process that
/// cannot be killed, because it hangs in the kernel, is left behind.
pub fn run(program: &str, args: &[String], limit: Duration) -> io::Result<ProgramEnd> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    runtime.block_on(async {
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = async {
            let (stdout, stderr) = tokio::join!(written(stdout), written(stderr));
            Ok(ProgramEnd {
                code: child.wait().await?.code(),
                stdout,
                stderr,
            })
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it ran for {limit:?}"));
        timeout(limit, ended).await.map_err(late)?
    })
}

async fn written(output: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    // On an error, the output read so far is used.
    let _ = read_head(output, MAX_OUTPUT, &mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
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
    use std::time::Instant;

    async fn sh(script: &'static str, limit: Duration) -> io::Result<ProgramEnd> {
        let args = ["-c".to_owned(), script.to_owned()];
        let run = move || run("sh", &args, limit);
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    #[tokio::test]
    async fn a_program_ends_with_its_code_and_both_streams() {
        let limit = Duration::from_secs(30);
        let end = sh("echo out; echo err >&2; exit 3", limit).await.unwrap();
        let expected = ProgramEnd {
            code: Some(3),
            stdout: "out\n".into(),
            stderr: "err\n".into(),
        };
        assert_eq!(end, expected);
        let end = sh("head -c 100000 /dev/zero", limit).await.unwrap();
        assert_eq!((end.code, end.stdout.len()), (Some(0), 4096));
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_and_one_that_is_missing_is_not_found() {
        let started_at = Instant::now();
        let error = sh("exec sleep 60", Duration::from_millis(50)).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(started_at.elapsed() < Duration::from_secs(30));
        let run = || run("no-such-program", &[], Duration::from_secs(1));
        let error = tokio::task::spawn_blocking(run).await.unwrap();
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
