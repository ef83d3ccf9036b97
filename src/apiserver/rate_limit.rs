//! The limit of requests per second (`kubeAPIQPS`), in order of arrival. A watch takes no place in it, as upstream: all end
//! together when an API server restarts, and the pods would then be heard of last.

use super::ApiError;
use crate::base::{TokenBucket, clock};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a request may wait for the rate limit; its own deadline begins after that.
const RATE_TIMEOUT: Duration = Duration::from_secs(60);

/// How a request waits for the rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    /// In order of arrival.
    Ordinary,
    /// Only one at a time waits among the ordinary ones, because there may be thousands.
    Bulk,
}

impl RequestClass {
    /// The class of requests for objects of this kind.
    pub(super) fn of<K: k8s_openapi::Resource>() -> Self {
        match K::KIND {
            "ConfigMap" | "Secret" | "Event" => Self::Bulk,
            _ => Self::Ordinary,
        }
    }
}

pub(super) struct RateLimit {
    bucket: Mutex<TokenBucket>,
    /// A request that waits for its token holds it.
    turn: tokio::sync::Mutex<()>,
    /// The bulk request that waits for its turn or its token holds it.
    bulk: tokio::sync::Mutex<()>,
}

impl RateLimit {
    pub(super) fn new(qps: u32, burst: u32) -> Self {
        Self {
            bucket: Mutex::new(TokenBucket::new(f64::from(qps), burst)),
            turn: tokio::sync::Mutex::default(),
            bulk: tokio::sync::Mutex::default(),
        }
    }

    /// Waits for a token. Dropping the future costs at most one token.
    ///
    /// # Errors
    /// Too many requests are waiting.
    pub(super) async fn admitted(&self, class: RequestClass) -> Result<(), ApiError> {
        let admission = async {
            let _bulk = match class {
                RequestClass::Ordinary => None,
                RequestClass::Bulk => Some(self.bulk.lock().await),
            };
            let _turn = self.turn.lock().await;
            let wait = self.bucket.lock().take(clock::instant(), Duration::MAX);
            if let Some(wait) = wait {
                sleep(wait).await;
            }
        };
        let admitted = timeout(RATE_TIMEOUT, admission).await;
        admitted.map_err(|_| {
            ApiError::Unreachable("too many requests wait for their place in kubeAPIQPS".into())
        })
    }

    /// Gives a token back: its request did not reach the API server.
    pub(super) fn give_back(&self) {
        self.bucket.lock().give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn requests_for_pods_wait_for_one_bulk_request_and_bulk_requests_are_not_starved() {
        let limit = Arc::new(RateLimit::new(1, 1));
        let begin = |class| {
            let limit = limit.clone();
            let begun = clock::instant();
            tokio::spawn(async move { limit.admitted(class).await.map(|()| clock::since(begun)) })
        };
        let bulk: Vec<_> = (0..50).map(|_| begin(RequestClass::Bulk)).collect();
        tokio::task::yield_now().await;
        let ordinary: Vec<_> = (0..5).map(|_| begin(RequestClass::Ordinary)).collect();
        let mut waits = Vec::new();
        for one in ordinary {
            waits.push(one.await.unwrap().unwrap().as_secs());
        }
        assert!(waits.iter().all(|wait| *wait <= 7), "{waits:?}");
        let mut last = Duration::ZERO;
        for one in bulk {
            last = last.max(one.await.unwrap().unwrap());
        }
        assert_eq!(last.as_secs(), 54, "55 tokens, the first at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_given_back_is_used_again() {
        let limit = RateLimit::new(1, 1);
        let begun = clock::instant();
        for _ in 0..10 {
            limit.admitted(RequestClass::Ordinary).await.unwrap();
            limit.give_back();
        }
        assert_eq!(clock::since(begun), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_too_long_fails() {
        let limit = Arc::new(RateLimit::new(1, 1));
        let waiting = (0..70).map(|_| limit.admitted(RequestClass::Ordinary));
        let results = futures::future::join_all(waiting).await;
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 9);
    }
}
