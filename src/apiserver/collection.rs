//! A watched copy of all objects of one kind in the cluster, reduced to the fields that the kubelet needs.

use super::{ApiServer, Selection, WatchEvent};
use crate::base::{DirtySet, error_chain};
use crate::model::PodUid;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a pod sync waits for the first list.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The objects by namespace and name. Cheap to clone.
pub(super) struct Collection<T> {
    objects: Arc<Mutex<BTreeMap<(String, String), T>>>,
    listed: watch::Sender<bool>,
    /// Pods that wait for an object.
    waiting: Arc<Mutex<HashSet<PodUid>>>,
    changed: Arc<DirtySet<PodUid>>,
}

impl<T> Clone for Collection<T> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            listed: self.listed.clone(),
            waiting: self.waiting.clone(),
            changed: self.changed.clone(),
        }
    }
}

impl<T> Collection<T> {
    /// Starts empty. Waiting pods are marked in `changed` when objects change.
    pub(super) fn new(changed: Arc<DirtySet<PodUid>>) -> Self {
        Self {
            objects: Arc::default(),
            listed: watch::Sender::new(false),
            waiting: Arc::default(),
            changed,
        }
    }

    /// Lists and watches the objects until shutdown. Objects for which `reduce` returns `None` are left out.
    pub(super) async fn follow<K>(
        &self,
        api: &ApiServer,
        shutdown: &CancellationToken,
        reduce: impl Fn(&K) -> Option<T>,
    ) where
        K: Metadata<Ty = ObjectMeta> + DeserializeOwned,
    {
        let mut watch = api.list_watch::<K>(Selection::default());
        let mut failing = false;
        while let Some(event) = shutdown.run_until_cancelled(watch.next()).await {
            if let WatchEvent::Failed(error) = &event {
                if api.is_reported(error) {
                    continue;
                }
                if !failing {
                    tracing::warn!(kind = K::KIND, err = %error_chain(error.as_ref()), "Failed to watch objects");
                }
                failing = true;
                continue;
            }
            failing = false;
            self.apply(event, &reduce);
        }
    }

    fn apply<K>(&self, event: WatchEvent<K>, reduce: &impl Fn(&K) -> Option<T>)
    where
        K: Metadata<Ty = ObjectMeta>,
    {
        let key = |metadata: &ObjectMeta| {
            let namespace = metadata.namespace.clone().unwrap_or_default();
            (namespace, metadata.name.clone().unwrap_or_default())
        };
        {
            let mut objects = self.objects.lock();
            match event {
                WatchEvent::Listed(items) => {
                    let items = items.iter().flatten();
                    let reduced = items.filter_map(|it| Some((key(it.metadata()), reduce(it)?)));
                    *objects = reduced.collect();
                }
                WatchEvent::Applied(Ok(item)) => match reduce(&item) {
                    Some(reduced) => drop(objects.insert(key(item.metadata()), reduced)),
                    None => drop(objects.remove(&key(item.metadata()))),
                },
                WatchEvent::Deleted(Ok(item)) => drop(objects.remove(&key(item.metadata()))),
                WatchEvent::Applied(Err(item)) | WatchEvent::Deleted(Err(item)) => {
                    drop(objects.remove(&key(&item.metadata)));
                }
                WatchEvent::Failed(_) => return,
            }
        }
        self.listed.send_replace(true);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        self.changed.mark_all(waiting);
    }

    /// Restores the objects known to an earlier kubelet, unless a list has been received.
    pub(super) fn restore(&self, known: BTreeMap<(String, String), T>) {
        if !self.is_listed_now() {
            *self.objects.lock() = known;
            self.listed.send_replace(true);
        }
    }

    /// Notifies of changes of the objects.
    pub(super) fn changes(&self) -> watch::Receiver<bool> {
        self.listed.subscribe()
    }

    /// Waits up to [`TIMEOUT`] for the first list; false if there is none.
    pub(super) async fn is_listed(&self) -> bool {
        let mut listed = self.listed.subscribe();
        timeout(TIMEOUT, listed.wait_for(|listed| *listed)).await.is_ok()
    }

    /// Whether a list has been received.
    pub(super) fn is_listed_now(&self) -> bool {
        *self.listed.borrow()
    }

    /// Marks the pod at the next change.
    pub(super) fn wait(&self, uid: PodUid) {
        self.waiting.lock().insert(uid);
    }

    /// Reads the objects that are known.
    pub(super) fn read<R>(&self, read: impl FnOnce(&BTreeMap<(String, String), T>) -> R) -> R {
        read(&self.objects.lock())
    }
}
