//! Pods that clients post to this kubelet. They are kept as manifests in a directory of the kubelet's own, which is a
//! source like the manifest directory, so accepted pods survive a crash of the kubelet.

use super::manifest::{InvalidManifest, decode_file};
use super::static_pod::ManifestOrigin;
use crate::base::{atomic_file, hex};
use crate::model::validation::{LocalConfigMapsAndSecrets, decode_pod_or_list};
use crate::model::{Pod, PodSource};
use jiff::Timestamp;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// Limit of stored pods. Far more than a node runs; it limits the disk space that a faulty client can use.
const MAX_PODS: usize = 4096;

/// Longest full name of a pod that is used as a file name, in bytes; the file name of a longer one is its digest.
const MAX_NAME_BYTES: usize = 200;

/// Why a post is rejected; none of its pods is stored.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// It is not a pod, or one that cannot run here.
    #[error(transparent)]
    Invalid(#[from] InvalidManifest),
    /// Two pods of one name.
    #[error("duplicate pod {0}")]
    Duplicate(String),
    /// There would be too many.
    #[error("too many pods: {0}, the limit is {MAX_PODS}")]
    TooMany(usize),
    /// They cannot be stored.
    #[error("failed to store the pods: {0}")]
    Storage(#[from] io::Error),
}

/// The store of posted pods; cheap to clone. Every method blocks.
#[derive(Clone, Debug)]
pub struct PostedPods {
    inner: Arc<PostedPodsInner>,
}

#[derive(Debug)]
struct PostedPodsInner {
    directory: PathBuf,
    node_name: String,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
    /// Posts are serialized: each sees the files of the previous one.
    writing: Mutex<()>,
}

impl PostedPods {
    /// Opens the store, creates its directory and removes temporary files of interrupted writes.
    ///
    /// # Errors
    /// The directory cannot be created or read.
    pub fn open(
        directory: &Path,
        node_name: &str,
        config_maps_and_secrets: LocalConfigMapsAndSecrets,
    ) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        atomic_file::remove_leftovers(directory)?;
        let inner = PostedPodsInner {
            directory: directory.to_path_buf(),
            node_name: node_name.to_owned(),
            config_maps_and_secrets,
            writing: Mutex::new(()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Stores pods; each replaces the stored pod of the same name, and others are kept. Returns them with their defaults
    /// and UIDs.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn add(&self, bytes: &[u8], now: Timestamp) -> Result<Vec<Arc<Pod>>, PostError> {
        let (wanted, pods) = self.validate(bytes, now)?;
        let _writing = self.inner.writing.lock();
        let kept: HashSet<PathBuf> = self.stored_files()?.into_iter().collect();
        let new = wanted.keys().filter(|path| !kept.contains(*path)).count();
        self.write(&wanted, kept.len() + new)?;
        Ok(pods)
    }

    /// Replaces all stored pods with these.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn replace(&self, bytes: &[u8], now: Timestamp) -> Result<Vec<Arc<Pod>>, PostError> {
        let (wanted, pods) = self.validate(bytes, now)?;
        let _writing = self.inner.writing.lock();
        self.write(&wanted, wanted.len())?;
        for path in self.stored_files()? {
            if !wanted.contains_key(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(pods)
    }

    /// Validates pods. Returns their manifests by file path, and the resulting static pods.
    #[allow(clippy::type_complexity)]
    fn validate(
        &self,
        bytes: &[u8],
        now: Timestamp,
    ) -> Result<(BTreeMap<PathBuf, Vec<u8>>, Vec<Arc<Pod>>), PostError> {
        let inner = &self.inner;
        let (mut wanted, mut pods) = (BTreeMap::new(), Vec::new());
        let decoded = decode_pod_or_list(bytes).map_err(InvalidManifest::Decode)?;
        for written in decoded.value {
            let meta = &written.metadata;
            let name = meta.name.as_deref().unwrap_or_default();
            let namespace = meta.namespace.as_deref().filter(|name| !name.is_empty());
            let full_name = format!("{}_{name}", namespace.unwrap_or("default"));
            let path = inner.directory.join(file_name(&full_name));
            let manifest = serde_json::to_vec(&written).map_err(io::Error::other)?;
            let origin = ManifestOrigin {
                node_name: &inner.node_name,
                source: PodSource::Posted,
                location: &path.to_string_lossy(),
                config_maps_and_secrets: inner.config_maps_and_secrets,
            };
            // Read as the source will read it, so that the response equals what the source will deliver.
            pods.extend(decode_file(&manifest, origin, now)?.pods);
            if wanted.insert(path, manifest).is_some() {
                return Err(PostError::Duplicate(full_name));
            }
        }
        Ok((wanted, pods))
    }

    fn write(&self, wanted: &BTreeMap<PathBuf, Vec<u8>>, total: usize) -> Result<(), PostError> {
        if total > MAX_PODS {
            return Err(PostError::TooMany(total));
        }
        for (path, manifest) in wanted {
            // An unchanged file is not rewritten, so that the source does not read it again.
            if !fs::read(path).is_ok_and(|kept| kept == *manifest) {
                atomic_file::write(path, manifest)?;
            }
        }
        Ok(())
    }

    fn stored_files(&self) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.inner.directory)?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect()
    }
}

/// A file name for a pod. A pod name and namespace together may exceed the file name limit. The rest is validated with
/// the manifest. Until then an invalid name must not escape the directory.
fn file_name(full_name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if full_name.len() <= MAX_NAME_BYTES && full_name.chars().all(plain) {
        return format!("{full_name}.json");
    }
    let digest = Sha256::digest(full_name.as_bytes());
    format!("{}.json", hex(&digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PodExt;

    fn pod(name: &str, image: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},"spec":{{"containers":[{{"name":"c","image":"{image}"}}]}}}}"#
        )
    }

    fn list(pods: &[String]) -> String {
        let items = pods.join(",");
        format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{items}]}}"#)
    }

    fn store(dir: &Path) -> PostedPods {
        PostedPods::open(dir, "node1", LocalConfigMapsAndSecrets::None).unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn one_is_added_and_a_list_replaces_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let now = Timestamp::UNIX_EPOCH;
        let taken = store.add(pod("a", "x").as_bytes(), now).unwrap();
        assert_eq!(taken[0].name(), "a-node1");
        assert_eq!(PodSource::of(&taken[0]), Some(PodSource::Posted));
        store.add(pod("b", "x").as_bytes(), now).unwrap();
        assert_eq!(files(dir.path()), ["default_a.json", "default_b.json"]);
        let again = store.add(pod("a", "y").as_bytes(), now).unwrap();
        assert_ne!(again[0].uid(), taken[0].uid(), "an edit is another pod");
        let all = list(&[pod("b", "x"), pod("c", "x")]);
        assert_eq!(store.replace(all.as_bytes(), now).unwrap().len(), 2);
        assert_eq!(files(dir.path()), ["default_b.json", "default_c.json"]);
        store.replace(list(&[]).as_bytes(), now).unwrap();
        assert!(files(dir.path()).is_empty());
    }

    #[test]
    fn an_invalid_post_names_the_error_and_stores_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let now = Timestamp::UNIX_EPOCH;
        store.add(pod("kept", "x").as_bytes(), now).unwrap();
        let rows = [
            ("not a pod".to_owned(), ""),
            (pod("../../etc/evil", "x"), "metadata.name"),
            (pod("Upper", "x"), "metadata.name"),
            (list(&[pod("a", "x"), pod("b", "")]), "image"),
            (list(&[pod("a", "x"), pod("a", "y")]), "duplicate pod default_a"),
            (pod("", "x"), "metadata.name"),
        ];
        for (body, expected) in rows {
            for replace in [false, true] {
                let result = if replace {
                    store.replace(body.as_bytes(), now)
                } else {
                    store.add(body.as_bytes(), now)
                };
                let error = result.unwrap_err().to_string();
                assert!(error.contains(expected), "{body}: {error}");
                assert_eq!(files(dir.path()), ["default_kept.json"], "{body}");
            }
        }
    }

    #[test]
    fn long_names_have_files_too_and_leftovers_go() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".default_x.json.1-1.tmp"), "half").unwrap();
        let store = store(dir.path());
        assert!(files(dir.path()).is_empty());
        let long = "a".repeat(230);
        store.add(pod(&long, "x").as_bytes(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(files(dir.path()).len(), 1);
    }
}
