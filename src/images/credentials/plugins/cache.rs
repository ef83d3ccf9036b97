//! Cache of one provider's responses. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::images::credentials::auths::Auths;

/// For which images a response may be reused: `cacheKeyType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheKeyType {
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
    fn of(key_type: CacheKeyType, image: &str) -> CacheKey {
        match key_type {
            CacheKeyType::Image => CacheKey::Image(image.to_owned()),
            CacheKeyType::Registry => {
                let registry = image.split('/').next().unwrap_or_default();
                CacheKey::Registry(registry.to_owned())
            }
            CacheKeyType::Global => CacheKey::Global,
        }
    }
}

/// Cached responses of one provider.
#[derive(Default)]
pub(super) struct Cache {
    responses: HashMap<(CacheKey, AccountKey), (Arc<Auths>, Instant)>,
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
        let key = |key_type| (CacheKey::of(key_type, image), account.clone());
        [CacheKeyType::Image, CacheKeyType::Registry, CacheKeyType::Global]
            .into_iter()
            .filter_map(|key_type| self.responses.get(&key(key_type)))
            .find(|(_, until)| now <= *until)
            .map(|(auths, _)| auths.clone())
    }

    /// Caches the response to a request for `image`, and removes expired responses.
    pub(super) fn insert(
        &mut self,
        (key_type, account): (CacheKeyType, AccountKey),
        image: &str,
        auths: Arc<Auths>,
        cache_duration: Duration,
        now: Instant,
    ) {
        self.responses.retain(|_, (_, until)| now <= *until);
        // At most a year, because a longer duration may overflow the clock.
        let year = Duration::from_secs(365 * 86_400);
        let until = now + cache_duration.min(year);
        self.responses.insert((CacheKey::of(key_type, image), account), (auths, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_serves_the_image_its_registry_or_all() {
        let now = clock::instant();
        let table = [
            (CacheKeyType::Image, "r.io/a", true),
            (CacheKeyType::Image, "r.io/b", false),
            (CacheKeyType::Registry, "r.io/b", true),
            (CacheKeyType::Registry, "r.io:5000/b", false),
            (CacheKeyType::Global, "other.io/b", true),
        ];
        for (key_type, image, expected) in table {
            let mut cache = Cache::default();
            cache.insert((key_type, None), "r.io/a", Arc::default(), MINUTE, now);
            assert_eq!(cache.find(image, &None, now).is_some(), expected, "{key_type:?} {image}");
        }
    }

    #[test]
    fn an_answer_for_a_service_account_serves_no_other() {
        let now = clock::instant();
        let mut cache = Cache::default();
        let [one, two] = ["one", "two"].map(|account| Some(account.to_owned()));
        cache.insert((CacheKeyType::Global, one.clone()), "a", Arc::default(), MINUTE, now);
        assert!(cache.find("a", &one, now).is_some());
        assert!(cache.find("a", &two, now).is_none());
        assert!(cache.find("a", &None, now).is_none());
    }

    #[test]
    fn an_answer_that_is_too_old_is_not_used_and_goes_with_the_next() {
        let now = clock::instant();
        let mut cache = Cache::default();
        cache.insert((CacheKeyType::Image, None), "a", Arc::default(), MINUTE, now);
        assert!(cache.find("a", &None, now + MINUTE).is_some());
        let later = now + MINUTE + Duration::from_millis(1);
        assert!(cache.find("a", &None, later).is_none());
        cache.insert((CacheKeyType::Image, None), "b", Arc::default(), Duration::MAX, later);
        assert_eq!(cache.responses.len(), 1);
    }
}
