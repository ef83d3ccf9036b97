//! Errors of images, as users see them.

use tonic::Code;

use crate::base::clock::Instant;
use crate::cri::CriError;
use crate::model::reasons;

/// Why a container cannot be created from its image (yet). `Display` prints the message only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ImageError {
    /// The waiting reason of the container: `ErrImagePull`, `ImagePullBackOff`, …
    pub reason: &'static str,
    /// The message for the container's status.
    pub message: String,
    /// When a retry makes sense, if known.
    pub retry_at: Option<Instant>,
}

impl ImageError {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> ImageError {
        ImageError { reason, message: message.into(), retry_at: None }
    }

    pub(super) fn until(self, retry_at: Instant) -> ImageError {
        ImageError { retry_at: Some(retry_at), ..self }
    }

    /// Classifies the error of a failed pull by the runtime's message: messages that begin with an error name of the
    /// CRI are distinguished.
    pub(super) fn of_pull(image: &str, text: &str) -> ImageError {
        let because = |reason: &'static str, what: &str, rest: &str| {
            let message = format!("image pull failed for {image} because the {what}{rest}");
            ImageError::new(reason, message)
        };
        if let Some(rest) = text.strip_prefix(reasons::REGISTRY_UNAVAILABLE) {
            let what = "registry is unavailable";
            return because(reasons::REGISTRY_UNAVAILABLE, what, rest);
        }
        if let Some(rest) = text.strip_prefix(reasons::SIGNATURE_VALIDATION_FAILED) {
            let what = "signature validation failed";
            return because(reasons::SIGNATURE_VALIDATION_FAILED, what, rest);
        }
        ImageError::new(reasons::ERR_IMAGE_PULL, text)
    }
}

/// The error text for events. The gRPC code `Unknown` is left out, because it says nothing.
pub(super) fn pull_text(error: &CriError) -> String {
    match error.code() {
        Code::Unknown => error.message().to_owned(),
        _ => error.grpc_text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_own_names_decide_the_reason() {
        let table = [
            ("no route to host", reasons::ERR_IMAGE_PULL, "no route to host"),
            (
                "RegistryUnavailable: connection refused",
                reasons::REGISTRY_UNAVAILABLE,
                "image pull failed for x because the registry is unavailable: connection refused",
            ),
            (
                "SignatureValidationFailed: wrong key",
                reasons::SIGNATURE_VALIDATION_FAILED,
                "image pull failed for x because the signature validation failed: wrong key",
            ),
            (
                "rpc error: RegistryUnavailable",
                reasons::ERR_IMAGE_PULL,
                "rpc error: RegistryUnavailable",
            ),
        ];
        for (text, reason, message) in table {
            assert_eq!(ImageError::of_pull("x", text), ImageError::new(reason, message));
        }
    }
}
