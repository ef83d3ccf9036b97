//! Service account tokens for pod volumes.
//!
//! * Owns: a token per service account and token specification that a pod mounts, renewed before it expires.
//! * Woken by: its callers and timers.
//! * Publishes: the set of pods whose tokens changed.
//! * Must never log a token, or remove one before it expires because it cannot be renewed.
//! * Upstream: `pkg/kubelet/token`.

use super::subscriptions::{NoValue, Publisher, Subscriptions, sleep_until_time};
use super::{ApiError, ApiServer, ResourcePath};
use crate::base::clock::{self, Instant};
use crate::base::{DirtySet, SingleFlight, error_chain};
use crate::model::PodUid;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, sleep_until};

/// Maximum age of a token before it is renewed, however long its lifetime.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Maximum random shift of a renewal, so that tokens issued together are not renewed together.
const MAX_JITTER: SignedDuration = SignedDuration::from_secs(10);
/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 16;
/// The delay after a failure, doubling from `FIRST_DELAY` to `MAX_DELAY`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Identifies a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// Namespace of the service account and the pod.
    pub namespace: String,
    /// The service account's name.
    pub service_account: String,
    /// The intended audience; `None` for that of the API server.
    pub audience: Option<String>,
    /// Requested lifetime, seconds.
    pub expiration_seconds: Option<i64>,
    /// The name of the pod that it is bound to.
    pub pod_name: String,
    /// The UID of that pod.
    pub pod_uid: PodUid,
}

/// A service account token. Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub Bytes);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why a token is not available; upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is no API server.
    #[error("cannot use TokenManager when kubelet is in standalone mode")]
    Standalone,
    /// The token request failed.
    #[error("failed to fetch token: {0}")]
    Fetch(String),
    /// The token has expired and could not be renewed.
    #[error("token {name:?}/{namespace:?} expired and refresh failed: {why}")]
    Expired {
        /// The service account.
        name: String,
        /// Its namespace.
        namespace: String,
        /// The error of the renewal.
        why: String,
    },
}

impl From<NoValue> for TokenError {
    fn from(none: NoValue) -> Self {
        none.why().map_or(Self::Standalone, Self::Fetch)
    }
}

/// The results of a request; every requested token has one.
pub type FoundTokens = BTreeMap<TokenKey, Result<Token, TokenError>>;

/// The tokens that pods mount. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tokens(Subscriptions<ApiTokens, TokenKey, Result<Token, TokenError>>);

#[derive(Clone)]
struct ApiTokens {
    api: ApiServer,
    requests: Arc<Semaphore>,
}

impl Tokens {
    /// Requests tokens from this API server; with `None` every request fails. A pod is marked in `changed` when one of
    /// its tokens changes.
    pub fn new(api: Option<ApiServer>, changed: Arc<DirtySet<PodUid>>) -> Self {
        let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
        let api = api.map(|api| ApiTokens { api, requests });
        Self(Subscriptions::new(api, changed))
    }

    /// Sets the tokens that a pod mounts.
    pub fn register(&self, uid: &PodUid, keys: BTreeSet<TokenKey>) {
        let keep = |api: ApiTokens, key, publisher| async move { api.keep(&key, &publisher).await };
        self.0.register(uid, keys, keep);
    }

    /// Removes the tokens of a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.forget(uid);
    }

    /// Returns these tokens. Waits a bounded time for the first ones.
    pub async fn get(&self, keys: BTreeSet<TokenKey>) -> FoundTokens {
        self.0.results(keys).await
    }
}

