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

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, time::timeout};

/// How long a read may take: the directory may be on anything that can be mounted, which may hang.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Reads at the same time. A read that hangs keeps its thread.
const MAX_READS: usize = 8;

const TIMED_OUT: &str = "its directory does not answer";

/// The source of ConfigMaps and Secrets. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    local: Option<Arc<LocalObjectsDir>>,
}

#[derive(Debug)]
struct LocalObjectsDir {
    path: PathBuf,
    reads: Arc<Semaphore>,
}

impl LocalObjectsDir {
    /// Does a blocking read; `None` when it takes too long.
    async fn read<T: Send + 'static>(
        self: Arc<Self>,
        read: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Option<T> {
        let work = async {
            let permit = self.reads.clone().acquire_owned().await.ok()?;
            let blocking = move || {
                let _permit = permit;
                read(&self.path)
            };
            tokio::task::spawn_blocking(blocking).await.ok()
        };
        timeout(READ_TIMEOUT, work).await.ok().flatten()
    }
}

impl Objects {
    /// Objects below a directory: `configmaps/<namespace>/<name>/<key>` and `secrets/<namespace>/<name>/<key>`;
    /// a file `..immutable` beside the keys makes an object immutable. Without a directory there are none.
    pub fn new(local: Option<PathBuf>) -> Self {
        Self {
            local: local.map(|path| {
                let reads = Arc::new(Semaphore::new(MAX_READS));
                Arc::new(LocalObjectsDir { path, reads })
            }),
        }
    }

    /// Why no objects are found in the directory at the moment, if that is so.
    pub async fn fault(&self) -> Option<&'static str> {
        let directory = self.local.clone()?;
        match directory.read(Path::is_dir).await {
            Some(true) => None,
            Some(false) => Some("is no directory"),
            None => Some(TIMED_OUT),
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
        let wanted = keys.clone();
        let read = move |directory: &Path| {
            let read = |key: ObjectKey| {
                let object = local::read(directory, &key);
                (key, object.map(Arc::new))
            };
            wanted.into_iter().map(read).collect()
        };
        let timed_out = |key: ObjectKey| {
            let why = TIMED_OUT.to_owned();
            (key.clone(), Err(ObjectError::Unreadable { key, why }))
        };
        let found = directory.read(read).await;
        found.unwrap_or_else(|| keys.into_iter().map(timed_out).collect())
    }
}

#[cfg(test)]
mod tests;
