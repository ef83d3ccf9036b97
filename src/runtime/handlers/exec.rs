//! A command in the container, run by the runtime.

use super::{MAX_OUTPUT, ProbeOutcome, truncated};
use crate::base::GoDuration;
use crate::cri::{CriError, ExecOutput, RuntimeClient};
use crate::model::ContainerId;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// Runs a command in a container: id, command, timeout (zero means none).
pub type ExecFn = Arc<
    dyn Fn(ContainerId, Vec<String>, Duration) -> BoxFuture<'static, Result<ExecOutput, CriError>>
        + Send
        + Sync,
>;

/// An [`ExecFn`] that calls the runtime's ExecSync.
pub fn runtime_exec(client: RuntimeClient) -> ExecFn {
    Arc::new(move |id, command, timeout| {
        let client = client.clone();
        Box::pin(async move { client.exec_sync(id.as_str(), &command, timeout).await })
    })
}

pub(super) enum ExecResult {
    Exited(ExecOutput),
    TimedOut,
    /// It could not be run, or the outcome is unknown.
    Error(CriError),
}

/// Runs a command and waits until the runtime returns. Only the runtime decides whether the command timed
/// out: its timeout begins later than the call, and the call may have to wait for other calls.
pub(super) async fn run(
    exec: &ExecFn,
    id: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> ExecResult {
    match exec(id.clone(), command.to_vec(), timeout).await {
        Ok(output) => ExecResult::Exited(output),
        Err(error) if error.code() == Code::DeadlineExceeded && !timeout.is_zero() => {
            ExecResult::TimedOut
        }
        Err(error) => ExecResult::Error(error),
    }
}

pub(super) async fn probe(
    exec: &ExecFn,
    id: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> ProbeOutcome {
    match run(exec, id, command, timeout).await {
        ExecResult::Exited(output) if output.exit_code == 0 => ProbeOutcome::success(both(&output)),
        ExecResult::Exited(output) => ProbeOutcome::failure(both(&output)),
        ExecResult::TimedOut => ProbeOutcome::failure(timed_out(command, timeout)),
        ExecResult::Error(error) => ProbeOutcome::unknown(error.grpc_text()),
    }
}

/// The message for a command that timed out.
pub(super) fn timed_out(command: &[String], timeout: Duration) -> String {
    format!(
        "command timed out: {:?} timed out after {}",
        command.join(" "),
        GoDuration::from(timeout)
    )
}

/// Standard output followed by standard error, truncated to [`MAX_OUTPUT`].
pub(super) fn both(output: &ExecOutput) -> String {
    let bytes: Vec<u8> =
        output.stdout.iter().chain(&output.stderr).take(MAX_OUTPUT).copied().collect();
    truncated(&bytes)
}
