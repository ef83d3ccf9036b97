//! The pods of the API server on disk: what an earlier kubelet knew of those that run, for when the API server is
//! away at the start.

use crate::base::{DirtySet, atomic_file, if_exists, run_file_io};
use crate::host::files::read_head_or_empty;
use crate::model::{Pod, PodExt, PodUid, keys};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio_util::sync::CancellationToken;

/// Larger files are not the store's own: the API server stores objects of 3 MiB at most.
const MAX_FILE: u64 = 8 * 1024 * 1024;
/// The file with the identity of the cluster that the pods are of.
const CLUSTER: &str = "cluster";
const MAX_CLUSTER: usize = 256;
/// How long a failed write waits before the next try.
const RETRY: Duration = Duration::from_secs(5);

/// The store; cheap to clone. It never keeps a pod from running: what cannot be written is tried again.
#[derive(Clone, Debug)]
pub(in crate::pods::pod_config) struct ApiPodStore {
    directory: Arc<PathBuf>,
    dirty: Arc<DirtySet<StoredItem>>,
    wanted: Arc<Mutex<Wanted>>,
}

/// What one file has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum StoredItem {
    Pod(PodUid),
    Cluster,
}

/// What the files are to have.
#[derive(Debug, Default)]
struct Wanted {
    /// The pods to write; the file of one that is not in it is to be removed.
    pods: HashMap<PodUid, Arc<Pod>>,
    /// The identity of the cluster, once this kubelet has learned it.
    cluster: Option<String>,
}

impl Wanted {
    /// What these files are to have.
    fn of(&self, items: &HashSet<StoredItem>) -> Self {
        let pods = items.iter().filter_map(|item| match item {
            StoredItem::Pod(uid) => Some((uid.clone(), self.pods.get(uid)?.clone())),
            StoredItem::Cluster => None,
        });
        Self { pods: pods.collect(), cluster: self.cluster.clone() }
    }
}

impl ApiPodStore {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory: Arc::new(directory), dirty: Arc::default(), wanted: Arc::default() }
    }

    /// What an earlier kubelet left. A file that cannot be read is logged and left out.
    pub(super) async fn read(&self) -> Vec<Arc<Pod>> {
        let directory = self.directory.clone();
        let read = run_file_io(move || read(&directory)).await;
        let read = read.map_err(io::Error::other).and_then(|read| read);
        let read = read.unwrap_or_else(|error| {
            tracing::warn!(err = %error, path = %self.directory.display(), "Reading the last list of pods failed");
            Vec::new()
        });
        let read: Vec<_> = read.into_iter().map(Arc::new).collect();
        let by_uid = read.iter().map(|pod| (pod.uid(), pod.clone()));
        self.wanted.lock().pods.extend(by_uid);
        read
    }

    /// The identity of the cluster that the stored pods are of; none if no kubelet has learned it.
    pub(super) async fn cluster(&self) -> Option<String> {
        let path = self.directory.join(CLUSTER);
        let read = run_file_io(move || read_head_or_empty(&path, MAX_CLUSTER)).await;
        let text = read.ok()?.ok().and_then(|text| String::from_utf8(text).ok());
        text.filter(|text| !text.is_empty())
    }

    /// Makes the store hold that identity, soon.
    pub(super) fn set_cluster(&self, uid: &str) {
        self.wanted.lock().cluster = Some(uid.to_owned());
        self.dirty.mark(StoredItem::Cluster);
    }

    /// Makes the store hold these pods and no others, soon.
    pub(super) fn set(&self, wanted: &[Arc<Pod>]) {
        let mut stored = self.wanted.lock();
        let pods = &mut stored.pods;
        let uids: HashSet<PodUid> = wanted.iter().map(|pod| pod.uid()).collect();
        let gone = pods.keys().filter(|uid| !uids.contains(*uid)).cloned();
        let gone = gone.collect::<Vec<_>>();
        for uid in &gone {
            pods.remove(uid);
        }
        let changed = wanted.iter().filter(|pod| {
            let known = pods.insert(pod.uid(), (*pod).clone());
            known.is_none_or(|known| !Arc::ptr_eq(&known, pod) && differs(&known, pod))
        });
        let changed = changed.map(|pod| pod.uid()).collect::<Vec<_>>();
        let items = gone.into_iter().chain(changed).map(StoredItem::Pod);
        self.dirty.mark_all(items);
    }

    /// Writes what changed, until shutdown.
    pub(in crate::pods::pod_config) async fn run(
        self,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut failing = false;
        loop {
            let items = tokio::select! {
                items = self.dirty.take() => items,
                () = shutdown.cancelled() => return Ok(()),
            };
            let (directory, wanted) = (self.directory.clone(), self.wanted.clone());
            let work = move || {
                let wanted = wanted.lock().of(&items);
                write(&directory, items, &wanted)
            };
            let failed = match run_file_io(work).await {
                Ok(failed) => failed,
                Err(error) => anyhow::bail!("writing pods panicked: {error}"),
            };
            let Some((error, items)) = failed else {
                failing = false;
                continue;
            };
            if !std::mem::replace(&mut failing, true) {
                tracing::warn!(err = %error, path = %self.directory.display(), "Writing the list of pods failed; trying again");
            }
            self.dirty.mark_all(items);
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }
}

