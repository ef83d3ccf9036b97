//! The known pods of the API server, and which of them have to be confirmed. Pure.

use crate::{
    apiserver::{ApiItem, Unreadable},
    model::{Completeness, Pod, PodExt, PodUid, keys},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::accept::accept;

/// A pod that is not accepted, and why.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RefusedPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) why: String,
}

impl RefusedPod {
    /// A pod, without a reason.
    fn of(metadata: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
            why: String::new(),
        }
    }
}

/// The pods of this node.
#[derive(Debug)]
pub(super) struct ApiPods {
    node_name: String,
    pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Pods that are missing from the last list and have to be confirmed: the list may come from a server that has lost its
    /// data, or not loaded it yet.
    in_doubt: BTreeSet<PodUid>,
    /// UIDs of pods that could not be decoded and of which no earlier version is known.
    unread: BTreeSet<String>,
    listed: bool,
    has_known_pods: bool,
}

impl ApiPods {
    /// `adopted` are running pods of the stored list.
    pub(super) fn new(node_name: String, adopted: Vec<Pod>, now: Timestamp) -> Self {
        let adopted = adopted.into_iter().map(|mut pod| {
            note_first_seen(&mut pod, None, now);
            (pod.uid(), Arc::new(pod))
        });
        Self {
            node_name,
            pods: adopted.collect(),
            in_doubt: BTreeSet::new(),
            unread: BTreeSet::new(),
            listed: false,
            has_known_pods: false,
        }
    }

    /// Whether the last list has one of the pods that were known, or none was known: then the server has the data of the
    /// cluster that the pods came from.
    pub(super) fn list_has_known_pods(&self) -> bool {
        self.has_known_pods
    }

    /// All pods, in a stable order.
    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.values().cloned().collect()
    }

    /// Whether a pod that is not among them has been deleted.
    pub(super) fn completeness(&self) -> Completeness {
        if self.listed {
            Completeness::from(self.unread.clone())
        } else {
            Completeness::Partial
        }
    }

    /// The next pod to confirm, in order of UIDs after `last`.
    pub(super) fn missing_from_list(&self, last: Option<&PodUid>) -> Option<Arc<Pod>> {
        let after = |uid: &&PodUid| last.is_none_or(|last| *uid > last);
        let next = self.in_doubt.iter().find(after);
        let next = next.or_else(|| self.in_doubt.first());
        self.pods.get(next?).cloned()
    }

    /// Whether the pod still has to be confirmed: the watch may have delivered it meanwhile.
    pub(super) fn is_missing_from_list(&self, uid: &PodUid) -> bool {
        self.in_doubt.contains(uid)
    }

    /// Confirms a pod that exists but could not be decoded.
    pub(super) fn exists(&mut self, uid: &PodUid) {
        self.in_doubt.remove(uid);
    }

    /// Handles a complete list; returns the pods that are not accepted.
    pub(super) fn listed(&mut self, items: Vec<ApiItem<Pod>>, now: Timestamp) -> Vec<RefusedPod> {
        let is_known = |item: &ApiItem<Pod>| {
            let metadata = match item {
                Ok(pod) => &pod.metadata,
                Err(unreadable) => &unreadable.metadata,
            };
            let uid = metadata.uid.as_deref().unwrap_or_default();
            self.pods.contains_key(&PodUid::from(uid))
        };
        self.has_known_pods = self.pods.is_empty() || items.iter().any(is_known);
        self.listed = true;
        self.unread.clear();
        self.in_doubt = self.pods.keys().cloned().collect();
        let taken = items.into_iter().map(|item| self.applied(item, now));
        taken.filter_map(Result::err).collect()
    }

    /// Handles a new or changed pod.
    ///
    /// # Errors
    /// It is not accepted. An earlier version of it is kept.
    pub(super) fn applied(&mut self, item: ApiItem<Pod>, now: Timestamp) -> Result<(), RefusedPod> {
        let read = match item {
            Ok(pod) => {
                let refused = RefusedPod::of(&pod.metadata);
                accept(*pod, &self.node_name).map_err(|why| RefusedPod { why, ..refused })
            }
            Err(Unreadable { metadata, why }) => Err(RefusedPod {
                why,
                ..RefusedPod::of(&metadata)
            }),
        };
        match read {
            Ok(pod) => {
                self.take(pod, now);
                Ok(())
            }
            Err(refused) => {
                let uid = PodUid::from(refused.uid.as_str());
                self.in_doubt.remove(&uid);
                if !self.pods.contains_key(&uid) {
                    self.unread.insert(refused.uid.clone());
                }
                Err(refused)
            }
        }
    }

    fn take(&mut self, mut pod: Pod, now: Timestamp) {
        let uid = pod.uid();
        note_first_seen(&mut pod, self.pods.get(&uid).map(Arc::as_ref), now);
        self.in_doubt.remove(&uid);
        self.unread.remove(uid.as_str());
        // The name can belong to another pod only when that one is gone.
        let has_its_name =
            |old: &Pod| old.name() == pod.name() && old.namespace() == pod.namespace();
        self.pods
            .retain(|other, old| *other == uid || !has_its_name(old));
        self.pods.insert(uid, Arc::new(pod));
        let pods = &self.pods;
        self.in_doubt.retain(|uid| pods.contains_key(uid));
    }

    /// A pod is gone.
    pub(super) fn deleted(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.in_doubt.remove(uid);
        self.unread.remove(uid.as_str());
    }
}