impl ApiTokens {
    /// Requests a token and renews it before it expires, forever.
    async fn keep(&self, key: &TokenKey, publisher: &Publisher<Result<Token, TokenError>>) {
        let mut delay = FIRST_DELAY;
        let mut recovery = self.api.recovery();
        let mut expiry = None;
        loop {
            let requested = clock::instant();
            // Boxed, because the large future would otherwise take memory in the task while it sleeps.
            match Box::pin(self.request(key)).await {
                Ok(issued) => {
                    delay = FIRST_DELAY;
                    expiry = Some(issued.expiry(requested));
                    let jitter = fastrand::f64();
                    let renew = issued.renew_at(jitter);
                    let age = Duration::try_from(issued.age_at_renewal(jitter)).unwrap_or_default();
                    publisher.publish(Ok(issued.token));
                    if renew > clock::timestamp() {
                        // This clock may be behind the API server's, or be set back.
                        tokio::select! {
                            () = sleep_until_time(renew) => {}
                            () = sleep_until(requested + age) => {}
                        }
                    } else {
                        // The API server's clock differs from this one, or its tokens are not usable.
                        sleep(MAX_DELAY).await;
                    }
                    continue;
                }
                Err(error) => {
                    failed(key, &error, expiry, publisher);
                    let wait = delay.mul_f64(1.0 + 0.5 * fastrand::f64());
                    recovery.wait(&mut (clock::instant() + wait)).await;
                    delay = (delay * 2).min(MAX_DELAY);
                }
            }
        }
    }

    async fn request(&self, key: &TokenKey) -> Result<IssuedToken, ApiError> {
        let _permit = self.requests.acquire().await;
        request(&self.api, key).await
    }
}

/// A token that was requested once.
#[derive(Clone, Debug)]
pub struct IssuedOnce {
    /// The token.
    pub token: Token,
    /// When a new one is to be requested.
    renew: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

/// Tokens that are requested when they are needed, and reused until they have to be renewed. Cheap to clone.
#[derive(Clone, Default)]
pub struct IssuedTokens(Arc<IssuedTokensInner>);

#[derive(Default)]
struct IssuedTokensInner {
    api: Option<ApiServer>,
    tokens: Mutex<HashMap<TokenKey, IssuedOnce>>,
    flights: SingleFlight<TokenKey, Result<IssuedOnce, String>>,
}

impl IssuedTokens {
    /// Requests tokens from this API server; with `None` every request fails.
    pub fn new(api: Option<ApiServer>) -> Self {
        Self(Arc::new(IssuedTokensInner { api, ..IssuedTokensInner::default() }))
    }

    /// Returns a token that does not have to be renewed yet.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn get(&self, key: TokenKey) -> Result<IssuedOnce, TokenError> {
        let known = {
            let mut tokens = self.0.tokens.lock();
            let now = clock::timestamp();
            tokens.retain(|_, issued| now < issued.renew);
            tokens.get(&key).cloned()
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let api = self.0.api.as_ref().ok_or(TokenError::Standalone)?;
        let begin = || {
            let (api, key) = (api.clone(), key.clone());
            async move {
                let issued = issue(&api, &key).await;
                issued.map_err(|error| error_chain(&error))
            }
        };
        let issued = self.0.flights.join(key.clone(), begin).await;
        let issued = issued.map_err(TokenError::Fetch)?;
        self.0.tokens.lock().insert(key, issued.clone());
        Ok(issued)
    }

    /// Removes the tokens of a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.tokens.lock().retain(|key, _| key.pod_uid != *uid);
    }
}

async fn issue(api: &ApiServer, key: &TokenKey) -> Result<IssuedOnce, ApiError> {
    let requested = clock::timestamp();
    let issued = request(api, key).await?;
    let jitter = fastrand::f64();
    let renew = issued.renew_at(jitter);
    // This clock may be behind the API server's.
    let of_age = requested.saturating_add(issued.age_at_renewal(jitter));
    Ok(IssuedOnce {
        renew: of_age.map_or(renew, |of_age| renew.min(of_age)),
        token: issued.token,
        expires: issued.expires,
    })
}

async fn request(api: &ApiServer, key: &TokenKey) -> Result<IssuedToken, ApiError> {
    let body = TokenRequest { spec: Some(spec(key)), ..TokenRequest::default() };
    let account = ResourcePath::namespaced(&key.namespace, &key.service_account);
    let reply: TokenRequest =
        api.create_subresource::<ServiceAccount, _, _>(account, "token", &body).await?;
    IssuedToken::of(reply).ok_or_else(|| {
        ApiError::Unreadable("the response has no token or no time of expiration".into())
    })
}

