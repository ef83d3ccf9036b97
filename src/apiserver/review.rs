//! TokenReviews and SubjectAccessReviews.

use super::metrics::CountedMethod as Counted;
use super::request::path;
use super::{ApiError, ApiServer};
use crate::base::clock;
use bytes::Bytes;
use http::Method;
use k8s_openapi::Resource;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::{sleep, timeout_at};

/// Deadline of one review with all retries; upstream's `TokenAccessReviewTimeout`.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of attempts of one review, and the delay between them: half a second, growing by half each time
/// (upstream's `DefaultAuthWebhookRetryBackoff`).
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);

impl ApiServer {
    /// Reviews a token.
    ///
    /// # Errors
    /// The request failed. A rejected token is a result, not an error.
    pub async fn review_token(&self, token: &str) -> Result<TokenReviewStatus, ApiError> {
        let question = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let answer: TokenReview = self.review(Counted::TokenReview, &question).await?;
        Ok(answer.status.unwrap_or_default())
    }

    /// Reviews whether a user is authorized.
    ///
    /// # Errors
    /// The request failed. A denial is a result, not an error.
    pub async fn review_access(
        &self,
        spec: &SubjectAccessReviewSpec,
    ) -> Result<SubjectAccessReviewStatus, ApiError> {
        let question = SubjectAccessReview { spec: spec.clone(), ..SubjectAccessReview::default() };
        let answer: SubjectAccessReview = self.review(Counted::AccessReview, &question).await?;
        Ok(answer.status.unwrap_or_default())
    }

    async fn review<Q>(&self, counted: Counted, question: &Q) -> Result<Q, ApiError>
    where
        Q: Resource + Serialize + DeserializeOwned,
    {
        let deadline = clock::instant() + TIMEOUT;
        let question = serde_json::to_vec(question).map(Bytes::from);
        let question = question.map_err(|error| ApiError::unreadable(&error))?;
        let mut wait = FIRST_WAIT;
        for again in (0..TRIES).rev() {
            let path = path::<Q>(None, None, None);
            let sent = self.json_counted(counted, Method::POST, path, question.clone());
            let error = match timeout_at(deadline, sent).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => break,
            };
            let jitter = wait.mul_f64(0.2 * fastrand::f64());
            let is_late = clock::instant() + wait + jitter >= deadline;
            if again == 0 || !error.is_retried_by_reviews() || is_late {
                return Err(error);
            }
            sleep(wait + jitter).await;
            wait = wait.mul_f64(1.5);
        }
        Err(ApiError::Timeout(TIMEOUT))
    }
}
