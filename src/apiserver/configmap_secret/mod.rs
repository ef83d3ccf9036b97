//! ConfigMaps and Secrets that pods refer to.
//!
//! * Owns: reading them from a directory of the node, if there is one (`--local-objects-dir`, an extension of
//!   ours for nodes without an API server).
//! * Woken by its callers, for volumes and for environment variables; keeps nothing.
//! * Publishes nothing.
//! * Must never log, keep or show the data of an object, and never read outside of its directory.
//! * Answers to upstream's `pkg/kubelet/configmap` and `pkg/kubelet/secret`.

mod local;
mod object;

pub use local::MAX_OBJECT_BYTES;
pub use object::{Found, Object, ObjectError, ObjectKey, ObjectKind};

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

/// The source of ConfigMaps and Secrets. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    local: Option<Arc<PathBuf>>,
}

impl Objects {
    /// Objects below a directory: `configmaps/<namespace>/<name>/<key>` and `secrets/<namespace>/<name>/<key>`;
    /// a file `..immutable` beside the keys makes an object immutable. Without a directory there are none.
    pub fn new(local: Option<PathBuf>) -> Self {
        Self {
            local: local.map(Arc::new),
        }
    }

    /// Reads all of these. An empty list costs nothing.
    pub async fn get(&self, keys: BTreeSet<ObjectKey>) -> Found {
        if keys.is_empty() {
            return Found::new();
        }
        let Some(directory) = self.local.clone() else {
            let without = |key: ObjectKey| (key.clone(), Err(ObjectError::NoSource(key)));
            return keys.into_iter().map(without).collect();
        };
        // The directory may be any mount, which may hang.
        let read = move || {
            let read = |key: ObjectKey| {
                let object = local::read(&directory, &key);
                (key, object.map(Arc::new))
            };
            keys.into_iter().map(read).collect()
        };
        // Reading does not panic; if it did, nothing would be found.
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