fn failed(
    key: &TokenKey,
    error: &ApiError,
    expiry: Option<TokenExpiry>,
    publisher: &Publisher<Result<Token, TokenError>>,
) {
    let why = error_chain(error);
    if publisher.failed(why.clone()) && (expiry.is_some() || !error.is_transient()) {
        tracing::warn!(
            namespace = key.namespace, serviceAccount = key.service_account, podUID = %key.pod_uid, err = why,
            "Couldn't update token"
        );
    }
    if expiry.is_some_and(TokenExpiry::is_over) {
        publisher.publish(Err(TokenError::Expired {
            name: key.service_account.clone(),
            namespace: key.namespace.clone(),
            why,
        }));
    }
}

fn spec(key: &TokenKey) -> TokenRequestSpec {
    TokenRequestSpec {
        audiences: Some(key.audience.iter().cloned().collect()),
        expiration_seconds: key.expiration_seconds,
        bound_object_ref: Some(BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(key.pod_name.clone()),
            uid: Some(key.pod_uid.to_string()),
        }),
    }
}

/// A token with its times.
struct IssuedToken {
    token: Token,
    expires: Timestamp,
    lifetime: SignedDuration,
}

impl IssuedToken {
    fn of(reply: TokenRequest) -> Option<Self> {
        let status = reply.status?;
        let token = status.token.filter(|token| !token.is_empty())?;
        // The issuer may choose another lifetime than the requested one.
        let lifetime = reply.spec.and_then(|spec| spec.expiration_seconds);
        let lifetime = lifetime.unwrap_or(3600).max(0);
        Some(Self {
            token: Token(token.into()),
            expires: status.expiration_timestamp?.0,
            lifetime: SignedDuration::from_secs(lifetime),
        })
    }

    /// The age at which it is renewed: 80 % of the lifetime or 24 hours, a little less by `jitter` (0 to 1).
    fn age_at_renewal(&self, jitter: f64) -> SignedDuration {
        let fifth = self.lifetime / 5;
        let jitter = MAX_JITTER.min(fifth / 4).mul_f64(jitter);
        (self.lifetime - fifth).min(MAX_AGE) - jitter
    }

    /// The time at which it is renewed by the wall clock.
    fn renew_at(&self, jitter: f64) -> Timestamp {
        let before = self.lifetime - self.age_at_renewal(jitter);
        self.expires.saturating_sub(before).unwrap_or(self.expires)
    }

    fn expiry(&self, requested: Instant) -> TokenExpiry {
        let lifetime = Duration::try_from(self.lifetime).unwrap_or_default();
        TokenExpiry { at: self.expires, end: requested + lifetime }
    }
}

/// When a token expires: by the wall clock, and by the time since its request, whatever happens to the wall clock.
#[derive(Clone, Copy)]
struct TokenExpiry {
    at: Timestamp,
    end: Instant,
}

impl TokenExpiry {
    fn is_over(self) -> bool {
        self.at <= clock::timestamp() || self.end <= clock::instant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::stored::{Mode, Stored};
    use serde_json::json;

    fn key() -> TokenKey {
        TokenKey {
            namespace: "ns".into(),
            service_account: "default".into(),
            audience: None,
            expiration_seconds: Some(3607),
            pod_name: "p".into(),
            pod_uid: "u1".into(),
        }
    }

    #[test]
    fn a_token_is_renewed_when_80_percent_of_its_life_or_a_day_are_over() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (lifetime, jitter, after) in [
            (3600, 0.0, 2880),
            (3600, 1.0, 2870),
            (600, 0.0, 480),
            (600, 0.5, 475),
            (20, 1.0, 15),
            (24 * 3600, 0.0, 69120),
            (365 * 24 * 3600, 0.0, 24 * 3600),
            (365 * 24 * 3600, 1.0, 24 * 3600 - 10),
        ] {
            let lifetime = SignedDuration::from_secs(lifetime);
            let token =
                IssuedToken { token: Token(Bytes::new()), expires: issued + lifetime, lifetime };
            let renew = token.renew_at(jitter).duration_since(issued);
            assert_eq!(renew.as_secs(), after, "{lifetime:?} {jitter}");
        }
    }

