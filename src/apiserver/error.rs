//! Errors of requests to the API server. Pure.

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use std::error::Error;
use std::io;
use std::time::Duration;

/// Maximum length of the API server's text in an error, bytes.
const MAX_TEXT: usize = 512;
/// Maximum number of causes that are kept of an error.
const MAX_CAUSES: usize = 16;

/// Why a request failed. Never contains the request, which may hold a token.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The API server responded with an error.
    #[error("the API server returned {status}: {text}")]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The reason of the `Status` object, such as `AlreadyExists`; empty if there is none.
        reason: String,
        /// The reasons of the causes in its details.
        causes: Vec<String>,
        /// The message of the `Status` object, truncated.
        text: String,
    },
    /// The connection failed.
    #[error("the request to the API server failed")]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    /// The response cannot be decoded, or is too large.
    #[error("invalid response of the API server")]
    Unreadable(#[source] Box<dyn Error + Send + Sync>),
    /// The deadline was exceeded.
    #[error("the API server did not respond within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl ApiError {
    /// The error for a response with an error status. The body is included only if it is a `Status` object.
    pub(super) fn from_response(status: StatusCode, body: &[u8]) -> Self {
        let parsed: Option<Status> = serde_json::from_slice(body).ok();
        let parsed = parsed.unwrap_or_default();
        let mut text = parsed.message.unwrap_or_else(|| "it did not say why".to_owned());
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        let causes = parsed.details.and_then(|details| details.causes);
        let reasons = causes.into_iter().flatten().filter_map(|cause| cause.reason);
        Self::Status {
            status,
            reason: parsed.reason.unwrap_or_default(),
            causes: reasons.take(MAX_CAUSES).collect(),
            text,
        }
    }

    /// Keeps only the position of a parse error: its text quotes the input, which may be secret.
    pub(super) fn unreadable(error: &serde_json::Error) -> Self {
        let place = format!("at line {}, column {}", error.line(), error.column());
        Self::Unreadable(place.into())
    }

    /// The HTTP error status; `None` without a response.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    fn has_reason(&self, expected: &str) -> bool {
        matches!(self, Self::Status { reason, .. } if reason == expected)
    }

    /// The object does not exist. A 404 without the reason `NotFound` is from a proxy, or for an API that is not
    /// served.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND) && self.has_reason("NotFound")
    }

    /// For a list of all objects: the API server does not serve the kind.
    pub(super) fn is_not_served(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }

    /// The object was changed or replaced since it was read.
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(StatusCode::CONFLICT) && !self.is_already_exists()
    }

    /// An object of that name already exists.
    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists")
    }

    /// The resourceVersion has expired (410 Gone).
    pub fn is_gone(&self) -> bool {
        self.status() == Some(StatusCode::GONE)
    }

    /// The kubelet is not authorized to do that.
    pub fn is_forbidden(&self) -> bool {
        self.status() == Some(StatusCode::FORBIDDEN)
    }

    /// The namespace of the new object is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        let terminating = |cause: &String| cause == "NamespaceTerminating";
        matches!(self, Self::Status { causes, .. } if causes.iter().any(terminating))
    }

    /// The credentials are rejected.
    pub fn is_unauthorized(&self) -> bool {
        self.status() == Some(StatusCode::UNAUTHORIZED)
    }

    /// The response exceeds the size limit.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(self, Self::Unreadable(error) if error.is::<http_body_util::LengthLimitError>())
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => {
                status.is_server_error()
                    || (*status == StatusCode::NOT_FOUND && !self.is_not_found())
                    || matches!(
                        *status,
                        StatusCode::TOO_MANY_REQUESTS
                            | StatusCode::REQUEST_TIMEOUT
                            | StatusCode::UNAUTHORIZED
                    )
            }
            Self::Unreachable(_) | Self::Unreadable(_) | Self::Timeout(_) => true,
        }
    }

    /// Whether the API server, or its storage, cannot keep up.
    pub(super) fn is_overload(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 504),
            Self::Timeout(_) => true,
            Self::Unreachable(_) | Self::Unreadable(_) => false,
        }
    }

    /// Whether no API server responded: the connection failed, or a load balancer in front of it sent a gateway error.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status.as_u16(), 502..=504),
            Self::Unreachable(_) | Self::Timeout(_) => true,
            Self::Unreadable(_) => false,
        }
    }

    /// Whether a review is retried within its deadline; upstream's `DefaultShouldRetry`.
    pub(super) fn is_retried_by_reviews(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 500 | 503 | 504),
            Self::Unreachable(error) => is_lost(error.as_ref()),
            Self::Unreadable(_) | Self::Timeout(_) => false,
        }
    }
}

/// Whether an established connection broke.
fn is_lost(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let http = error.downcast_ref::<hyper::Error>();
        if matches!(
            io,
            Some(
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            )
        ) || http.is_some_and(|http| http.is_incomplete_message() || http.is_closed())
        {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn refusals_are_told_apart_by_status_and_reason() {
        let refused = |code: u16, reason: &str| {
            let body = json!({"kind": "Status", "reason": reason, "message": "no"}).to_string();
            ApiError::from_response(StatusCode::from_u16(code).unwrap(), body.as_bytes())
        };
        assert!(refused(404, "NotFound").is_not_found());
        assert!(!refused(404, "").is_not_found() && refused(404, "").is_transient());
        assert!(refused(409, "Conflict").is_conflict());
        assert!(refused(409, "AlreadyExists").is_already_exists());
        assert!(!refused(409, "AlreadyExists").is_conflict());
        assert!(refused(410, "Expired").is_gone());
        assert!(refused(403, "Forbidden").is_forbidden());
        for (code, transient) in [(401, true), (403, false), (422, false), (429, true), (503, true)]
        {
            assert_eq!(refused(code, "").is_transient(), transient, "{code}");
        }
        assert!(ApiError::Timeout(Duration::from_secs(1)).is_transient());
        let absent = [500, 502, 503, 504, 429, 401].map(|code| refused(code, "").is_absence());
        assert_eq!(absent, [false, true, true, true, false, false]);
    }

    #[test]
    fn text_that_is_no_status_is_not_repeated_and_long_text_is_cut() {
        let error = ApiError::from_response(StatusCode::BAD_GATEWAY, b"<html>secret");
        assert!(!error.to_string().contains("secret"), "{error}");
        let long = json!({"message": "\u{e9}".repeat(MAX_TEXT)}).to_string();
        let error = ApiError::from_response(StatusCode::BAD_REQUEST, long.as_bytes());
        assert!(error.to_string().len() < MAX_TEXT + 100);
    }
}
