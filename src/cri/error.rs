//! Errors of CRI calls, distinguished as far as callers handle them differently.

use std::error::Error;
use std::io;

use tonic::{Code, Status};

use super::rpc::Rpc;
use super::transport::ConnectFailure;

/// The error of a call. Each variant has the call and the runtime's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The doc of the enum describes the fields.
pub enum CriError {
    /// The runtime has no such object.
    #[error("{rpc}: not found: {message}")]
    NotFound { rpc: Rpc, message: String },
    /// The name or object already exists.
    #[error("{rpc}: already exists: {message}")]
    AlreadyExists { rpc: Rpc, message: String },
    /// No reply arrived in time, the connection was lost during the call, or the runtime returned `Unavailable` for a
    /// call that changes something: the request may have been carried out, may still be, or may never be. Check the
    /// state before a retry.
    #[error("{rpc}: outcome unknown: {message}")]
    OutcomeUnknown {
        rpc: Rpc,
        /// `DeadlineExceeded` or `Unavailable`.
        code: Code,
        message: String,
    },
    /// The runtime cannot be reached: no request was sent, or only one that changes nothing.
    #[error("{rpc}: runtime unavailable: {message}")]
    Unavailable {
        rpc: Rpc,
        /// The system's error if the socket could not be opened.
        kind: Option<io::ErrorKind>,
        message: String,
    },
    /// The reply is too large for one message, or a resource of the runtime is exhausted.
    #[error("{rpc}: exhausted: {message}")]
    Exhausted { rpc: Rpc, message: String },
    /// The runtime does not implement this call.
    #[error("{rpc}: not implemented by the runtime: {message}")]
    Unimplemented { rpc: Rpc, message: String },
    /// The runtime's reply is invalid.
    #[error("{rpc}: invalid reply: {message}")]
    Invalid { rpc: Rpc, message: String },
    /// Any other error of the runtime.
    #[error("{rpc}: {message}")]
    Other { rpc: Rpc, code: Code, message: String },
}

impl CriError {
    /// The call that failed.
    pub fn rpc(&self) -> Rpc {
        self.parts().0
    }

    /// The runtime's message, for events and statuses.
    pub fn message(&self) -> &str {
        self.parts().2
    }

    /// The gRPC code of this error.
    pub fn code(&self) -> Code {
        self.parts().1
    }

    /// The text in the Go kubelet's events: `rpc error: code = NotFound desc = …`.
    pub fn grpc_text(&self) -> String {
        format!("rpc error: code = {} desc = {}", go_code(self.code()), self.message())
    }

    /// Whether the runtime has no such object (callers of stop and remove treat this as success).
    pub fn is_not_found(&self) -> bool {
        matches!(self, CriError::NotFound { .. })
    }