    #[test]
    fn a_token_is_bound_to_its_pod_and_is_not_shown() {
        let spec = spec(&key());
        assert_eq!(spec.audiences, Some(vec![]));
        let bound = spec.bound_object_ref.unwrap();
        assert_eq!(
            (bound.kind.as_deref(), bound.name.as_deref(), bound.uid.as_deref()),
            (Some("Pod"), Some("p"), Some("u1"))
        );
        let token = Token(Bytes::from_static(b"hunter2"));
        assert!(!format!("{token:?}").contains("hunter2"));
    }

    #[test]
    fn a_response_without_a_token_or_an_expiration_is_none() {
        let reply = |status| {
            let reply = serde_json::json!({"spec": {"audiences": ["a"], "expirationSeconds": 600}, "status": status});
            IssuedToken::of(serde_json::from_value(reply).unwrap())
        };
        let time = "2026-01-01T00:00:00Z";
        assert!(reply(serde_json::json!({"token": "t", "expirationTimestamp": time})).is_some());
        assert!(reply(serde_json::json!({"token": "", "expirationTimestamp": time})).is_none());
    }

    #[tokio::test]
    async fn a_token_is_fetched_soon_after_any_request_found_the_server_back() {
        let server = Stored::start().await;
        let api = server.client().await;
        server.set(Mode::Refusing(503));
        let tokens = Tokens::new(Some(api.clone()), Arc::default());
        tokens.register(&"u1".into(), [key()].into());
        // The next try is then more than three seconds away.
        while server.requests() < 5 {
            sleep(Duration::from_millis(10)).await;
        }
        server.on_post(|_, _| {
            let expires = clock::timestamp() + SignedDuration::from_hours(1);
            let status = json!({"token": "t", "expirationTimestamp": expires.to_string()});
            (201, json!({"spec": {"audiences": ["a"]}, "status": status}))
        });
        server.set(Mode::Serving);
        let missing = api.get::<ServiceAccount>(ResourcePath::cluster("any")).await;
        assert!(missing.unwrap_err().is_not_found());
        let begun = clock::instant();
        let found = tokens.get([key()].into()).await;
        assert_eq!(found[&key()], Ok(Token("t".into())));
        let took = clock::since(begun);
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[tokio::test]
    async fn a_token_is_renewed_and_ends_in_time_although_the_clock_is_behind() {
        let server = Stored::start().await;
        server.on_post(|_, _| {
            let expires = clock::timestamp() + SignedDuration::from_hours(1);
            let status = json!({"token": "t", "expirationTimestamp": expires.to_string()});
            let spec = json!({"audiences": ["a"], "expirationSeconds": 2});
            (201, json!({"spec": spec, "status": status}))
        });
        let tokens = Tokens::new(Some(server.client().await), Arc::default());
        tokens.register(&"u1".into(), [key()].into());
        let deadline = clock::instant() + Duration::from_secs(60);
        while server.posts().len() < 2 {
            assert!(clock::instant() < deadline, "it was not renewed");
            sleep(Duration::from_millis(10)).await;
        }
        server.set(Mode::Refusing(503));
        loop {
            let found = tokens.get([key()].into()).await;
            if matches!(found[&key()], Err(TokenError::Expired { .. })) {
                break;
            }
            assert!(clock::instant() < deadline, "it is still there: {found:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn without_an_api_server_there_is_no_token() {
        let found = Tokens::default().get([key()].into()).await;
        let error = found[&key()].clone().unwrap_err().to_string();
        assert_eq!(error, "cannot use TokenManager when kubelet is in standalone mode");
    }
}
