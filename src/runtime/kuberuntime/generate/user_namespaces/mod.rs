//! The user namespaces of pods: allocation of ID ranges, kept over restarts.
//!
//! * Owns: the file `userns` in every pod's directory that has a range, and the table of all of them.
//! * Woken by: the creation of a sandbox or container; the end of a pod.
//! * Publishes: the pod's range.
//! * Must never allocate one ID to two pods, or change the range of a running pod.
//! * Upstream: `pkg/kubelet/userns`.

mod assigned_ids;
pub mod ranges;

pub use assigned_ids::UserNamespacesConfig;

use crate::base::{atomic_file, error_chain, if_exists, run_file_io, spawn_blocking};
use crate::cri::{HandlerFeatures, UnknownHandler};
use crate::host::files;
use crate::model::{Pod, PodExt, PodUid};
use crate::volumes::{KubeletRoot, UnsafeName, VolumeError, pod_dirs};
use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use ranges::{IdRange, IdSpace, Ranges, parse_record, record_text};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// The file's name; upstream's.
const FILE: &str = "userns";
/// Maximum size of a record.
const MAX_FILE: usize = 4096;

/// A handler in error messages; upstream's words.
fn handler_text(handler: &str) -> String {
    if handler.is_empty() {
        "runtime".to_owned()
    } else {
        format!("RuntimeClass handler {handler:?}")
    }
}

/// Allocates the ID ranges of pods; cheap to clone.
#[derive(Clone)]
pub struct UserNamespaces {
    root: KubeletRoot,
    ranges: Arc<Mutex<Ranges>>,
}

impl UserNamespaces {
    /// The ranges of this node's pods, from the ids that the node sets aside. To be read before the first pod is
    /// processed, so that no pod gets ids of another.
    ///
    /// # Errors
    /// The node's ids, or the files of pods that have some, cannot be read.
    pub async fn of_node(root: KubeletRoot, config: UserNamespacesConfig) -> anyhow::Result<Self> {
        let space = assigned_ids::space(&config).await.context("create user namespace manager")?;
        let opened = spawn_blocking(move || Self::open(root, space)).await?;
        opened.context("failed to find the pods that have user namespaces")
    }

    /// Reads the ranges of all pods that have a directory. A file that is invalid concerns its own
    /// pod, whose sync reports it; the others continue. Blocking.
    ///
    /// # Errors
    /// The pods' directories cannot be listed: the allocated ranges are then unknown.
    pub fn open(root: KubeletRoot, space: IdSpace) -> Result<Self, VolumeError> {
        let known = Self { root, ranges: Arc::new(Mutex::new(Ranges::new(space))) };
        let pods = match pod_dirs::list(&known.root) {
            Err(VolumeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Vec::new()
            }
            listed => listed?,
        };
        for uid in pods {
            if let Err(error) = known.read(&uid) {
                tracing::error!(
                    "podUID" = %uid,
                    err = %error_chain(error.as_ref()),
                    "Failed to restore a pod's user namespace"
                );
            }
        }
        Ok(known)
    }

    /// The ids of a pod that wants some of its own ([`is_wanted`]). `features` are those of its `handler`, whose name
    /// is empty for the runtime's default.
    ///
    /// # Errors
    /// The handler cannot give it a user namespace, or its ids cannot be read or allocated.
    pub async fn of_pod(
        &self,
        pod: &Pod,
        handler: &str,
        features: Result<HandlerFeatures, UnknownHandler>,
    ) -> anyhow::Result<IdRange> {
        let unsupported = || {
            let handler = handler_text(handler);
            format!("can't set `spec.hostUsers: false`, {handler} does not support user namespaces")
        };
        if !features.with_context(unsupported)?.user_namespaces {
            bail!(unsupported());
        }
        let uid = pod.uid();
        if let Some(known) = self.ranges.lock().of(&uid) {
            return Ok(known);
        }
        let this = self.clone();
        run_file_io(move || this.read_or_create(&uid)).await.context("user namespace")?
    }

    /// Releases a pod's range. To be called when none of its processes is left.
    pub async fn release(&self, uid: &PodUid) {
        if self.ranges.lock().of(uid).is_none() {
            return;
        }
        let (this, pod) = (self.clone(), uid.clone());
        let released = run_file_io(move || {
            // The file first: a free range must not be recorded for any pod.
            let removed = this.file(&pod).map(fs::remove_file);
            match removed {
                Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => {
                    this.ranges.lock().release(&pod);
                    Ok(())
                }
            }
        });
        if let Ok(Err(error)) = released.await {
            tracing::warn!(
                "podUID" = %uid,
                err = %error,
                "Failed to release the user namespace of a removed pod"
            );
        }
    }

    fn file(&self, uid: &PodUid) -> Result<PathBuf, UnsafeName> {
        Ok(self.root.pod(uid)?.path().join(FILE))
    }

    /// Reads and records the pod's range; `None` without a file.
    fn read(&self, uid: &PodUid) -> anyhow::Result<Option<IdRange>> {
        let path = self.file(uid)?;
        let text = if_exists(read_plain(&path))
            .with_context(|| format!("user namespace: {}", path.display()))?;
        let Some(text) = text else {
            return Ok(None);
        };
        let range = parse_record(&text).context("user namespace")?;
        let recorded = self.ranges.lock().record(uid, range);
        recorded.context("user namespace")?;
        Ok(Some(range))
    }

