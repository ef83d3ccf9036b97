//! What an object is and why there may be none. Pure.

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

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// What it is.
    pub kind: ObjectKind,
    /// Its namespace: that of the pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What was found, by key: everything that was asked for is in it.
pub type Found = BTreeMap<ObjectKey, Result<Arc<Object>, ObjectError>>;

/// What an object says, by key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Object {
    entries: BTreeMap<String, Bytes>,
    immutable: bool,
}

/// The keys, and nothing of what they say.
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
    /// All entries, in order of their keys.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// One entry.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.entries.get(key)
    }

    /// The same object, said to stay as it is or not.
    pub fn with_immutable(self, immutable: bool) -> Self {
        Self { immutable, ..self }
    }

    /// It is said to stay as it is: whoever has seen it need not look again.
    pub fn is_immutable(&self) -> bool {
        self.immutable
    }
}

/// Why there is no object; texts as upstream's where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is nowhere to ask.
    #[error("couldn't get {} {}/{}, no kubeClient defined", camel(.0.kind), .0.namespace, .0.name)]
    NoSource(ObjectKey),
    /// There is no such object.
    #[error("{} {:?} not found", .0.kind, .0.name)]
    NotFound(ObjectKey),
    /// It is there and cannot be taken.
    #[error("{} {:?} cannot be read: {why}", .key.kind, .key.name)]
    Unreadable {
        /// Which.
        key: ObjectKey,
        /// What is wrong, for people; nothing of what it says.
        why: String,
    },
}

impl ObjectError {
    /// What `optional: true` forgives.
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
