//! The known pods of the API server, and which of them have to be confirmed. Pure.

use crate::apiserver::{ApiItem, Unreadable};
use crate::model::{Completeness, Pod, PodExt, PodFullName, PodUid, keys};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    /// What an earlier kubelet has left of pods of which no version is known. They have to be confirmed like those in doubt.
    left_over: BTreeMap<PodUid, PodFullName>,
    /// New pods with the name of one that has to be confirmed. They are held back while the list may be of another cluster.
    held: BTreeMap<PodUid, Arc<Pod>>,
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
            left_over: BTreeMap::new(),
            held: BTreeMap::new(),
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
        if !self.listed {
            return Completeness::Partial;
        }
        let unsure = self.left_over.keys().chain(self.held.keys());
        let unsure = unsure.map(ToString::to_string);
        let unread = self.unread.iter().cloned();
        Completeness::from(unread.chain(unsure).collect::<BTreeSet<_>>())
    }

    /// Whether no list was handled yet.
    pub(super) fn is_first_list(&self) -> bool {
        !self.listed
    }

    /// Notes what an earlier kubelet has left, before the first list.
    pub(super) fn left_over(&mut self, pods: BTreeMap<PodUid, PodFullName>) {
        self.left_over = pods;
        let known = &self.pods;
        self.left_over.retain(|uid, _| !known.contains_key(uid));
    }

    /// Forgets left-over pods that are not of the API server.
    pub(super) fn retain_left_over(&mut self, is_of_api: impl Fn(&PodUid) -> bool) {
        self.left_over.retain(|uid, _| is_of_api(uid));
    }

    /// Whether pods have to be confirmed.
    pub(super) fn has_doubts(&self) -> bool {
        !self.in_doubt.is_empty() || !self.left_over.is_empty()
    }

    /// The pods that have to be confirmed.
    pub(super) fn doubts(&self) -> Vec<PodUid> {
        let left_over = self.left_over.keys();
        self.in_doubt.iter().chain(left_over).cloned().collect()
    }

    /// Handles a further list: the pods in it that had to be confirmed exist. The watch may have delivered them meanwhile,
    /// in a later version.
    pub(super) fn confirmed(&mut self, items: Vec<ApiItem<Pod>>, now: Timestamp) -> Confirmed {
        let mut confirmed = Confirmed::default();
        for item in items {
            let uid = uid_of(&item);
            if !self.in_doubt.contains(&uid) && !self.left_over.contains_key(&uid) {
                continue;
            }
            confirmed.any_exists = true;
            confirmed.refused.extend(self.applied(item, now).err());
        }
        confirmed
    }

    /// Handles a complete list; returns the pods that are not accepted.
    pub(super) fn listed(&mut self, items: Vec<ApiItem<Pod>>, now: Timestamp) -> Vec<RefusedPod> {
        let is_known = |item: &ApiItem<Pod>| {
            let uid = uid_of(item);
            self.pods.contains_key(&uid) || self.left_over.contains_key(&uid)
        };
        let none_known = self.pods.is_empty() && self.left_over.is_empty();
        self.has_known_pods = none_known || items.iter().any(is_known);
        self.listed = true;
        self.unread.clear();
        self.held.clear();
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
            Err(Unreadable { metadata, why }) => {
                Err(RefusedPod { why, ..RefusedPod::of(&metadata) })
            }
        };
        match read {
            Ok(pod) => {
                self.take(pod, now);
                Ok(())
            }
            Err(refused) => {
                let uid = PodUid::from(refused.uid.as_str());
                self.in_doubt.remove(&uid);
                self.left_over.remove(&uid);
                if !self.pods.contains_key(&uid) {
                    self.unread.insert(refused.uid.clone());
                }
                Err(refused)
            }
        }
    }

    fn take(&mut self, mut pod: Pod, now: Timestamp) {
        let uid = pod.uid();
        let before = self.pods.get(&uid).or(self.held.get(&uid));
        note_first_seen(&mut pod, before.map(Arc::as_ref), now);
        self.in_doubt.remove(&uid);
        self.left_over.remove(&uid);
        self.unread.remove(uid.as_str());
        let pod = Arc::new(pod);
        if self.is_name_in_doubt(&pod) {
            self.held.insert(uid, pod);
        } else {
            self.insert(pod);
        }
    }

    /// Whether the pod has the name of one that has to be confirmed, and the list has none of the known pods: then it may
    /// be another cluster's pod of that name.
    fn is_name_in_doubt(&self, pod: &Pod) -> bool {
        let (uid, name) = (pod.uid(), pod.log_name());
        let known = self.in_doubt.iter().filter_map(|uid| self.pods.get_key_value(uid));
        let known = known.map(|(uid, pod)| (uid, pod.log_name()));
        let left_over = self.left_over.iter();
        let left_over = left_over.map(|(uid, name)| (uid, name.log_name()));
        !self.has_known_pods
            && known.chain(left_over).any(|(other, its_name)| *other != uid && its_name == name)
    }

    fn insert(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid();
        self.held.remove(&uid);
        // The name can belong to another pod only when that one is gone.
        let name = pod.log_name();
        self.pods.retain(|other, old| *other == uid || old.log_name() != name);
        self.pods.insert(uid, pod);
        let pods = &self.pods;
        self.in_doubt.retain(|uid| pods.contains_key(uid));
    }

    /// A pod is gone.
    pub(super) fn deleted(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.in_doubt.remove(uid);
        self.left_over.remove(uid);
        self.held.remove(uid);
        self.unread.remove(uid.as_str());
        let held: Vec<_> = self.held.values().cloned().collect();
        for pod in held {
            if !self.is_name_in_doubt(&pod) {
                self.insert(pod);
            }
        }
    }
}

