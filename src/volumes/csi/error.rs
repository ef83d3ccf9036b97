//! Errors of calls to drivers; texts as upstream's.

use crate::cri::go_code;
use tonic::Code;

/// What is known of a call that returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The driver reports that it failed.
    Failed,
    /// The driver may have done it, may still be doing it, or may do it later.
    Unknown,
}

/// Why a call to a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsiError {
    /// No driver of this name has registered.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    /// The error of the driver or of the connection to it.
    #[error("rpc error: code = {} desc = {message}", go_code(*.code))]
    Status {
        /// The gRPC code.
        code: Code,
        /// The driver's message without secrets, at most 1 KiB.
        message: String,
        /// Whether the driver may have received the request.
        sent: bool,
    },
    /// The driver's response to a call that succeeded is not a valid one.
    #[error("invalid response of the CSI driver: {0}")]
    InvalidResponse(String),
}

impl CsiError {
    /// The error of a request that the driver has not received.
    pub(super) fn unsent(code: Code, message: impl Into<String>) -> Self {
        Self::Status { code, message: message.into(), sent: false }
    }

    /// What is known of the call. [`CallOutcome::Unknown`] for a request that was not sent, like upstream;
    /// [`Self::is_unsent`] distinguishes it.
    pub fn outcome(&self) -> CallOutcome {
        match self {
            Self::Status { code, .. } if !leaves_outcome_open(*code) => CallOutcome::Failed,
            Self::Status { .. } | Self::NotRegistered(_) | Self::InvalidResponse(_) => {
                CallOutcome::Unknown
            }
        }
    }

    /// Whether the driver has not received this request: then what was known of the volume before is still true.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::NotRegistered(_) => true,
            Self::Status { sent, .. } => !sent,
            Self::InvalidResponse(_) => false,
        }
    }

    /// The gRPC code, if there is one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::NotRegistered(_) | Self::InvalidResponse(_) => None,
        }
    }
}

/// Whether a driver that returns this code may have done what it was asked for.
fn leaves_outcome_open(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}
