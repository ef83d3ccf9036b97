//! Logging and retries of failed certificate requests.

use super::plan::delay;
use super::request::RequestError;
use super::store::{FileStore, StoredCertificate};
use crate::base::{error_chain, spawn_blocking};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Logs a failure and returns the delay before the next attempt.
pub(super) fn log_and_backoff(purpose: &str, failures: u32, error: &RequestError) -> Duration {
    let (is_rejected, err) = match error {
        RequestError::Rejected(why) => (true, why.clone()),
        RequestError::Failed(error) => (false, error_chain(error.as_ref())),
    };
    let delay = delay(failures, is_rejected);
    tracing::error!(
        purpose,
        err,
        retryAfter = ?delay,
        "Requesting a certificate failed"
    );
    delay
}

/// Stores an issued certificate. I/O errors are retried, because a disk may be full, and an issued certificate need not
/// be requested again.
pub(super) async fn store_with_retries(
    store: &FileStore,
    certificate: Vec<u8>,
    key: String,
    failed: impl Fn(),
) -> Result<StoredCertificate, RequestError> {
    let (certificate, key): (Arc<[u8]>, Arc<str>) = (certificate.into(), key.into());
    let mut failures = 0;
    loop {
        let (store, certificate, key) = (store.clone(), certificate.clone(), key.clone());
        let update = move || store.update(&certificate, key.as_bytes());
        match spawn_blocking(update).await.map_err(anyhow::Error::from)? {
            Err(error) if error.downcast_ref::<std::io::Error>().is_some() => {
                failures += 1;
                failed();
                let delay = delay(failures, false);
                let err = error_chain(error.as_ref());
                tracing::error!(
                    err,
                    retryAfter = ?delay,
                    "Storing the new certificate failed"
                );
                sleep(delay).await;
            }
            // Not retried: the same request would return the same certificate.
            updated => {
                return updated
                    .map_err(|error| RequestError::Rejected(error_chain(error.as_ref())));
            }
        }
    }
}