/// Notes when a pod was first seen: here, so that all share this one copy of it. `before` is its earlier version.
fn note_first_seen(pod: &mut Pod, before: Option<&Pod>, now: Timestamp) {
    let seen = before.and_then(|before| before.annotation(keys::CONFIG_SEEN));
    let seen = seen.or_else(|| pod.annotation(keys::CONFIG_SEEN));
    let seen = seen.map_or_else(|| now.to_string(), str::to_owned);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_SEEN.into(), seen);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pod(uid: &str, name: &str) -> Box<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": uid},
            "spec": {"nodeName": "node1", "containers": [{"name": "main"}]},
        });
        Box::new(serde_json::from_value(pod).unwrap())
    }

    fn unreadable(uid: &str, name: &str) -> ApiItem<Pod> {
        let metadata = ObjectMeta {
            uid: Some(uid.into()),
            name: Some(name.into()),
            ..ObjectMeta::default()
        };
        Err(Unreadable {
            metadata: Box::new(metadata),
            why: "invalid".into(),
        })
    }

    fn none() -> ApiPods {
        ApiPods::new("node1".into(), Vec::new(), NOW)
    }

    fn uids(pods: &ApiPods) -> Vec<String> {
        pods.pods.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn before_the_first_list_nothing_is_complete() {
        let mut pods = ApiPods::new("node1".into(), vec![*pod("a", "one")], NOW);
        assert_eq!(pods.completeness(), Completeness::Partial);
        assert_eq!(uids(&pods), ["a"]);
        assert_eq!(pods.listed(vec![Ok(pod("a", "one"))], NOW), []);
        assert_eq!(pods.completeness(), Completeness::Complete);
        assert!(pods.missing_from_list(None).is_none());
    }

    #[test]
    fn a_pod_was_first_seen_when_its_first_version_came() {
        let later = NOW + jiff::SignedDuration::from_secs(5);
        let mut pods = none();
        pods.applied(Ok(pod("a", "one")), NOW).unwrap();
        pods.applied(Ok(pod("a", "one")), later).unwrap();
        pods.applied(Ok(pod("b", "two")), later).unwrap();
        let seen = |pod: &Arc<Pod>| pod.annotation(keys::CONFIG_SEEN).map(str::to_owned);
        let seen: Vec<_> = pods.pods().iter().map(seen).collect();
        assert_eq!(seen, [Some(NOW.to_string()), Some(later.to_string())]);
    }

    #[test]
    fn a_pod_that_a_list_lacks_stays_in_doubt_until_it_is_known_to_be_gone() {
        let mut pods = none();
        pods.listed(vec![Ok(pod("a", "one")), Ok(pod("b", "two"))], NOW);
        pods.listed(vec![], NOW);
        assert_eq!(uids(&pods), ["a", "b"]);
        let next = |last: Option<&str>| {
            let last = last.map(PodUid::from);
            pods.missing_from_list(last.as_ref())
                .unwrap()
                .uid()
                .to_string()
        };
        assert_eq!(
            [next(None), next(Some("a")), next(Some("b"))],
            ["a", "b", "a"]
        );
        pods.deleted(&"a".into());
        pods.applied(Ok(pod("b", "two")), NOW).unwrap();
        assert_eq!(uids(&pods), ["b"]);
        assert!(pods.missing_from_list(None).is_none());
    }

    #[test]
    fn a_list_is_of_the_known_cluster_if_it_has_a_known_pod() {
        let mut pods = none();
        assert!(!pods.list_has_known_pods());
        let mut has_known_pods = |items: Vec<ApiItem<Pod>>| {
            pods.listed(items, NOW);
            pods.list_has_known_pods()
        };
        assert!(has_known_pods(vec![
            Ok(pod("a", "one")),
            Ok(pod("b", "two"))
        ]));
        assert!(has_known_pods(vec![Ok(pod("b", "two"))]));
        assert!(has_known_pods(vec![unreadable("a", "one")]));
        assert!(!has_known_pods(vec![]));
        assert!(!has_known_pods(vec![Ok(pod("c", "three"))]));
    }

    #[test]
    fn a_new_pod_of_a_name_proves_that_the_old_one_is_gone() {
        let mut pods = none();
        pods.listed(vec![Ok(pod("a", "one"))], NOW);
        pods.listed(vec![Ok(pod("b", "one"))], NOW);
        assert_eq!(uids(&pods), ["b"]);
        assert!(pods.missing_from_list(None).is_none());
        pods.applied(Ok(pod("c", "one")), NOW).unwrap();
        assert_eq!(uids(&pods), ["c"]);
    }

    #[test]
    fn what_cannot_be_read_keeps_its_last_version_and_makes_nothing_else_gone() {
        let mut pods = none();
        pods.listed(vec![Ok(pod("a", "one"))], NOW);
        let refused = pods.listed(vec![unreadable("a", "one"), unreadable("n", "new")], NOW);
        assert_eq!(refused.len(), 2);
        assert_eq!(uids(&pods), ["a"]);
        assert!(pods.missing_from_list(None).is_none());
        assert!(!pods.completeness().covers(None));
        pods.deleted(&"n".into());
        assert!(pods.completeness().covers(None));
        let elsewhere = {
            let mut pod = pod("e", "else");
            pod.spec.as_mut().unwrap().node_name = Some("node2".into());
            pod
        };
        assert!(pods.applied(Ok(elsewhere), NOW).is_err());
        assert_eq!(uids(&pods), ["a"]);
    }
}
