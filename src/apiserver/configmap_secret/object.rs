//! An object's key, its data, and why there may be none. Pure.

use bytes::Bytes;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A v1 ConfigMap.
    ConfigMap,
    /// A v1 Secret.
    Secret,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
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

/// The objects that were found, by key: every requested one is in it.
pub type Found = BTreeMap<ObjectKey, Result<Arc<Object>, ObjectError>>;

/// The data of an object, by key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Object {
    entries: BTreeMap<String, Bytes>,
    immutable: bool,
}

/// The keys without their values.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

impl FromIterator<(String, Bytes)> for Object {
    fn from_iter<I: IntoIterator<Item = (String, Bytes)>>(entries: I) -> Self {
        Self {
            entries: entries.into_iter().collect(),
            immutable: false,
        }
    }
}

impl Object {
    /// All entries, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// One entry.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.entries.get(key)
    }

    /// The same object, immutable or not.
    pub fn with_immutable(self, immutable: bool) -> Self {
        Self { immutable, ..self }
    }

    /// Whether it is immutable: it need not be read again.
    pub fn is_immutable(&self) -> bool {
        self.immutable
    }
}

/// Why there is no object; upstream's texts where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is no source.
    #[error("couldn't get {} {}/{}, no kubeClient defined", camel(.0.kind), .0.namespace, .0.name)]
    NoSource(ObjectKey),
    /// The object does not exist.
    #[error("{} {:?} not found", .0.kind, .0.name)]
    NotFound(ObjectKey),
    /// The object exists and is refused.
    #[error("{} {:?} cannot be read: {why}", .key.kind, .key.name)]
    Unreadable {
        /// The object.
        key: ObjectKey,
        /// The reason, without any data of the object.
        why: String,
    },
}

impl ObjectError {
    /// Whether `optional: true` tolerates it.
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
