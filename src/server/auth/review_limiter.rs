//! Rate and concurrency limits of reviews, so that requests of unknown clients neither overload the API server nor
//! delay known clients.

use super::ReviewFailure;
use super::cache::{ExpiringMap, ReviewKey};
use crate::base::{TokenBucket, clock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Maximum number of concurrent reviews for known clients.
const MAX_KNOWN: usize = 32;
/// Maximum number of concurrent reviews for unknown clients.
const MAX_UNKNOWN: usize = 8;
/// Maximum time that an unknown client's review waits for the rate limit; if it would be longer, the request is
/// rejected with 429.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// How long a client counts as known after its token was accepted. Longer than reviews are cached, so that the next
/// review of the token is not delayed by the rate limit.
const KNOWN_TTL: Duration = Duration::from_secs(3600);
/// Maximum number of accepted tokens that are remembered.
const MAX_TOKENS: usize = 4096;

/// Limits of reviews; cheap to clone.
#[derive(Clone)]
pub(super) struct ReviewLimiter {
    inner: Arc<ReviewLimiterState>,
}

struct ReviewLimiterState {
    known: Semaphore,
    unknown: Semaphore,
    rate: Mutex<TokenBucket>,
    accepted: Mutex<ExpiringMap<()>>,
}

impl ReviewLimiter {
    /// Limits the reviews of unknown clients to `qps` per second on average and `burst` at once; a `qps` of zero
    /// means no limit.
    pub(super) fn new(qps: u32, burst: u32) -> Self {
        Self {
            inner: Arc::new(ReviewLimiterState {
                known: Semaphore::new(MAX_KNOWN),
                unknown: Semaphore::new(MAX_UNKNOWN),
                rate: Mutex::new(TokenBucket::new(f64::from(qps), burst)),
                accepted: Mutex::new(ExpiringMap::new(MAX_TOKENS)),
            }),
        }
    }

    /// Records that the token with this digest was accepted.
    pub(super) fn accept(&self, token: ReviewKey) {
        let now = clock::instant();
        let mut accepted = self.inner.accepted.lock();
        accepted.insert(token, (), now + KNOWN_TTL, now);
    }

    /// Whether the token with this digest was accepted recently.
    pub(super) fn was_accepted(&self, token: &ReviewKey) -> bool {
        self.inner.accepted.lock().get(token, clock::instant()).is_some()
    }

    /// Runs a review once it is admitted. The caller sets the timeout.
    ///
    /// # Errors
    /// The error of the review, or [`ReviewFailure::RateLimited`] above the rate limit of unknown clients.
    pub(super) async fn run<T>(
        &self,
        is_known: bool,
        review: impl Future<Output = Result<T, ReviewFailure>>,
    ) -> Result<T, ReviewFailure> {
        let permits = if is_known {
            &self.inner.known
        } else {
            let delay = self.inner.rate.lock().take(clock::instant(), MAX_DELAY);
            sleep(delay.ok_or(ReviewFailure::RateLimited)?).await;
            &self.inner.unknown
        };
        // The semaphore is never closed; if it were, the review would run without a permit.
        let _permit = permits.acquire().await.ok();
        review.await
    }
}
