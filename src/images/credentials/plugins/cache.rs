//! Cache of one provider's responses. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::images::credentials::auths::Auths;

/// For which images a response may be reused: `cacheKeyType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheScope {
    /// Only the requested image.
    Image,
    /// All images of its registry.
    Registry,
    /// All images that match the provider.
    Global,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum CacheKey {
    Image(String),
    Registry(String),
    Global,
}

impl CacheKey {
    fn of(scope: CacheScope, image: &str) -> CacheKey {
        match scope {
            CacheScope::Image => CacheKey::Image(image.to_owned()),
            CacheScope::Registry => {
                let registry = image.split('/').next().unwrap_or_default();
                CacheKey::Registry(registry.to_owned())
            }
            CacheScope::Global => CacheKey::Global,
        }
    }
}

/// Cached responses of one provider.
#[derive(Default)]
pub(super) struct Cache {
    answers: HashMap<(CacheKey, AccountKey), (Arc<Auths>, Instant)>,
}

/// The service account that a response is for; `None` for a response without one.
pub(super) type AccountKey = Option<String>;

impl Cache {
    /// The most specific response that covers the image and has not expired.
    pub(super) fn find(
        &self,
        image: &str,
        account: &AccountKey,
        now: Instant,
    ) -> Option<Arc<Auths>> {
        let key = |scope| (CacheKey::of(scope, image), account.clone());
        [CacheScope::Image, CacheScope::Registry, CacheScope::Global]
            .into_iter()
            .filter_map(|scope| self.answers.get(&key(scope)))
            .find(|(_, until)| now <= *until)
            .map(|(auths, _)| auths.clone())
    }

    /// Caches the response to a request for `image`, and removes expired responses.
    pub(super) fn keep(
        &mut self,
        (scope, account): (CacheScope, AccountKey),
        image: &str,
        auths: Arc<Auths>,
        lifetime: Duration,
        now: Instant,
    ) {
        self.answers.retain(|_, (_, until)| now <= *until);
        // A lifetime that overflows the clock is replaced by a year.
        let year = Duration::from_secs(365 * 86_400);
        let until = now + lifetime.min(year);
        self.answers
            .insert((CacheKey::of(scope, image), account), (auths, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_serves_the_image_its_registry_or_all() {
        let now = Instant::now();
        let table = [
            (CacheScope::Image, "r.io/a", true),
            (CacheScope::Image, "r.io/b", false),
            (CacheScope::Registry, "r.io/b", true),
            (CacheScope::Registry, "r.io:5000/b", false),
            (CacheScope::Global, "other.io/b", true),
        ];
        for (scope, image, expected) in table {
            let mut cache = Cache::default();
            cache.keep((scope, None), "r.io/a", Arc::default(), MINUTE, now);
            assert_eq!(
                cache.find(image, &None, now).is_some(),
                expected,
                "{scope:?} {image}"
            );
        }
    }

    #[test]
    fn an_answer_for_a_service_account_serves_no_other() {
        let now = Instant::now();
        let mut cache = Cache::default();
        let [one, two] = ["one", "two"].map(|account| Some(account.to_owned()));
        cache.keep(
            (CacheScope::Global, one.clone()),
            "a",
            Arc::default(),
            MINUTE,
            now,
        );
        assert!(cache.find("a", &one, now).is_some());
        assert!(cache.find("a", &two, now).is_none());
        assert!(cache.find("a", &None, now).is_none());
    }

    #[test]
    fn an_answer_that_is_too_old_is_not_used_and_goes_with_the_next() {
        let now = Instant::now();
        let mut cache = Cache::default();
        cache.keep((CacheScope::Image, None), "a", Arc::default(), MINUTE, now);
        assert!(cache.find("a", &None, now + MINUTE).is_some());
        let later = now + MINUTE + Duration::from_millis(1);
        assert!(cache.find("a", &None, later).is_none());
        cache.keep(
            (CacheScope::Image, None),
            "b",
            Arc::default(),
            Duration::MAX,
            later,
        );
        assert_eq!(cache.answers.len(), 1);
    }
}
