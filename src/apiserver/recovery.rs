//! Notices when the API server stops responding or rejects the credentials, and when that is over: one line in the log
//! for each, instead of one for each request that fails, and a few urgent requests need not wait for their back-off.

use super::{ApiError, ApiServer};
use crate::base::clock::{self, Instant};
use crate::base::error_chain;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep_until;

/// Maximum delay of a request after a recovery. The delay is random, so that nodes do not send requests all at once.
const MAX_WAIT: Duration = Duration::from_millis(400);

/// Since when no request has been answered; `None` while the API server responds.
pub type AwaySince = Option<Instant>;

/// Whether the requests of a client and of its clones are answered. The API server is away after a request failed,
/// unless another one was answered meanwhile: then only some requests fail, and theirs is the usual back-off.
#[derive(Default)]
pub(super) struct Availability {
    away_since: watch::Sender<AwaySince>,
    answered: AtomicU64,
    /// Whether the last answer was 401 Unauthorized.
    is_rejected: AtomicBool,
}

/// What the result of a request changed.
#[derive(Debug, PartialEq)]
enum AvailabilityChange {
    Lost,
    Recovered(Duration),
}

impl Availability {
    /// The number of answered requests.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Records the result of a request; `answered_before` is the number of answered requests when it began.
    fn observe<T>(
        &self,
        result: &Result<T, ApiError>,
        answered_before: u64,
    ) -> Option<AvailabilityChange> {
        if result.as_ref().err().is_some_and(ApiError::is_absence) {
            let is_lost = self.answered() == answered_before
                && self.away_since.send_if_modified(|since| {
                    let is_new = since.is_none();
                    since.get_or_insert_with(clock::instant);
                    is_new
                });
            return is_lost.then_some(AvailabilityChange::Lost);
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        let mut before = None;
        self.away_since.send_if_modified(|since| {
            before = since.take();
            before.is_some()
        });
        before.map(|since| AvailabilityChange::Recovered(clock::since(since)))
    }

    /// Whether the result changed whether the credentials are rejected; the new value.
    fn observe_credentials<T>(&self, result: &Result<T, ApiError>) -> Option<bool> {
        let is_rejected = match result {
            Err(error) if error.is_unauthorized() => true,
            Ok(_) | Err(ApiError::Status { .. }) => false,
            Err(_) => return None,
        };
        let before = self.is_rejected.swap(is_rejected, Ordering::Relaxed);
        (before != is_rejected).then_some(is_rejected)
    }
}

/// Recoveries since the last wait.
pub struct Recovery(watch::Receiver<AwaySince>);

impl Recovery {
    /// Waits until `next_try`, which is brought forward when any request reaches the API server again. Cancel safe.
    pub async fn wait(&mut self, next_try: &mut Instant) {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.0.changed() => {
                    if self.0.borrow_and_update().is_none() {
                        let soon = clock::instant() + MAX_WAIT.mul_f64(fastrand::f64());
                        *next_try = soon.min(*next_try);
                    }
                }
                () = sleep_until(*next_try) => return,
            }
        }
    }
}

impl ApiServer {
    /// Subscribes to recoveries from now on.
    pub fn recovery(&self) -> Recovery {
        Recovery(self.availability())
    }

    /// Notifies when the API server stops responding, and when it responds again.
    pub fn availability(&self) -> watch::Receiver<AwaySince> {
        self.availability.away_since.subscribe()
    }

    /// Whether a request failed for a reason that is in the log already: an outage, or rejected credentials.
    pub fn is_reported(&self, error: &ApiError) -> bool {
        let availability = &self.availability;
        error.is_absence() && availability.away_since.borrow().is_some()
            || error.is_unauthorized() && availability.is_rejected.load(Ordering::Relaxed)
    }

    /// Records the result of a request, and logs when an outage begins and ends, and when the credentials are rejected
    /// and accepted again. `answered_before` is the number of answered requests when the request began.
    pub(super) fn observe<T>(&self, result: &Result<T, ApiError>, answered_before: u64) {
        if let Some(is_rejected) = self.availability.observe_credentials(result) {
            self.log_credentials(is_rejected);
        }
        let Some(change) = self.availability.observe(result, answered_before) else {
            return;
        };
        let connection = self.connection.latest();
        match (change, result) {
            (AvailabilityChange::Lost, Err(error)) => {
                tracing::error!(
                    server = %connection.url,
                    kubeconfig = %connection.kubeconfig.display(),
                    files = connection.file_names(),
                    proxy = connection.proxy,
                    err = %error_chain(error),
                    "The API server does not respond; requests are repeated until it does"
                );
            }
            (AvailabilityChange::Recovered(outage), _) => {
                let seconds = outage.as_secs();
                tracing::info!(server = %connection.url, seconds, "The API server responds again");
            }
            (AvailabilityChange::Lost, Ok(_)) => {}
        }
    }

    fn log_credentials(&self, is_rejected: bool) {
        let connection = self.connection.latest();
        let (server, sent) = (&connection.url, &connection.credentials);
        if is_rejected {
            tracing::error!(
                %server,
                kubeconfig = %connection.kubeconfig.display(),
                files = connection.file_names(),
                sent,
                "The API server rejects the credentials; requests are repeated until it accepts them"
            );
        } else {
            tracing::info!(%server, sent, "The API server accepts the credentials again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn the_server_recovers_only_from_an_absence_and_not_from_a_slow_request() {
        let availability = Availability::default();
        let late = || Err::<(), _>(ApiError::Timeout(Duration::ZERO));
        let answered = || availability.observe(&Ok(()), availability.answered());
        let recovered = || matches!(answered(), Some(AvailabilityChange::Recovered(_)));
        // Another request was answered while this one was late.
        let began = availability.answered();
        assert_eq!(answered(), None);
        assert_eq!(availability.observe(&late(), began), None);
        assert!(!recovered());
        // Nothing was answered: an outage begins and ends once.
        let began = availability.answered();
        let lost = availability.observe(&late(), began);
        assert_eq!(lost, Some(AvailabilityChange::Lost));
        assert_eq!(availability.observe(&late(), began), None);
        assert!(recovered());
        assert!(!recovered());
    }

    #[test]
    fn rejected_credentials_are_noticed_once_and_no_outage_says_otherwise() {
        let availability = Availability::default();
        let status = |status| {
            Err::<(), _>(ApiError::from_response(StatusCode::from_u16(status).unwrap(), b""))
        };
        for (result, change) in [
            (Ok(()), None),
            (status(401), Some(true)),
            (status(401), None),
            (Err(ApiError::Timeout(Duration::ZERO)), None),
            (status(401), None),
            (status(403), Some(false)),
            (Ok(()), None),
        ] {
            assert_eq!(availability.observe_credentials(&result), change);
        }
    }
}
