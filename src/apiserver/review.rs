//! TokenReviews and SubjectAccessReviews.

use super::ApiServer;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
        authorization::v1::{
            SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
        },
    },
    apimachinery::pkg::apis::meta::v1::Status,
};
use kube::client::Body;
use serde::{Serialize, de::DeserializeOwned};
use std::{error::Error, io, time::Duration};
use tokio::time::{Instant, sleep, timeout_at};

/// Deadline of one review with all its tries; upstream's `TokenAccessReviewTimeout`.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Tries of one review, and the delay between them: half a second, increased by half each time (upstream's
/// `DefaultAuthWebhookRetryBackoff`).
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Largest response, bytes.
const MAX_ANSWER: usize = 1024 * 1024;
/// Longest text of the API server in an error, bytes.
const MAX_TEXT: usize = 512;

/// Why a review failed. Never contains what was reviewed: that may be a token.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server responded with an error.
    #[error("the API server returned {status}: {text}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Its message, cut short.
        text: String,
    },
    /// The connection failed.
    #[error("the request to the API server failed")]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    /// The response is not a review, or too large.
    #[error("invalid response of the API server")]
    Unreadable(#[source] Box<dyn Error + Send + Sync>),
    /// The deadline is over.
    #[error("the API server did not respond within {} s", TIMEOUT.as_secs())]
    Late,
}

impl ReviewError {
    /// Whether a retry may succeed; upstream's `DefaultShouldRetry`.
    fn is_passing(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                matches!(status.as_u16(), 429 | 500 | 503 | 504)
            }
            Self::Unreachable(error) => is_lost(error.as_ref()),
            Self::Unreadable(_) | Self::Late => false,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Review {
    /// The user of a token.
    Token,
    /// The right of a user.
    Access,
}

impl Review {
    fn path(self) -> &'static str {
        match self {
            Self::Token => "/apis/authentication.k8s.io/v1/tokenreviews",
            Self::Access => "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        }
    }
}

/// A request that is counted when it ends, also when its deadline cancels it.
struct Observed<'a> {
    api: &'a ApiServer,
    review: Review,
    status: Option<u16>,
    begun: Instant,
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = &self.api.metrics {
            let took = self.begun.elapsed();
            let host = &self.api.connection.latest().host;
            metrics.observe(host, self.review, self.status, took);
        }
    }
}

impl ApiServer {
    /// Reviews a token.
    ///
    /// # Errors
    /// The review failed. An invalid token is a result.
    pub async fn review_token(&self, token: &str) -> Result<TokenReviewStatus, ReviewError> {
        let question = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let answer: TokenReview = self.send(Review::Token, &question).await?;
        Ok(answer.status.unwrap_or_default())
    }

    /// Reviews whether a user has a right.
    ///
    /// # Errors
    /// The review failed. "No" is a result.
    pub async fn review_access(
        &self,
        spec: &SubjectAccessReviewSpec,
    ) -> Result<SubjectAccessReviewStatus, ReviewError> {
        let question = SubjectAccessReview {
            spec: spec.clone(),
            ..SubjectAccessReview::default()
        };
        let answer: SubjectAccessReview = self.send(Review::Access, &question).await?;
        Ok(answer.status.unwrap_or_default())
    }

    async fn send<Q>(&self, review: Review, question: &Q) -> Result<Q, ReviewError>
    where
        Q: Serialize + DeserializeOwned,
    {
        let deadline = Instant::now() + TIMEOUT;
        let question = serde_json::to_vec(question);
        let question = question.map_err(|error| ReviewError::Unreadable(error.into()))?;
        let mut wait = FIRST_WAIT;
        for again in (0..TRIES).rev() {
            let error = match timeout_at(deadline, self.send_once(review, &question)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => return Err(ReviewError::Late),
            };
            let jitter = wait.mul_f64(0.2 * fastrand::f64());
            if again == 0 || !error.is_passing() || Instant::now() + wait + jitter >= deadline {
                return Err(error);
            }
            sleep(wait + jitter).await;
            wait = wait.mul_f64(1.5);
        }
        Err(ReviewError::Late)
    }

    async fn send_once<Q: DeserializeOwned>(
        &self,
        review: Review,
        question: &[u8],
    ) -> Result<Q, ReviewError> {
        let mut observed = Observed {
            api: self,
            review,
            status: None,
            begun: Instant::now(),
        };
        let request = Request::builder()
            .method(Method::POST)
            .uri(review.path())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Body::from(question.to_vec()))
            .map_err(|error| ReviewError::Unreadable(error.into()))?;
        let client = self.connection.current().await.client.clone();
        let answer = client.send(request).await;
        let answer = answer.map_err(|error| ReviewError::Unreachable(error.into()))?;
        let status = answer.status();
        observed.status = Some(status.as_u16());
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                ReviewError::Unreadable(error)
            } else {
                ReviewError::Unreachable(error)
            }
        })?;
        let body = body.to_bytes();
        if !status.is_success() {
            return Err(ReviewError::Refused {
                status,
                text: refusal(&body),
            });
        }
        serde_json::from_slice(&body).map_err(|error| {
            // The error of the parser quotes its input, which may be a token.
            let place = format!("at line {}, column {}", error.line(), error.column());
            ReviewError::Unreadable(place.into())
        })
    }
}

/// The message of a `Status`; any other text is not repeated.
fn refusal(body: &[u8]) -> String {
    let status: Option<Status> = serde_json::from_slice(body).ok();
    let message = status.and_then(|status| status.message);
    let mut text = message.unwrap_or_else(|| "it did not say why".to_owned());
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
    }
    text
}
