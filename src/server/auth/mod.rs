//! Authentication and authorization of the main port.
//!
//! * Owns: the cached results of TokenReviews and SubjectAccessReviews.
//! * Woken by a request, before its handler runs.
//! * Publishes: the user, or the error response.
//! * Must never store or log a token, call the API server without a timeout, or derive rights from a path: the
//!   required subresources come from the route.
//! * Upstream: `cmd/kubelet/app/auth.go`, `pkg/kubelet/server/auth.go` and
//!   `k8s.io/apiserver/pkg/{authentication,authorization}`.

mod review_limiter;
mod attributes;
mod cache;
mod certificate;
mod metrics;
mod settings;
mod user;

pub use attributes::{PROXY, Subresources};
pub use certificate::Peer;
pub use settings::{AuthSettings, AuthorizationMode, InvalidAuthSettings};
pub use user::User;

use self::attributes::{access_review, allows, forbidden, review_failed, verb};
use self::cache::{ReviewCache, ReviewKey};
use self::metrics::AuthMetrics;
use self::review_limiter::ReviewLimiter;
use self::user::{AuthenticationOutcome, authenticated_user, of_token_review, token};
use super::http::websocket;
use super::tls::ClientCaFile;
use crate::apiserver::{ApiError, ApiServer, TIMEOUT};
use crate::base::metrics::Metrics;
use crate::base::{clock, error_chain};
use http::{HeaderMap, Method, StatusCode};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of cached results of each kind.
const CACHE_SIZE: usize = 4096;
/// Maximum time for which a rejected token is cached. Upstream does not cache it.
const REJECTED_TTL: Duration = Duration::from_secs(10);
/// Maximum size in bytes of a user's groups and other attributes; results with a larger user are not cached.
const MAX_CACHED_USER: usize = 16 * 1024;

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthRejection {
    /// The client is not authenticated. Has a reason only for a server error, such as a failed review.
    Unauthenticated(Option<String>),
    /// The user is not authorized.
    Forbidden(String),
    /// The authorization review failed.
    ReviewFailed(String),
    /// Unknown clients exceeded the rate limit of reviews.
    RateLimited,
}

impl AuthRejection {
    /// The status code: 401, 403, 429 or 500.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::ReviewFailed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The text of the response. Begins as upstream's, followed by the reason if a review failed
    /// (`docs/deviations.md`).
    pub fn text(&self) -> String {
        match self {
            Self::Unauthenticated(None) => "Unauthorized".into(),
            Self::Unauthenticated(Some(why)) => format!("Unauthorized: {why}"),
            Self::Forbidden(text) | Self::ReviewFailed(text) => text.clone(),
            // Upstream's text for an overloaded server.
            Self::RateLimited => "Too many requests, please try again later.".into(),
        }
    }
}

/// Authenticates and authorizes requests.
pub struct KubeletAuth {
    settings: AuthSettings,
    node_name: String,
    client_ca: Option<Arc<ClientCaFile>>,
    api: Option<ApiServer>,
    limiter: ReviewLimiter,
    token_reviews: ReviewCache<AuthenticationOutcome, ReviewFailure>,
    metrics: AuthMetrics,
    access_reviews: ReviewCache<bool, ReviewFailure>,
}

