//! ConfigMaps and Secrets that pods refer to.
//!
//! * Owns: for pods from the API server, a watch per object that one of them uses; for static pods, reads of a
//!   directory of the node, if configured (`--local-objects-dir`, an extension of this kubelet).
//! * Woken by: its callers, for volumes and for environment variables, and by watches.
//! * Publishes: the set of pods whose objects changed.
//! * Must never log or reveal the data of an object, read outside of its directory, give a static pod an object of the
//!   API server or another pod a local file, or treat a failed read as a missing object.
//! * Upstream: `pkg/kubelet/configmap` and `pkg/kubelet/secret`.

mod api;
mod local;
mod object;
mod references;

pub use local::MAX_OBJECT_BYTES;
pub use object::{ConfigMapsAndSecrets, ObjectData, ObjectError, ObjectKey, ObjectKind};

use super::ApiServer;
use crate::base::{DirtySet, spawn_blocking};
use crate::model::{Pod, PodExt as _, PodUid};
use api::ApiObjects;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Timeout of a read of local files: the directory may be on a remote file system that hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent reads. A read that hangs keeps its thread.
const MAX_READS: usize = 8;

const TIMED_OUT: &str = "reading its directory timed out";

/// Reads ConfigMaps and Secrets. Cheap to clone.
#[derive(Clone, Default)]
pub struct ConfigMapSecretReader {
    local: Option<Arc<LocalObjectsDir>>,
    api: Option<ApiObjects>,
    pods_to_sync: Arc<DirtySet<PodUid>>,
}

/// Reads the configmaps and secrets that one pod may use; cheap to clone.
#[derive(Clone)]
pub struct PodConfigMapSecretReader(ObjectBackend);

#[derive(Clone)]
enum ObjectBackend {
    None,
    Local(Arc<LocalObjectsDir>),
    Api(ApiObjects),
}

#[derive(Debug)]
struct LocalObjectsDir {
    path: PathBuf,
    reads: Arc<Semaphore>,
}

impl LocalObjectsDir {
    /// Runs a blocking read; `None` on a timeout.
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
            spawn_blocking(blocking).await.ok()
        };
        timeout(READ_TIMEOUT, work).await.ok().flatten()
    }
}

impl ConfigMapSecretReader {
    /// For static pods, reads objects below a directory: `configmaps/<namespace>/<name>/<key>` and
    /// `secrets/<namespace>/<name>/<key>`; a file `..immutable` beside the keys makes an object immutable. For other
    /// pods, reads from the API server.
    pub fn new(local: Option<PathBuf>, api: Option<ApiServer>) -> Self {
        let pods_to_sync = Arc::<DirtySet<PodUid>>::default();
        Self {
            local: local.map(|path| {
                let reads = Arc::new(Semaphore::new(MAX_READS));
                Arc::new(LocalObjectsDir { path, reads })
            }),
            api: api.map(|api| ApiObjects::new(api, pods_to_sync.clone())),
            pods_to_sync,
        }
    }

    /// Why the directory cannot be used at the moment; `None` if it can.
    pub async fn fault(&self) -> Option<&'static str> {
        let directory = self.local.clone()?;
        match directory.read(Path::is_dir).await {
            Some(true) => None,
            Some(false) => Some("is not a directory"),
            None => Some(TIMED_OUT),
        }
    }

    /// The source of this pod's objects: local files for static pods, the API server for others.
    pub fn of(&self, pod: &Pod) -> PodConfigMapSecretReader {
        let source = if pod.is_static() {
            self.local.clone().map(ObjectBackend::Local)
        } else {
            self.api.clone().map(ObjectBackend::Api)
        };
        PodConfigMapSecretReader(source.unwrap_or(ObjectBackend::None))
    }

    /// Watches the objects that this pod refers to, and no longer those of its earlier version.
    pub fn register(&self, pod: &Pod) {
        if let (Some(api), false) = (&self.api, pod.is_static()) {
            api.register(&pod.uid(), references::references(pod));
        }
    }

    /// Stops the watches for a pod.
    pub fn forget(&self, uid: &PodUid) {
        if let Some(api) = &self.api {
            api.forget(uid);
        }
    }

    /// The pods whose configmaps or secrets changed. Readers of other objects mark in it the pods that use those.
    pub fn pods_to_sync(&self) -> Arc<DirtySet<PodUid>> {
        self.pods_to_sync.clone()
    }

    /// Number of watched objects.
    pub fn count(&self) -> usize {
        self.api.as_ref().map_or(0, ApiObjects::len)
    }
}

impl PodConfigMapSecretReader {
    /// Reads these objects, within a bounded time. An empty set returns at once.
    pub async fn get(&self, keys: BTreeSet<ObjectKey>) -> ConfigMapsAndSecrets {
        if keys.is_empty() {
            return ConfigMapsAndSecrets::new();
        }
        match &self.0 {
            ObjectBackend::None => {
                let without = |key: ObjectKey| (key.clone(), Err(ObjectError::NoSource(key)));
                keys.into_iter().map(without).collect()
            }
            ObjectBackend::Local(directory) => read_files(directory.clone(), keys).await,
            ObjectBackend::Api(objects) => objects.get(keys).await,
        }
    }
}

async fn read_files(
    directory: Arc<LocalObjectsDir>,
    keys: BTreeSet<ObjectKey>,
) -> ConfigMapsAndSecrets {
    let wanted = keys.clone();
    let read = move |directory: &Path| {
        let read = |key: ObjectKey| {
            let object = local::read(directory, &key);
            (key, object.map(Arc::new))
        };
        wanted.into_iter().map(read).collect()
    };
    let timed_out = |key: ObjectKey| {
        let reason = TIMED_OUT.to_owned();
        (key.clone(), Err(ObjectError::Unreadable { key, reason }))
    };
    let found = directory.read(read).await;
    found.unwrap_or_else(|| keys.into_iter().map(timed_out).collect())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod api_tests;