    /// Whether the call may have had an effect although it failed.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, CriError::OutcomeUnknown { .. })
    }

    /// Whether the object that the call was to create may exist or may still be created: the outcome is unknown, or
    /// the name is in use (containerd and CRI-O report that as a failed reservation).
    pub fn may_have_created(&self) -> bool {
        self.is_outcome_unknown()
            || matches!(self, CriError::AlreadyExists { .. })
            || (self.message().contains("reserve") && self.message().contains("name"))
    }

    /// Whether the runtime could not be reached.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, CriError::Unavailable { .. })
    }

    fn parts(&self) -> (Rpc, Code, &str) {
        match self {
            CriError::NotFound { rpc, message } => (*rpc, Code::NotFound, message),
            CriError::AlreadyExists { rpc, message } => (*rpc, Code::AlreadyExists, message),
            CriError::OutcomeUnknown { rpc, code, message } => (*rpc, *code, message),
            CriError::Unavailable { rpc, message, .. } => (*rpc, Code::Unavailable, message),
            CriError::Exhausted { rpc, message } => (*rpc, Code::ResourceExhausted, message),
            CriError::Unimplemented { rpc, message } => (*rpc, Code::Unimplemented, message),
            CriError::Invalid { rpc, message } => (*rpc, Code::Internal, message),
            CriError::Other { rpc, code, message } => (*rpc, *code, message),
        }
    }

    pub(super) fn invalid(rpc: Rpc, message: impl Into<String>) -> CriError {
        CriError::Invalid { rpc, message: message.into() }
    }

    pub(super) fn unavailable(rpc: Rpc, message: impl Into<String>) -> CriError {
        CriError::Unavailable { rpc, kind: None, message: message.into() }
    }

    pub(super) fn from_status(rpc: Rpc, status: &Status) -> CriError {
        if let Some(source) = status.source() {
            return CriError::from_transport(rpc, status, source);
        }
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => CriError::NotFound { rpc, message },
            Code::AlreadyExists => CriError::AlreadyExists { rpc, message },
            Code::DeadlineExceeded => CriError::outcome_unknown(rpc, status.code(), message),
            Code::Unavailable => CriError::connection_lost(rpc, message),
            // tonic rejects a reply above our limit with OutOfRange before reading it.
            Code::ResourceExhausted | Code::OutOfRange => CriError::Exhausted { rpc, message },
            Code::Unimplemented => CriError::Unimplemented { rpc, message },
            code => CriError::Other { rpc, code, message },
        }
    }

    /// Only errors of this side have a source: the connection could not be established, or was lost.
    fn from_transport(rpc: Rpc, status: &Status, source: &(dyn Error + 'static)) -> CriError {
        let mut cause = Some(source);
        let mut deepest = status.message().to_owned();
        while let Some(error) = cause {
            if let Some(failure) = error.downcast_ref::<ConnectFailure>() {
                let kind = Some(failure.kind());
                return CriError::Unavailable { rpc, kind, message: failure.to_string() };
            }
            deepest = error.to_string();
            cause = error.source();
        }
        let message = format!("the connection to the runtime broke: {deepest}");
        CriError::connection_lost(rpc, message)
    }

    /// The error of a call that was lost with the runtime or the connection after it was sent.
    fn connection_lost(rpc: Rpc, message: String) -> CriError {
        if rpc.mutates() {
            CriError::outcome_unknown(rpc, Code::Unavailable, message)
        } else {
            CriError::unavailable(rpc, message)
        }
    }

    fn outcome_unknown(rpc: Rpc, code: Code, message: String) -> CriError {
        CriError::OutcomeUnknown { rpc, code, message }
    }
}

/// Success if the runtime does not have the object that was to be stopped or removed.
///
/// # Errors
/// All others.
pub fn ignore_not_found(result: Result<(), CriError>) -> Result<(), CriError> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// The name of a code as Go's gRPC library prints it.
pub fn go_code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_runtime_become_the_variant_a_caller_branches_on() {
        let rpc = Rpc::CreateContainer;
        let message = "said the runtime".to_owned();
        let table = [
            (Code::NotFound, CriError::NotFound { rpc, message: message.clone() }),
            (Code::AlreadyExists, CriError::AlreadyExists { rpc, message: message.clone() }),
            (
                Code::DeadlineExceeded,
                CriError::outcome_unknown(rpc, Code::DeadlineExceeded, message.clone()),
            ),
            (Code::Unavailable, CriError::outcome_unknown(rpc, Code::Unavailable, message.clone())),
            (Code::ResourceExhausted, CriError::Exhausted { rpc, message: message.clone() }),
            (Code::OutOfRange, CriError::Exhausted { rpc, message: message.clone() }),
            (Code::Unimplemented, CriError::Unimplemented { rpc, message: message.clone() }),
            (Code::Unknown, CriError::Other { rpc, code: Code::Unknown, message: message.clone() }),
            (
                Code::Internal,
                CriError::Other { rpc, code: Code::Internal, message: message.clone() },
            ),
        ];
        for (code, expected) in table {
            let error = CriError::from_status(rpc, &Status::new(code, "said the runtime"));
            assert_eq!(error, expected);
            assert_eq!(error.message(), "said the runtime");
            assert_eq!(error.rpc(), rpc);
        }
        let question = Rpc::ListContainers;
        let error = CriError::from_status(question, &Status::unavailable("later"));
        assert_eq!(error, CriError::unavailable(question, "later"));
    }

    #[test]
    fn event_text_is_the_one_users_know() {
        let error = CriError::from_status(Rpc::PullImage, &Status::not_found("no such image"));
        assert_eq!(error.grpc_text(), "rpc error: code = NotFound desc = no such image");
        assert_eq!(error.to_string(), "PullImage: not found: no such image");
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_of_a_change_unknown_and_a_question_unanswered() {
        let broken = || Status::from_error(Box::new(std::io::Error::other("broken pipe")));
        let error = CriError::from_status(Rpc::RunPodSandbox, &broken());
        assert!(error.is_outcome_unknown());
        assert_eq!(error.code(), Code::Unavailable);
        let error = CriError::from_status(Rpc::ListContainers, &broken());
        assert!(error.is_unavailable());
        assert_eq!(error.message(), "the connection to the runtime broke: broken pipe");
    }
}