    fn read_or_create(&self, uid: &PodUid) -> anyhow::Result<IdRange> {
        if let Some(range) = self.read(uid)? {
            return Ok(range);
        }
        let allocated = self.ranges.lock().allocate(uid);
        let range = allocated.context("create user namespace")?;
        let path = self.file(uid)?;
        // A pod without volumes has no directory yet.
        if let Err(error) = pod_dirs::create(&self.root.pod(uid)?) {
            self.ranges.lock().release(uid);
            return Err(error).context("user namespace");
        }
        if let Err(error) = atomic_file::write(&path, record_text(range).as_bytes()) {
            self.ranges.lock().release(uid);
            return Err(error).with_context(|| format!("user namespace: {}", path.display()));
        }
        Ok(range)
    }
}

/// Whether the pod requests a user namespace (`hostUsers: false`).
pub fn is_wanted(pod: &Pod) -> bool {
    pod.spec().and_then(|spec| spec.host_users) == Some(false)
}

/// The file, if it is one; `NotFound` when there is none.
fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    files::read_tail(path, MAX_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::kuberuntime::fixtures::pod;
    use ranges::UNIT;
    use serde_json::json;

    const CAN: Result<HandlerFeatures, UnknownHandler> =
        Ok(HandlerFeatures { recursive_read_only_mounts: false, user_namespaces: true });

    fn space() -> IdSpace {
        IdSpace::new((UNIT, 2 * UNIT), UNIT, 2).unwrap()
    }

    fn pod_of(name: &str) -> Pod {
        let mut pod = pod(json!({"hostUsers": false}));
        pod.metadata.uid = Some(name.into());
        pod
    }

    #[tokio::test]
    async fn a_pod_keeps_its_ids_over_a_restart_and_gives_them_back_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(dir.path()).unwrap();
        let (a, b) = (pod_of("a"), pod_of("b"));
        let first = UserNamespaces::open(root.clone(), space()).unwrap();
        let of_b = first.of_pod(&b, "", CAN).await.unwrap();
        let of_a = first.of_pod(&a, "", CAN).await.unwrap();
        assert_eq!((of_b.host_id, of_a.host_id), (65536, 131_072));
        let file = dir.path().join("pods/a/userns");
        assert!(fs::read_to_string(&file).unwrap().contains("131072"));

        let second = UserNamespaces::open(root.clone(), space()).unwrap();
        assert_eq!(second.of_pod(&a, "", CAN).await.unwrap(), of_a);
        let c = pod_of("c");
        let none = second.of_pod(&c, "", CAN).await.unwrap_err();
        assert_eq!(
            error_chain(none.as_ref()),
            "create user namespace: could not find an empty slot to allocate a user namespace"
        );
        second.release(&a.uid()).await;
        assert!(!file.exists());
        assert_eq!(second.of_pod(&c, "", CAN).await.unwrap(), of_a);
    }

    #[tokio::test]
    async fn only_pods_that_ask_need_a_handler_that_can() {
        let dir = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(dir.path()).unwrap();
        let all = UserNamespaces::open(root.clone(), space()).unwrap();
        for (spec, expected) in [
            (json!({}), false),
            (json!({"hostUsers": true}), false),
            (json!({"hostUsers": false}), true),
        ] {
            assert_eq!(is_wanted(&pod(spec.clone())), expected, "{spec}");
        }
        let unknown = |name: &str| Err(UnknownHandler(name.into()));
        for (handler, features, expected) in [
            ("", Ok(HandlerFeatures::default()), "runtime does not support user namespaces"),
            (
                "",
                unknown(""),
                "runtime does not support user namespaces: the handler \"\" is not known",
            ),
            (
                "kata",
                Ok(HandlerFeatures::default()),
                "RuntimeClass handler \"kata\" does not support user namespaces",
            ),
            (
                "kata",
                unknown("kata"),
                "RuntimeClass handler \"kata\" does not support user namespaces: the handler \
                 \"kata\" is not known",
            ),
        ] {
            let error = all.of_pod(&pod_of("a"), handler, features).await;
            assert_eq!(
                error_chain(error.unwrap_err().as_ref()),
                format!("can't set `spec.hostUsers: false`, {expected}")
            );
        }
    }

    #[test]
    fn a_list_that_cannot_be_had_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(dir.path()).unwrap();
        assert!(UserNamespaces::open(root.clone(), space()).is_ok(), "no pod has a range");
        fs::remove_dir(dir.path().join("pods")).unwrap();
        fs::write(dir.path().join("pods"), "not a directory").unwrap();
        assert!(UserNamespaces::open(root, space()).is_err());
    }

    #[tokio::test]
    async fn a_broken_file_concerns_its_own_pod_only() {
        let dir = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(dir.path()).unwrap();
        let (a, b) = (pod_of("a"), pod_of("b"));
        pod_dirs::create(&root.pod(&a.uid()).unwrap()).unwrap();
        fs::write(dir.path().join("pods/a/userns"), "{").unwrap();
        let all = UserNamespaces::open(root, space()).unwrap();
        let error = all.of_pod(&a, "", CAN).await.unwrap_err();
        let error = error_chain(error.as_ref());
        assert!(
            error.starts_with("user namespace: invalid user namespace mappings file: "),
            "{error}"
        );
        assert!(all.of_pod(&b, "", CAN).await.is_ok());
    }
}