/// Why a review failed.
#[derive(Debug, thiserror::Error)]
enum ReviewFailure {
    #[error(transparent)]
    Review(#[from] ApiError),
    #[error("{0}")]
    Contradiction(&'static str),
    #[error("too many reviews for unknown clients")]
    RateLimited,
}

impl KubeletAuth {
    /// Builds the authenticator of this node. `client_ca` verifies client certificates.
    ///
    /// # Errors
    /// The settings need an API server and there is none, or no request could be authenticated.
    pub fn new(
        settings: AuthSettings,
        node_name: &str,
        client_ca: Option<Arc<ClientCaFile>>,
        api: Option<ApiServer>,
    ) -> Result<Self, InvalidAuthSettings> {
        settings.check(api.is_some())?;
        let limiter = ReviewLimiter::new(settings.review_qps, settings.review_burst);
        Ok(Self {
            settings,
            node_name: node_name.to_owned(),
            client_ca,
            api,
            limiter,
            token_reviews: ReviewCache::new(CACHE_SIZE),
            metrics: AuthMetrics::register(&Metrics::new()),
            access_reviews: ReviewCache::new(CACHE_SIZE),
        })
    }

    /// Shows the metrics of authentication in `metrics`.
    #[must_use]
    pub fn measured(self, metrics: &Metrics) -> Self {
        Self { metrics: AuthMetrics::register(metrics), ..self }
    }

    /// Authenticates a request.
    ///
    /// # Errors
    /// The rejection. Server errors were already logged.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<User, AuthRejection> {
        let certificate = match (&self.client_ca, peer) {
            (Some(client_ca), Some(peer)) => peer.user(client_ca.current().await),
            _ => AuthenticationOutcome::NoCredentials,
        };
        if let AuthenticationOutcome::User(_) = &certificate
            && let Some(remaining) = peer.and_then(Peer::remaining)
        {
            self.metrics.certificate_expiration.observe(remaining.as_secs_f64());
        }
        let token = match &certificate {
            AuthenticationOutcome::User(_) => AuthenticationOutcome::NoCredentials,
            _ => self.by_token(headers).await?,
        };
        authenticated_user(certificate, token, self.settings.anonymous).map_err(|why| {
            tracing::debug!(err = why, "Unable to authenticate the request");
            AuthRejection::Unauthenticated(None)
        })
    }

    /// Authenticates by the token in the header, else by the one in the subprotocols of a WebSocket.
    async fn by_token(&self, headers: &HeaderMap) -> Result<AuthenticationOutcome, AuthRejection> {
        let rejection = |error: Arc<ReviewFailure>| {
            if matches!(*error, ReviewFailure::RateLimited) {
                return AuthRejection::RateLimited;
            }
            let why = error_chain(error.as_ref());
            tracing::warn!(err = why, "Unable to authenticate the request");
            AuthRejection::Unauthenticated(Some(why))
        };
        let in_header = match token(headers) {
            Some(token) => self.review(token).await.map_err(rejection)?,
            None => AuthenticationOutcome::NoCredentials,
        };
        if matches!(in_header, AuthenticationOutcome::User(_)) {
            return Ok(in_header);
        }
        match websocket::token(headers) {
            Ok(Some(token)) => self.review(&token).await.map_err(rejection),
            Ok(None) => Ok(in_header),
            Err(why) => Ok(AuthenticationOutcome::Invalid(why.into())),
        }
    }

    async fn review(&self, token: &str) -> Result<AuthenticationOutcome, Arc<ReviewFailure>> {
        let (Some(max_ttl), Some(api)) = (self.settings.token_ttl, &self.api) else {
            return Ok(AuthenticationOutcome::NoCredentials);
        };
        let (key, started_at) = (digest(token.as_bytes()), clock::instant());
        if let Some(outcome) = self.token_reviews.get_cached(&key) {
            self.metrics.lookup(true, started_at);
            return Ok(outcome);
        }
        let review = || {
            let (api, token, limiter) = (api.clone(), token.to_owned(), self.limiter.clone());
            let metrics = self.metrics.clone();
            async move {
                let in_flight = metrics.in_flight();
                let is_known = limiter.was_accepted(&key);
                let reviewed = async { Ok(of_token_review(api.review_token(&token).await?)) };
                let outcome = with_deadline(limiter.run(is_known, reviewed)).await;
                drop(in_flight);
                metrics.fetches.with([if outcome.is_ok() { "ok" } else { "error" }]).inc();
                if matches!(outcome, Ok(AuthenticationOutcome::User(_))) {
                    limiter.accept(key);
                }
                outcome
            }
        };
        let ttl = move |outcome: &AuthenticationOutcome| match outcome {
            AuthenticationOutcome::User(user) if size(user) <= MAX_CACHED_USER => max_ttl,
            AuthenticationOutcome::User(_) => Duration::ZERO,
            AuthenticationOutcome::NoCredentials | AuthenticationOutcome::Invalid(_) => {
                max_ttl.min(REJECTED_TTL)
            }
        };
        let blocked = self.metrics.blocked();
        let outcome = self.token_reviews.get(key, review, ttl).await;
        drop(blocked);
        self.metrics.lookup(false, started_at);
        outcome
    }

    /// Checks that the user has access to one of the subresources. `is_upgrade` is whether the request upgrades its
    /// connection.
    ///
    /// # Errors
    /// The rejection. Server errors were already logged.
    pub async fn authorize(
        &self,
        user: &User,
        method: &Method,
        is_upgrade: bool,
        subresources: Subresources,
    ) -> Result<(), AuthRejection> {
        let AuthorizationMode::Webhook { allowed_ttl, denied_ttl } = self.settings.authorization
        else {
            return Ok(());
        };
        let verb = verb(method, is_upgrade && self.settings.strict_upgrade_verbs);
        for subresource in subresources {
            match self.is_allowed(user, verb, subresource, (allowed_ttl, denied_ttl)).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if matches!(*error, ReviewFailure::RateLimited) => {
                    return Err(AuthRejection::RateLimited);
                }
                Err(error) => {
                    let text = review_failed(&user.name, verb, subresource);
                    tracing::warn!(err = error_chain(error.as_ref()), "{text}");
                    return Err(AuthRejection::ReviewFailed(format!(
                        "{text}: {}",
                        error_chain(error.as_ref())
                    )));
                }
            }
        }
        let text = forbidden(&user.name, verb, subresources);
        tracing::debug!("{text}");
        Err(AuthRejection::Forbidden(text))
    }

    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &str,
        (allowed_ttl, denied_ttl): (Duration, Duration),
    ) -> Result<bool, Arc<ReviewFailure>> {
        // `new` rejects webhook authorization without an API server.
        let Some(api) = &self.api else {
            return Ok(false);
        };
        let spec = access_review(user, verb, &self.node_name, subresource);
        let key = digest(&serde_json::to_vec(&spec).unwrap_or_default());
        let review = || {
            let (api, limiter) = (api.clone(), self.limiter.clone());
            let is_known = !user.is_anonymous();
            with_deadline(async move {
                let review = async { Ok(api.review_access(&spec).await?) };
                let status = limiter.run(is_known, review).await?;
                allows(&status).map_err(ReviewFailure::Contradiction)
            })
        };
        let ttl = move |allowed: &bool| if *allowed { allowed_ttl } else { denied_ttl };
        self.access_reviews.get(key, review, ttl).await
    }
}

/// Runs a review with a timeout, which includes waiting for its limiter.
async fn with_deadline<T>(
    review: impl Future<Output = Result<T, ReviewFailure>>,
) -> Result<T, ReviewFailure> {
    let reviewed = timeout(TIMEOUT, review).await;
    reviewed.unwrap_or(Err(ReviewFailure::Review(ApiError::Timeout(TIMEOUT))))
}

fn digest(bytes: &[u8]) -> ReviewKey {
    Sha256::digest(bytes).into()
}

/// The size of a user's attributes in bytes.
fn size(user: &User) -> usize {
    let groups = user.groups.iter().map(String::len);
    let extra = user.extra.iter();
    let extra =
        extra.map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
    user.name.len() + user.uid.len() + groups.chain(extra).sum::<usize>()
}
