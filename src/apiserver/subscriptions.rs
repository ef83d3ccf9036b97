//! Values from the API server that pods use: one task per value keeps it up to date while a pod uses it.

use crate::base::clock::{self, Instant};
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{DirtySet, ScopedTask, spawn_scoped};
use crate::model::PodUid;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// How long a pod sync waits for the first value if requests fail, as upstream waits for its cache.
const TIMEOUT_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long a pod sync waits for the first value if there is no response.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Upstream's text, used if there is no more specific error.
const TIMED_OUT: &str = "timed out waiting for the condition";
/// Maximum time until the clock is read again, because the wall clock may jump.
const MAX_SLEEP: SignedDuration = SignedDuration::from_mins(10);
/// Delay before a task that panicked is restarted.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// The values that pods use; `A` is what reads them, if there is an API server. Cheap to clone.
pub(super) struct Subscriptions<A, K, V> {
    pub(super) api: Option<A>,
    inner: Arc<Mutex<SubscriptionsInner<K, V>>>,
    changed: Arc<DirtySet<PodUid>>,
}

impl<A, K, V> Default for Subscriptions<A, K, V> {
    fn default() -> Self {
        Self::new(None, Arc::default())
    }
}

impl<A: Clone, K, V> Clone for Subscriptions<A, K, V> {
    fn clone(&self) -> Self {
        Self { api: self.api.clone(), inner: self.inner.clone(), changed: self.changed.clone() }
    }
}

struct SubscriptionsInner<K, V> {
    values: HashMap<K, Subscription<V>>,
    /// Keys by pod, sorted.
    by_pod: HashMap<PodUid, Box<[K]>>,
}

struct Subscription<V> {
    publisher: Publisher<V>,
    _task: ScopedTask,
}

/// Publishes one value; clones publish the same one.
pub(super) struct Publisher<V>(Arc<Published<V>>);

impl<V> Clone for Publisher<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Published<V> {
    latest: watch::Sender<LatestObject<V>>,
    users: Mutex<HashSet<PodUid>>,
    /// A sync continued without the value.
    missed: AtomicBool,
    changed: Arc<DirtySet<PodUid>>,
}

struct LatestObject<V> {
    value: Option<V>,
    /// The error of the latest request.
    failure: Option<String>,
}

/// Why a value is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoValue {
    /// There is no API server.
    Standalone,
    /// No registered pod uses it.
    NotRegistered,
    /// No response from the API server yet; the text has the error.
    Unsynced(String),
}

impl NoValue {
    /// The reason as text; `None` without an API server.
    pub(super) fn why(self) -> Option<String> {
        match self {
            Self::Standalone => None,
            Self::NotRegistered => Some("the pod is not registered".to_owned()),
            Self::Unsynced(why) => Some(why),
        }
    }
}

impl<V: PartialEq> Publisher<V> {
    /// Sets the value, and marks its users if it changed or if a sync continued without it.
    pub(super) fn publish(&self, value: V) {
        let published = &self.0;
        let mut differs = false;
        published.latest.send_modify(|latest| {
            latest.failure = None;
            differs = latest.value.as_ref().is_some_and(|known| *known != value);
            latest.value = Some(value);
        });
        if published.missed.swap(false, Ordering::SeqCst) || differs {
            let users = published.users.lock().clone();
            published.changed.mark_all(users);
        }
    }

    /// Records a failed request; the value is kept. Returns whether the request before succeeded.
    pub(super) fn failed(&self, why: String) -> bool {
        let mut first = false;
        self.0.latest.send_modify(|latest| {
            first = latest.failure.is_none();
            latest.failure = Some(why);
        });
        first
    }
}

impl<A, K, V> Subscriptions<A, K, V> {
    /// Starts empty. A pod is marked in `changed` when a value that it uses changes.
    pub(super) fn new(api: Option<A>, changed: Arc<DirtySet<PodUid>>) -> Self {
        let inner = SubscriptionsInner { values: HashMap::new(), by_pod: HashMap::new() };
        Self { api, inner: Arc::new(Mutex::new(inner)), changed }
    }
}