fn differs(old: &Pod, new: &Pod) -> bool {
    // The version, and when this kubelet first saw the pod, do not count.
    let metadata = |pod: &Pod| {
        let mut metadata = ObjectMeta { resource_version: None, ..pod.metadata.clone() };
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(keys::CONFIG_SEEN);
        }
        metadata
    };
    old.spec != new.spec || old.status != new.status || metadata(old) != metadata(new)
}

/// A file per pod, by UID. The source validates UIDs.
fn file(directory: &Path, uid: &PodUid) -> PathBuf {
    directory.join(format!("{uid}.json"))
}

fn read(directory: &Path) -> io::Result<Vec<Pod>> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    atomic_file::remove_leftovers(directory)?;
    let mut pods = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let Some(uid) = name.strip_suffix(".json") else {
            continue;
        };
        let meta = entry.metadata()?;
        let read = if meta.is_file() && meta.len() <= MAX_FILE {
            fs::read(entry.path())
        } else {
            Err(io::ErrorKind::InvalidData.into())
        };
        let pod = read.and_then(|bytes| Ok(serde_json::from_slice::<Pod>(&bytes)?));
        match pod {
            Ok(pod) if *pod.uid().as_str() == *uid => pods.push(pod),
            Ok(_) => {
                tracing::warn!(path = %entry.path().display(), "Ignoring a stored pod of another UID")
            }
            Err(error) => {
                tracing::warn!(path = %entry.path().display(), err = %error, "Reading a stored pod failed");
            }
        }
    }
    Ok(pods)
}

/// The first error, and what remains to be written.
fn write(
    directory: &Path,
    items: HashSet<StoredItem>,
    wanted: &Wanted,
) -> Option<(io::Error, Vec<StoredItem>)> {
    let mut failed: Option<(io::Error, Vec<StoredItem>)> = None;
    for item in items {
        if let Err(error) = write_one(directory, &item, wanted) {
            let failed = failed.get_or_insert_with(|| (error, Vec::new()));
            failed.1.push(item);
        }
    }
    failed
}

fn write_one(directory: &Path, item: &StoredItem, wanted: &Wanted) -> io::Result<()> {
    let uid = match item {
        StoredItem::Cluster => {
            let cluster = wanted.cluster.as_deref().unwrap_or_default();
            return atomic_file::write(&directory.join(CLUSTER), cluster.as_bytes());
        }
        StoredItem::Pod(uid) => uid,
    };
    let path = file(directory, uid);
    match wanted.pods.get(uid) {
        Some(pod) => stored(pod).and_then(|bytes| atomic_file::write(&path, &bytes)),
        None => if_exists(fs::remove_file(&path)).map(drop),
    }
}

fn stored(pod: &Pod) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(pod)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, version: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod.metadata.resource_version = Some(version.into());
        Arc::new(pod)
    }

    async fn stored(dir: &Path) -> Vec<String> {
        let read = ApiPodStore::new(dir.to_owned()).read().await;
        let mut uids: Vec<_> = read.iter().map(|pod| pod.uid().to_string()).collect();
        uids.sort();
        uids
    }

    #[tokio::test]
    async fn what_is_set_is_read_by_the_next_kubelet_and_what_is_gone_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let store = ApiPodStore::new(dir.path().join("api-pods"));
        assert!(store.read().await.is_empty());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(store.clone().run(shutdown.clone()));
        let settle = || async {
            while !store.dirty.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        store.set(&[pod("a", "1"), pod("b", "1")]);
        let expect = |expected: &'static [&'static str]| {
            let dir = store.directory.clone();
            async move {
                let patience = Duration::from_secs(60);
                let found = async {
                    while stored(&dir).await != expected {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::time::timeout(patience, found).await.unwrap();
            }
        };
        settle().await;
        expect(&["a", "b"]).await;
        store.set(&[pod("b", "2")]);
        expect(&["b"]).await;
        fs::write(store.directory.join("c.json"), "{").unwrap();
        fs::write(store.directory.join("d.json"), r#"{"metadata":{"uid":"other"}}"#).unwrap();
        expect(&["b"]).await;
        shutdown.cancel();
        task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_identity_of_the_cluster_is_read_by_the_next_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let store = ApiPodStore::new(dir.path().join("api-pods"));
        assert!(store.read().await.is_empty());
        assert_eq!(store.cluster().await, None);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(store.clone().run(shutdown.clone()));
        store.set_cluster("one");
        let next = ApiPodStore::new(dir.path().join("api-pods"));
        while next.cluster().await.is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(next.cluster().await.as_deref(), Some("one"));
        assert!(next.read().await.is_empty());
        shutdown.cancel();
        task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_of_the_cluster_that_could_not_be_written_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("api-pods");
        let store = ApiPodStore::new(directory.clone());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(store.clone().run(shutdown.clone()));
        // There is no such directory yet.
        store.set_cluster("one");
        tokio::time::sleep(3 * RETRY).await;
        assert_eq!(store.cluster().await, None);
        fs::create_dir(&directory).unwrap();
        tokio::time::sleep(2 * RETRY).await;
        assert_eq!(store.cluster().await.as_deref(), Some("one"));
        shutdown.cancel();
        task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_new_version_of_the_same_pod_is_not_written_again() {
        let store = ApiPodStore::new("nowhere".into());
        store.set(&[pod("a", "1")]);
        assert!(!store.dirty.is_empty());
        store.dirty.take().await;
        store.set(&[pod("a", "2")]);
        assert!(store.dirty.is_empty());
    }
}
