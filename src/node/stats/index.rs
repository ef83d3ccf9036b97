//! Finds the cgroups of containers and pods. The runtime does not report them, but names cgroups after container IDs.
//! The pod's cgroup is the parent of a container's cgroup that has the pod's UID in its name; without any container
//! cgroup, it is found by name.

use crate::base::clock::Instant;
use crate::host::cgroup::{CgroupFs, Descend};
use crate::model::PodUid;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of cgroups that one search reads.
const MAX_CGROUPS: usize = 50_000;
/// Minimum interval between searches for a container that was not found: a container in a virtual machine has no cgroup
/// on the host.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// Cgroup paths by container ID. Known containers need no search.
#[derive(Debug, Default)]
pub(super) struct CgroupIndex {
    paths: HashMap<Arc<str>, Arc<str>>,
    /// Cgroups of pods by UID, as far as a search found them.
    pods: HashMap<PodUid, Arc<str>>,
    missed: HashMap<Arc<str>, Instant>,
}

impl CgroupIndex {
    /// Searches for the cgroups of `wanted` containers and of `pods`, and removes all others. Blocking.
    pub(super) fn refresh(
        &mut self,
        wanted: &HashSet<Arc<str>>,
        pods: &HashSet<PodUid>,
        fs: &CgroupFs,
        now: Instant,
    ) {
        self.pods.retain(|uid, _| pods.contains(uid));
        self.paths.retain(|id, _| wanted.contains(id));
        self.missed.retain(|id, at| {
            wanted.contains(id) && now.saturating_duration_since(*at) < SEARCH_INTERVAL
        });
        let known = |id: &Arc<str>| self.paths.contains_key(id) || self.missed.contains_key(id);
        let mut sought: HashSet<Arc<str>> =
            wanted.iter().filter(|id| !known(id)).cloned().collect();
        if sought.is_empty() {
            return;
        }
        fs.walk(MAX_CGROUPS, |name, path| {
            if let Some(uid) = pod_in(name, pods) {
                self.pods.insert(uid, path.into());
                return Descend::Yes;
            }
            let Some(id) = id_in(name) else {
                return Descend::Yes;
            };
            if let Some(id) = sought.take(id) {
                self.paths.insert(id, path.into());
            } else if !wanted.contains(id) {
                return Descend::Yes;
            }
            if sought.is_empty() {
                Descend::Stop
            } else {
                // Cgroups within a container are not searched.
                Descend::No
            }
        });
        self.missed.extend(sought.into_iter().map(|id| (id, now)));
    }

    pub(super) fn path(&self, id: &str) -> Option<Arc<str>> {
        self.paths.get(id).cloned()
    }

    pub(super) fn pod(&self, uid: &PodUid) -> Option<Arc<str>> {
        self.pods.get(uid).cloned()
    }

    /// Removes a container whose cgroup is gone, so that it is searched for again.
    pub(super) fn remove(&mut self, id: &str) {
        self.paths.remove(id);
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len() + self.pods.len() + self.missed.len()
    }
}

/// The container ID in a cgroup's name: `ID`, `cri-containerd-ID.scope`, `crio-ID.scope`, `a:b:ID`. The cgroup of a
/// runtime's monitor process (conmon) does not count.
fn id_in(name: &str) -> Option<&str> {
    if name.contains("conmon") {
        return None;
    }
    let name = name.strip_suffix(".scope").unwrap_or(name);
    name.rsplit(['-', ':']).next().filter(|id| !id.is_empty())
}

/// The pod whose UID is in a cgroup's name: `podUID`, or `kubepods-burstable-podUID.slice` with `_` for `-`.
fn pod_in(name: &str, pods: &HashSet<PodUid>) -> Option<PodUid> {
    let name = match name.strip_suffix(".slice") {
        Some(unit) => unit.replace('_', "-"),
        None => name.to_owned(),
    };
    // The UID of a static pod may itself contain "pod".
    let mut uids = name.match_indices("pod").filter_map(|(at, word)| {
        let uid = name.get(at + word.len()..)?;
        pods.get(uid)
    });
    uids.next().cloned()
}