impl<A, K, V> Subscriptions<A, K, V>
where
    A: Clone + Send + 'static,
    K: Clone + Ord + Hash + Send + Sync + 'static,
    V: Clone + PartialEq + Send + Sync + 'static,
{
    /// Sets the values that a pod uses. For each value without another user, starts a task with `run` that keeps it up
    /// to date.
    pub(super) fn register<F>(
        &self,
        uid: &PodUid,
        keys: BTreeSet<K>,
        run: impl Fn(A, K, Publisher<V>) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(api) = &self.api else {
            return;
        };
        let mut inner = self.inner.lock();
        let before = inner.by_pod.remove(uid).unwrap_or_default();
        let before: BTreeSet<K> = before.into_iter().collect();
        for key in before.difference(&keys) {
            inner.release(uid, key);
        }
        for key in keys.difference(&before) {
            let value = inner.values.entry(key.clone());
            let value = value.or_insert_with(|| self.start(api.clone(), key, run.clone()));
            value.publisher.0.users.lock().insert(uid.clone());
        }
        if !keys.is_empty() {
            inner.by_pod.insert(uid.clone(), keys.into_iter().collect());
        }
    }

    /// Removes the values of a pod.
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut inner = self.inner.lock();
        for key in inner.by_pod.remove(uid).unwrap_or_default() {
            inner.release(uid, &key);
        }
    }

    fn start<F>(
        &self,
        api: A,
        key: &K,
        run: impl Fn(A, K, Publisher<V>) -> F + Send + 'static,
    ) -> Subscription<V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let latest = LatestObject { value: None, failure: None };
        let publisher = Publisher(Arc::new(Published {
            latest: watch::Sender::new(latest),
            users: Mutex::default(),
            missed: AtomicBool::new(false),
            changed: self.changed.clone(),
        }));
        let (key, to) = (key.clone(), publisher.clone());
        let task = spawn_scoped(PanicScope::Other, async move {
            while catch_panic(PanicScope::Other, run(api.clone(), key.clone(), to.clone()))
                .await
                .is_err()
            {
                sleep(RESTART_AFTER).await;
            }
        });
        Subscription { publisher, _task: task }
    }

    /// Returns the values of these keys. Waits a bounded time for the first value of each.
    pub(super) async fn get(&self, keys: BTreeSet<K>) -> BTreeMap<K, Result<V, NoValue>> {
        let started_at = clock::instant();
        let mut found = BTreeMap::new();
        for key in keys {
            let publisher = {
                let inner = self.inner.lock();
                inner.values.get(&key).map(|value| value.publisher.clone())
            };
            let value = match publisher {
                Some(publisher) => publisher.0.first(started_at).await,
                None if self.api.is_none() => Err(NoValue::Standalone),
                None => Err(NoValue::NotRegistered),
            };
            found.insert(key, value);
        }
        found
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.inner.lock().values.len()
    }
}

impl<A, K, T, E> Subscriptions<A, K, Result<T, E>>
where
    A: Clone + Send + 'static,
    K: Clone + Ord + Hash + Send + Sync + 'static,
    T: Clone + PartialEq + Send + Sync + 'static,
    E: Clone + PartialEq + From<NoValue> + Send + Sync + 'static,
{
    /// [`Self::get`] with the reason for no value as an error of the values.
    pub(super) async fn results(&self, keys: BTreeSet<K>) -> BTreeMap<K, Result<T, E>> {
        let found = self.get(keys).await.into_iter();
        found.map(|(key, value)| (key, value.unwrap_or_else(|none| Err(none.into())))).collect()
    }
}

impl<K: Eq + Hash, V> SubscriptionsInner<K, V> {
    fn release(&mut self, uid: &PodUid, key: &K) {
        let Some(value) = self.values.get(key) else {
            return;
        };
        let mut users = value.publisher.0.users.lock();
        users.remove(uid);
        if users.is_empty() {
            drop(users);
            self.values.remove(key);
        }
    }
}

impl<V: Clone> Published<V> {
    async fn first(&self, started_at: Instant) -> Result<V, NoValue> {
        let mut latest = self.latest.subscribe();
        tokio::select! {
            biased;
            _ = latest.wait_for(|latest| latest.value.is_some()) => {}
            () = async {
                // The first request may fail, and a retry succeed milliseconds later: the API server's node authorizer
                // may not know of a new pod yet.
                sleep_until(started_at + TIMEOUT_AFTER_FAILURE).await;
                let mut latest = self.latest.subscribe();
                let _ = latest.wait_for(|latest| latest.failure.is_some()).await;
            } => {}
            () = sleep_until(started_at + TIMEOUT) => {}
        }
        let known = self.latest.borrow().value.clone();
        if let Some(value) = known {
            return Ok(value);
        }
        self.missed.store(true, Ordering::SeqCst);
        // The value may have been published before `missed` was set.
        let latest = self.latest.borrow();
        let why = || latest.failure.clone().unwrap_or_else(|| TIMED_OUT.into());
        latest.value.clone().ok_or_else(|| NoValue::Unsynced(why()))
    }
}

/// Waits until a time of the wall clock.
pub(super) async fn sleep_until_time(at: Timestamp) {
    loop {
        let left = at.duration_since(clock::timestamp()).min(MAX_SLEEP);
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => sleep(left).await,
            _ => return,
        }
    }
}