/// The result of a further list.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    /// At least one of the pods in doubt exists.
    pub(super) any_exists: bool,
    /// Those that exist and are not accepted.
    pub(super) refused: Vec<RefusedPod>,
}

fn uid_of(item: &ApiItem<Pod>) -> PodUid {
    let metadata = match item {
        Ok(pod) => &pod.metadata,
        Err(unreadable) => &unreadable.metadata,
    };
    PodUid::from(metadata.uid.as_deref().unwrap_or_default())
}

/// Sets the first-seen annotation, keeping the value of the previous version. Done once here because the object is
/// shared from here on.
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
    use crate::model::fixture;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pod(uid: &str, name: &str) -> Box<Pod> {
        let spec = json!({"nodeName": "node1", "containers": [{"name": "main"}]});
        Box::new(fixture::pod(&format!("shop/{name}/{uid}"), spec))
    }

    fn unreadable(uid: &str, name: &str) -> ApiItem<Pod> {
        let metadata =
            ObjectMeta { uid: Some(uid.into()), name: Some(name.into()), ..ObjectMeta::default() };
        Err(Unreadable { metadata: Box::new(metadata), why: "invalid".into() })
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
        assert!(!pods.has_doubts());
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
        assert_eq!(pods.doubts(), ["a".into(), "b".into()]);
        pods.deleted(&"a".into());
        pods.applied(Ok(pod("b", "two")), NOW).unwrap();
        assert_eq!(uids(&pods), ["b"]);
        assert!(!pods.has_doubts());
    }

    #[test]
    fn a_list_is_of_the_known_cluster_if_it_has_a_known_pod() {
        let mut pods = none();
        assert!(!pods.list_has_known_pods());
        let mut has_known_pods = |items: Vec<ApiItem<Pod>>| {
            pods.listed(items, NOW);
            pods.list_has_known_pods()
        };
        assert!(has_known_pods(vec![Ok(pod("a", "one")), Ok(pod("b", "two"))]));
        assert!(has_known_pods(vec![Ok(pod("b", "two"))]));
        assert!(has_known_pods(vec![unreadable("a", "one")]));
        assert!(!has_known_pods(vec![]));
        assert!(!has_known_pods(vec![Ok(pod("c", "three"))]));
    }

    #[test]
    fn a_new_pod_of_a_name_proves_that_the_old_one_is_gone() {
        let mut pods = none();
        pods.listed(vec![Ok(pod("a", "one")), Ok(pod("s", "stays"))], NOW);
        pods.listed(vec![Ok(pod("b", "one")), Ok(pod("s", "stays"))], NOW);
        assert_eq!(uids(&pods), ["b", "s"]);
        assert!(!pods.has_doubts());
        pods.applied(Ok(pod("c", "one")), NOW).unwrap();
        assert_eq!(uids(&pods), ["c", "s"]);
    }

    #[test]
    fn a_new_pod_of_a_name_waits_where_the_list_has_no_known_pod() {
        let mut pods = none();
        pods.listed(vec![Ok(pod("a", "one"))], NOW);
        pods.listed(vec![Ok(pod("b", "one"))], NOW);
        assert_eq!(uids(&pods), ["a"]);
        assert!(pods.has_doubts());
        assert!(!pods.completeness().covers(Some("b")), "it may run here");
        pods.applied(Ok(pod("c", "one")), NOW).unwrap();
        pods.deleted(&"b".into());
        assert_eq!(uids(&pods), ["a"]);
        pods.deleted(&"a".into());
        assert_eq!(uids(&pods), ["c"]);
        assert_eq!(pods.completeness(), Completeness::Complete);
    }

    #[test]
    fn what_an_earlier_kubelet_has_left_is_confirmed_before_it_counts_as_removed() {
        let name = |name: &str| PodFullName::of(name, "shop");
        let mut pods = none();
        let left = [("a", "one"), ("b", "two"), ("c", "three"), ("f", "file")];
        let left = left.map(|(uid, of)| (PodUid::from(uid), name(of)));
        assert!(pods.is_first_list());
        pods.left_over(left.into());
        pods.listed(vec![Ok(pod("a", "one")), Ok(pod("d", "two"))], NOW);
        // The list has a known pod, so that it is of the cluster.
        assert_eq!(uids(&pods), ["a", "d"]);
        pods.retain_left_over(|uid| uid.as_str() != "f");
        assert_eq!(pods.doubts(), ["b".into(), "c".into()]);
        assert!(!pods.completeness().covers(Some("c")));
        let items = vec![Ok(pod("c", "three")), Ok(pod("e", "five"))];
        assert!(pods.confirmed(items, NOW).any_exists);
        assert_eq!(uids(&pods), ["a", "c", "d"], "the watch delivers others");
        assert_eq!(pods.doubts(), ["b".into()]);
        pods.deleted(&"b".into());
        assert_eq!(pods.completeness(), Completeness::Complete);
    }

    #[test]
    fn what_cannot_be_read_keeps_its_last_version_and_makes_nothing_else_gone() {
        let mut pods = none();
        pods.listed(vec![Ok(pod("a", "one"))], NOW);
        let refused = pods.listed(vec![unreadable("a", "one"), unreadable("n", "new")], NOW);
        assert_eq!(refused.len(), 2);
        assert_eq!(uids(&pods), ["a"]);
        assert!(!pods.has_doubts());
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