/// The cgroup of a pod: the parent of its container's cgroup, if its name has the pod's UID.
pub(super) fn pod_cgroup<'a>(container: &'a str, uid: &str) -> Option<&'a str> {
    let (parent, _) = container.rsplit_once('/')?;
    let name = parent.rsplit('/').next()?;
    let (uid, escaped) = (format!("pod{uid}"), format!("pod{}", uid.replace('-', "_")));
    let name = name.strip_suffix(".slice").unwrap_or(name);
    (name.ends_with(&uid) || name.ends_with(&escaped)).then_some(parent)
}

/// The ancestors of a cgroup from the top, without the root.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter(|(at, _)| *at > 0).filter_map(|(at, _)| path.get(..at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn ids_are_found_in_the_names_that_runtimes_give() {
        for (name, id) in [
            ("abc", Some("abc")),
            ("cri-containerd-abc.scope", Some("abc")),
            ("crio-abc.scope", Some("abc")),
            ("system.slice:containerd:abc", Some("abc")),
            ("crio-conmon-abc.scope", None),
            ("odd-", None),
        ] {
            assert_eq!(id_in(name), id, "{name}");
        }
    }

    #[test]
    fn a_pods_own_cgroup_is_known_by_its_uid() {
        let uid = "11-22";
        for (path, pod) in [
            ("/kubepods/burstable/pod11-22/abc", Some("/kubepods/burstable/pod11-22")),
            (
                "/kubepods.slice/kubepods-pod11_22.slice/cri-containerd-abc.scope",
                Some("/kubepods.slice/kubepods-pod11_22.slice"),
            ),
            ("/k8s.io/abc", None),
            ("/abc", None),
        ] {
            assert_eq!(pod_cgroup(path, uid), pod, "{path}");
        }
        let above: Vec<&str> = ancestors("/a/b/c").collect();
        assert_eq!(above, ["/a", "/a/b"]);
    }

    #[test]
    fn the_tree_is_searched_only_for_unknown_containers() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(root.path().join(path)).unwrap();
        make("k8s.io/one/nested/two");
        make("k8s.io/three");
        let fs = CgroupFs::new(root.path(), true);
        let ids = |ids: &[&str]| ids.iter().map(|id| Arc::from(*id)).collect::<HashSet<Arc<str>>>();
        let (mut index, now) = (CgroupIndex::default(), clock::instant());
        let none = HashSet::new();
        index.refresh(&ids(&["one", "two", "three"]), &none, &fs, now);
        assert_eq!(index.path("one").as_deref(), Some("/k8s.io/one"));
        assert_eq!(index.path("three").as_deref(), Some("/k8s.io/three"));
        assert_eq!(index.path("two"), None, "it belongs to another container");
        make("two");
        index.refresh(&ids(&["one", "two"]), &none, &fs, now + SEARCH_INTERVAL / 2);
        assert_eq!((index.path("two"), index.path("three")), (None, None));
        index.refresh(&ids(&["one", "two"]), &none, &fs, now + SEARCH_INTERVAL);
        assert_eq!(index.path("two").as_deref(), Some("/two"));
        index.remove("two");
        index.refresh(&ids(&["two"]), &none, &fs, now + SEARCH_INTERVAL);
        assert_eq!(index.path("two").as_deref(), Some("/two"));
        index.refresh(&ids(&[]), &none, &fs, now);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn the_cgroup_of_a_pod_whose_containers_have_none_is_found_by_its_uid() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(root.path().join(path)).unwrap();
        make("kubepods/besteffort/podpod-7");
        make("kubepods.slice/kubepods-pod11_22.slice");
        make("kubepods/podother");
        let fs = CgroupFs::new(root.path(), true);
        let pods: HashSet<PodUid> = ["pod-7", "11-22", "none"].map(PodUid::from).into();
        let (mut index, now) = (CgroupIndex::default(), clock::instant());
        let machine = HashSet::from([Arc::from("in-a-machine")]);
        index.refresh(&machine, &pods, &fs, now);
        let path =
            |index: &CgroupIndex, uid: &str| index.pod(&uid.into()).map(|path| path.to_string());
        assert_eq!(path(&index, "pod-7").as_deref(), Some("/kubepods/besteffort/podpod-7"));
        assert_eq!(
            path(&index, "11-22").as_deref(),
            Some("/kubepods.slice/kubepods-pod11_22.slice")
        );
        assert_eq!(path(&index, "none"), None);
        index.refresh(&machine, &HashSet::new(), &fs, now);
        assert_eq!(path(&index, "11-22"), None);
    }
}
