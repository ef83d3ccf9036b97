//! ConfigMaps and Secrets from the API server, with one watch per object that a pod uses: the node authorizer allows a
//! node no other watches of them.

use super::{ConfigMapsAndSecrets, ObjectData, ObjectError, ObjectKey, ObjectKind};
use crate::apiserver::subscriptions::{NoValue, Publisher, Subscriptions};
use crate::apiserver::{
    ApiError, ApiItem, ApiServer, ListWatch, Selection, Unreadable, WatchEvent,
};
use crate::base::{DirtySet, error_chain};
use crate::model::PodUid;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An object as it is stored, or why it cannot be used.
type StoredObject = Result<Arc<ObjectData>, ObjectError>;

/// The objects that pods from the API server use. Cheap to clone.
#[derive(Clone)]
pub(super) struct ApiObjects(Subscriptions<ApiServer, ObjectKey, StoredObject>);

impl ApiObjects {
    pub(super) fn new(api: ApiServer, changed: Arc<DirtySet<PodUid>>) -> Self {
        Self(Subscriptions::new(Some(api), changed))
    }

    pub(super) fn register(&self, uid: &PodUid, keys: BTreeSet<ObjectKey>) {
        let follow = |api, key: ObjectKey, publisher| async move {
            match key.kind {
                ObjectKind::ConfigMap => follow::<ConfigMap>(&api, &key, &publisher).await,
                ObjectKind::Secret => follow::<Secret>(&api, &key, &publisher).await,
            }
        };
        self.0.register(uid, keys, follow);
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.0.forget(uid);
    }

    pub(super) async fn get(&self, keys: BTreeSet<ObjectKey>) -> ConfigMapsAndSecrets {
        let found = self.0.get(keys).await.into_iter();
        let value = |(key, value): (ObjectKey, Result<StoredObject, NoValue>)| {
            let value = value.unwrap_or_else(|none| {
                Err(match none {
                    NoValue::Standalone | NoValue::NotRegistered => {
                        ObjectError::NotRegistered(key.clone())
                    }
                    NoValue::Unsynced(reason) => ObjectError::Unsynced { key: key.clone(), reason },
                })
            });
            (key, value)
        };
        found.map(value).collect()
    }

    /// Number of watched objects.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Publishes an object and its changes; returns once the object is immutable.
async fn follow<K>(api: &ApiServer, key: &ObjectKey, publisher: &Publisher<StoredObject>)
where
    K: Metadata<Ty = ObjectMeta> + Into<ObjectData> + DeserializeOwned,
{
    let mut watch: ListWatch<K> = api.list_watch(Selection {
        namespace: Some(key.namespace.clone()),
        field_selector: Some(format!("metadata.name={}", key.name)),
    });
    let is_requested = |item: &ApiItem<K>| name(item) == Some(key.name.as_str());
    loop {
        let item = match watch.next().await {
            WatchEvent::Listed(items) => items.into_iter().find(is_requested),
            WatchEvent::Applied(item) if is_requested(&item) => Some(item),
            WatchEvent::Deleted(item) if is_requested(&item) => None,
            WatchEvent::Applied(_) | WatchEvent::Deleted(_) => continue,
            WatchEvent::Failed(error) => {
                failed(key, &error, publisher);
                continue;
            }
        };
        let value = value_of(key, item);
        let is_fixed = value.as_ref().is_ok_and(|object| object.is_immutable());
        publisher.publish(value);
        if is_fixed {
            return;
        }
    }
}

fn value_of<K: Into<ObjectData>>(key: &ObjectKey, item: Option<ApiItem<K>>) -> StoredObject {
    match item {
        None => Err(ObjectError::NotFound(key.clone())),
        Some(Ok(object)) => Ok(Arc::new((*object).into())),
        Some(Err(Unreadable { why, .. })) => {
            Err(ObjectError::Unreadable { key: key.clone(), reason: why })
        }
    }
}

fn failed(key: &ObjectKey, error: &ApiError, publisher: &Publisher<StoredObject>) {
    if publisher.failed(error_chain(error)) && !error.is_transient() {
        tracing::warn!(
            kind = %key.kind, namespace = key.namespace, name = key.name, err = %error_chain(error),
            "Failed to watch an object"
        );
    }
}

fn name<K: Metadata<Ty = ObjectMeta>>(item: &ApiItem<K>) -> Option<&str> {
    match item {
        Ok(object) => object.metadata().name.as_deref(),
        Err(unreadable) => unreadable.metadata.name.as_deref(),
    }
}
