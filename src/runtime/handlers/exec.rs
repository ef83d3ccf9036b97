//! A command in the container, run by the runtime.

use super::{MAX_OUTPUT, ProbeOutcome, shown};
use crate::{
    base::GoDuration,
    cri::{CriError, ExecOutput, RuntimeClient},
    model::ContainerId,
};
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use tonic::Code;

/// Runs a command in a container: id, command, timeout (zero means none).
pub type ExecFn = Arc<
    dyn Fn(ContainerId, Vec<String>, Duration) -> BoxFuture<'static, Result<ExecOutput, CriError>>
        + Send
        + Sync,
>;

/// Commands go to the runtime's ExecSync.
pub fn runtime_exec(client: RuntimeClient) -> ExecFn {
    Arc::new(move |id, command, timeout| {
        let client = client.clone();
        Box::pin(async move { client.exec_sync(id.as_str(), &command, timeout).await })
    })
}

pub(super) enum ExecEnded {
    Exited(ExecOutput),
    TimedOut,
    /// It could not be run, or the outcome is unknown.
    Error(CriError),
}

/// Runs a command and waits for the runtime's answer, however late. That the command outlived its timeout is
/// the runtime's to say: its clock starts later, and an answer to a call that waited may come at any time.
pub(super) async fn run(
    exec: &ExecFn,
    id: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> ExecEnded {
    match exec(id.clone(), command.to_vec(), timeout).await {
        Ok(output) => ExecEnded::Exited(output),
        Err(error) if error.code() == Code::DeadlineExceeded && !timeout.is_zero() => {
            ExecEnded::TimedOut
        }
        Err(error) => ExecEnded::Error(error),
    }
}

pub(super) async fn probe(
    exec: &ExecFn,
    id: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> ProbeOutcome {
    match run(exec, id, command, timeout).await {
        ExecEnded::Exited(output) if output.exit_code == 0 => ProbeOutcome::success(both(&output)),
        ExecEnded::Exited(output) => ProbeOutcome::failure(both(&output)),
        ExecEnded::TimedOut => ProbeOutcome::failure(timed_out(command, timeout)),
        ExecEnded::Error(error) => ProbeOutcome::unknown(error.grpc_text()),
    }
}

/// The text of a command that outlived its timeout.
pub(super) fn timed_out(command: &[String], timeout: Duration) -> String {
    format!(
        "command timed out: {:?} timed out after {}",
        command.join(" "),
        GoDuration::from(timeout)
    )
}

/// Standard output and then standard error, cut to what is shown.
pub(super) fn both(output: &ExecOutput) -> String {
    let bytes: Vec<u8> = output
        .stdout
        .iter()
        .chain(&output.stderr)
        .take(MAX_OUTPUT)
        .copied()
        .collect();
    shown(&bytes)
}
