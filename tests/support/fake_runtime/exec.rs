//! Scripted answers to ExecSync and to the calls that open streams.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::calls::{Rpc, Subject};

/// What is to be run where.
pub struct ExecCall {
    pub subject: Subject,
    pub command: Vec<String>,
}

/// What comes of it.
#[derive(Debug, Clone, Default)]
pub struct ExecOutcome {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: i32,
    /// How long the command runs; longer than the caller's timeout is a DeadlineExceeded.
    pub delay: Duration,
}

impl ExecOutcome {
    /// Ends with this code, silently and at once.
    pub fn code(exit_code: i32) -> Self {
        ExecOutcome { exit_code, ..Self::default() }
    }
}

/// The script: pure, so that the fake may call it at any time.
pub type ExecScript = Arc<dyn Fn(&ExecCall) -> ExecOutcome + Send + Sync>;

/// Every command succeeds.
pub fn succeed() -> ExecScript {
    Arc::new(|_| ExecOutcome::default())
}

/// Requested streams.
pub struct StreamCall {
    /// The container, or the sandbox.
    pub subject: Subject,
    /// Exec, Attach or PortForward.
    pub rpc: Rpc,
    pub command: Vec<String>,
    pub ports: Vec<i32>,
}

/// The URL where they are to be had.
pub type StreamScript = Arc<dyn Fn(&StreamCall) -> Result<String, Status> + Send + Sync>;

/// There is no streaming server.
pub fn no_streams() -> StreamScript {
    Arc::new(|call| Err(Status::unimplemented(format!("no {}", call.rpc))))
}
