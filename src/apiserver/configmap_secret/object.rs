//! Key, data and errors of ConfigMaps and Secrets. Pure.

use crate::base::named_enum;
use bytes::Bytes;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

named_enum! {
    /// The kind of an object.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ObjectKind {
        /// A v1 ConfigMap.
        ConfigMap = "configmap",
        /// A v1 Secret.
        Secret = "secret",
    }
}

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: ObjectKind,
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The results of a request; every requested object has one.
pub type ConfigMapsAndSecrets = BTreeMap<ObjectKey, Result<Arc<ObjectData>, ObjectError>>;

/// The data of an object, by key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ObjectData {
    entries: BTreeMap<String, Bytes>,
    /// The keys of `binaryData`.
    binary: BTreeSet<String>,
    immutable: bool,
    uid: String,
    secret_type: String,
}

/// Shows the keys without their values.
impl fmt::Debug for ObjectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

impl FromIterator<(String, Bytes)> for ObjectData {
    fn from_iter<I: IntoIterator<Item = (String, Bytes)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect(), ..Self::default() }
    }
}

/// Merges `data` and `binaryData`; the API permits no key in both.
impl From<ConfigMap> for ObjectData {
    fn from(object: ConfigMap) -> Self {
        let text = object.data.unwrap_or_default().into_iter();
        let text = text.map(|(key, value)| (key, value.into()));
        let data = object.binary_data.unwrap_or_default();
        let binary = data.keys().cloned().collect();
        let data = data.into_iter().map(|(key, value)| (key, value.0.into()));
        Self {
            entries: text.chain(data).collect(),
            binary,
            immutable: object.immutable == Some(true),
            uid: object.metadata.uid.unwrap_or_default(),
            secret_type: String::new(),
        }
    }
}

impl From<Secret> for ObjectData {
    fn from(object: Secret) -> Self {
        let data = object.data.unwrap_or_default().into_iter();
        Self {
            entries: data.map(|(key, value)| (key, value.0.into())).collect(),
            binary: BTreeSet::new(),
            immutable: object.immutable == Some(true),
            uid: object.metadata.uid.unwrap_or_default(),
            secret_type: object.type_.unwrap_or_default(),
        }
    }
}

impl ObjectData {
    /// All entries, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// One entry.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.entries.get(key)
    }

    /// Whether an entry is in `binaryData` of a ConfigMap.
    pub fn is_binary(&self, key: &str) -> bool {
        self.binary.contains(key)
    }

    /// The same object with this `immutable` field.
    pub fn with_immutable(self, immutable: bool) -> Self {
        Self { immutable, ..self }
    }

    /// Whether the object is immutable, so that it need not be read again.
    pub fn is_immutable(&self) -> bool {
        self.immutable
    }

    /// `metadata.uid`; empty for a local object.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// `type` of a Secret; empty for a local object.
    pub fn secret_type(&self) -> &str {
        &self.secret_type
    }
}

/// Why an object is not available; upstream's texts where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is neither an API server nor a directory for local objects.
    #[error("couldn't get {} {}/{}, no kubeClient defined", camel(.0.kind), .0.namespace, .0.name)]
    NoSource(ObjectKey),
    /// The object does not exist.
    #[error("{} {:?} not found", .0.kind, .0.name)]
    NotFound(ObjectKey),
    /// No response from the API server yet, so it is unknown whether the object exists.
    #[error("failed to sync {} cache: {reason}", .key.kind)]
    Unsynced {
        /// The object.
        key: ObjectKey,
        /// The error of the latest request.
        reason: String,
    },
    /// No registered pod refers to the object.
    #[error("object {:?}/{:?} not registered", .0.namespace, .0.name)]
    NotRegistered(ObjectKey),
    /// The object exists but cannot be used.
    #[error("{} {:?} cannot be read: {reason}", .key.kind, .key.name)]
    Unreadable {
        /// The object.
        key: ObjectKey,
        /// The reason, without any data of the object.
        reason: String,
    },
}

impl ObjectError {
    /// Whether a reference with `optional: true` tolerates this error.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

fn camel(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "configMap",
        ObjectKind::Secret => "secret",
    }
}
