//! Adoption of the UIDs under which another kubelet runs static pods. Pure.
//!
//! A kubelet generates the UID of a static pod from its manifest, and the Go kubelet does it differently from this one.
//! A manifest whose pod already runs under another UID adopts that UID, so that neither the replacement of the Go kubelet
//! nor a later restart of this one restarts static pods.

use crate::model::{
    Pod, PodExt, PodFullName, PodSource, PodStatus, PodUid, container_hash, keys, same_manifest,
};
use k8s_openapi::api::core::v1::Container;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Number of hexadecimal digits of a generated UID.
const GENERATED_UID_DIGITS: usize = 32;

/// The UIDs that may be adopted, and those that were.
#[derive(Debug, Default)]
pub struct AdoptedUids {
    /// The generated UIDs under which pods of a name are in the runtime, while no manifest of the name was decided.
    candidates: HashMap<PodFullName, Vec<PodUid>>,
    /// Sources whose list was complete: a manifest that is added later is a new pod and adopts nothing.
    complete: HashSet<PodSource>,
    /// By the UID that this kubelet generates.
    adopted: HashMap<PodUid, AdoptedPod>,
}

#[derive(Debug)]
struct AdoptedPod {
    /// As the source has it.
    generated: Arc<Pod>,
    /// The same with the adopted UID.
    adopted: Arc<Pod>,
}

impl AdoptedUids {
    /// The candidates for adoption among the pods of the runtime at the start of the kubelet, read or not.
    pub fn new(pods: impl IntoIterator<Item = Arc<PodStatus>>) -> Self {
        let mut candidates: HashMap<_, Vec<PodUid>> = HashMap::new();
        for status in pods.into_iter().filter(|status| is_generated(&status.uid)) {
            let name = PodFullName::of(&status.name, &status.namespace);
            candidates.entry(name).or_default().push(status.uid.clone());
        }
        Self { candidates, ..Self::default() }
    }

    /// The pods of the runtime whose statuses decide which UID the pod of a manifest gets. Empty if nothing has to be
    /// read for that: most pods run under the UID that this kubelet generates, and must not wait for their statuses.
    pub fn candidates(&self, source: PodSource, pod: &Pod) -> &[PodUid] {
        let uid = pod.uid();
        if self.complete.contains(&source) || self.adopted.contains_key(&uid) || !is_generated(&uid)
        {
            return &[];
        }
        match self.candidates.get(&pod.full_name()) {
            Some(candidates) if candidates.iter().any(|candidate| *candidate != uid) => candidates,
            _ => &[],
        }
    }

    /// The pod of a manifest, with the UID of the running pod that was started from this manifest. `statuses` are those
    /// of its [candidates](Self::candidates).
    pub fn adopt(
        &mut self,
        source: PodSource,
        pod: Arc<Pod>,
        statuses: &[Arc<PodStatus>],
    ) -> Arc<Pod> {
        if let Some(known) = self.adopted.get_mut(&pod.uid()) {
            if !Arc::ptr_eq(&known.generated, &pod) {
                known.adopted = with_uid(&pod, &known.adopted.uid());
                known.generated = pod;
            }
            return known.adopted.clone();
        }
        if !is_generated(&pod.uid()) {
            return pod;
        }
        self.candidates.remove(&pod.full_name());
        let running = statuses.iter().filter(|status| is_running_static_pod(status));
        // Of two pods of a name, the newer one is the one that an earlier kubelet ran last.
        match running.max_by_key(|status| status.newest_sandbox().map(|one| one.created_at)) {
            Some(status)
                if status.source() == source
                    && status.uid != pod.uid()
                    && was_started_from(status, &pod) =>
            {
                let adopted = with_uid(&pod, &status.uid);
                let entry = AdoptedPod { generated: pod.clone(), adopted: adopted.clone() };
                self.adopted.insert(pod.uid(), entry);
                adopted
            }
            _ => pod,
        }
    }

    /// The list of the source is complete: a manifest that is added later is a new pod and adopts nothing.
    pub(super) fn on_source_complete(&mut self, source: PodSource) {
        self.complete.insert(source);
    }
}

/// Whether a kubelet started this pod from a manifest, and it runs.
fn is_running_static_pod(status: &PodStatus) -> bool {
    status.source() != PodSource::Api
        && status.newest_sandbox().is_some_and(|sandbox| sandbox.ready)
}

/// Whether the sandbox of a pod, once it was read, tells whether the pod was started from this manifest. If not, the
/// containers have to be read as well.
pub(super) fn sandbox_decides(status: &PodStatus, pod: &Pod) -> bool {
    manifest_of_sandbox_is(status, pod).is_some()
}

/// Whether a kubelet generated this UID; those of API servers are RFC 4122 UUIDs with dashes.
pub(super) fn is_generated(uid: &PodUid) -> bool {
    uid.as_str().len() == GENERATED_UID_DIGITS
        && uid.as_str().bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a pod was started from this manifest. This kubelet annotates every sandbox with the digest of the manifest,
/// also one that it makes for a pod with an adopted UID. Other kubelets do not, and other versions may have another digest:
/// then the containers are compared.
fn was_started_from(status: &PodStatus, pod: &Pod) -> bool {
    manifest_of_sandbox_is(status, pod).unwrap_or_else(|| matches_spec(status, pod))
}

/// Whether the newest sandbox was made from this manifest; `None` if its digest cannot be compared.
fn manifest_of_sandbox_is(status: &PodStatus, pod: &Pod) -> Option<bool> {
    let digest = status.newest_sandbox()?.manifest_digest.as_deref();
    same_manifest(digest, pod.annotation(keys::MANIFEST_DIGEST))
}

/// Whether the newest instance of every container has the hash of a container of this pod, and there is at least one.
fn matches_spec(status: &PodStatus, pod: &Pod) -> bool {
    let containers = pod.init_containers().iter().chain(pod.containers());
    let expected: HashMap<&str, &Container> =
        containers.map(|one| (one.name.as_str(), one)).collect();
    let mut seen: Vec<&str> = Vec::new();
    for instance in &status.containers {
        if seen.contains(&&*instance.name) {
            continue;
        }
        seen.push(&instance.name);
        let same = |container: &&Container| *container_hash(container) == *instance.hash;
        if !expected.get(&*instance.name).is_some_and(same) {
            return false;
        }
    }
    !seen.is_empty()
}

fn with_uid(pod: &Pod, uid: &PodUid) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.uid = Some(uid.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_HASH.into(), uid.to_string());
    Arc::new(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerStatus, SandboxStatus, fixture};

    const GO: &str = "0123456789abcdef0123456789abcdef";
    const OWN: &str = "ffffffffffffffffffffffffffffffff";

    fn container(image: &str) -> Container {
        Container { name: "c".into(), image: Some(image.into()), ..Container::default() }
    }

    fn pod(uid: &str, name: &str, image: &str) -> Arc<Pod> {
        let spec = serde_json::json!({"containers": [container(image)]});
        let pod = fixture::pod(&format!("ns/{name}/{uid}"), spec);
        let digest = format!("v1:{image}");
        Arc::new(fixture::annotated(pod, [(keys::MANIFEST_DIGEST, digest.as_str())]))
    }

    fn status(uid: &str, change: impl Fn(&mut SandboxStatus)) -> Arc<PodStatus> {
        let mut sandbox = SandboxStatus {
            ready: true,
            source: Some(PodSource::File),
            ..SandboxStatus::default()
        };
        change(&mut sandbox);
        let instance = |image| ContainerStatus {
            name: "c".into(),
            hash: container_hash(&container(image)).into(),
            ..ContainerStatus::default()
        };
        Arc::new(PodStatus {
            uid: uid.into(),
            name: "web".into(),
            namespace: "ns".into(),
            sandboxes: vec![sandbox],
            containers: vec![instance("image"), instance("older")],
        })
    }

    /// A runtime of which everything was read.
    struct Runtime {
        statuses: Vec<Arc<PodStatus>>,
        adopted_uids: AdoptedUids,
    }

    impl Runtime {
        fn of(statuses: impl IntoIterator<Item = Arc<PodStatus>>) -> Self {
            let statuses: Vec<_> = statuses.into_iter().collect();
            let adopted_uids = AdoptedUids::new(statuses.clone());
            Self { statuses, adopted_uids }
        }

        fn adopt(&mut self, pod: Arc<Pod>) -> Arc<Pod> {
            let candidates = self.adopted_uids.candidates(PodSource::File, &pod);
            let statuses = self.statuses.iter();
            let statuses = statuses.filter(|status| candidates.contains(&status.uid));
            let statuses: Vec<_> = statuses.cloned().collect();
            self.adopted_uids.adopt(PodSource::File, pod, &statuses)
        }
    }

    #[test]
    fn only_a_pod_that_may_adopt_a_uid_needs_the_statuses_of_others() {
        let mut runtime = Runtime::of([status(GO, |_| {})]);
        let needs = |runtime: &Runtime, source, uid: &str, name: &str| {
            let pod = pod(uid, name, "image");
            !runtime.adopted_uids.candidates(source, &pod).is_empty()
        };
        use PodSource::{File, Http};
        let given = "3b7c1f5e-0000-0000-0000-000000000000";
        for (what, uid, name, expected) in [
            ("another UID", OWN, "web", true),
            ("its own UID", GO, "web", false),
            ("another name", OWN, "db", false),
            ("a UID from its user", given, "web", false),
        ] {
            assert_eq!(needs(&runtime, File, uid, name), expected, "{what}");
        }
        runtime.adopted_uids.on_source_complete(Http);
        assert!(!needs(&runtime, Http, OWN, "web"), "it is a new pod");
        runtime.adopt(pod(OWN, "web", "image"));
        assert!(!needs(&runtime, File, OWN, "web"), "it is decided");
    }

    #[test]
    fn the_sandbox_decides_alone_if_it_has_the_digest_of_a_manifest() {
        let unread = |digest: Option<&'static str>| {
            let own = status(GO, |one| one.manifest_digest = digest.map(Into::into));
            let mut unread = PodStatus::clone(&own);
            unread.containers.clear();
            Arc::new(unread)
        };
        for (digest, decides, expected) in [
            (Some("v1:image"), true, GO),
            (Some("v1:other"), true, OWN),
            (Some("v0:image"), false, OWN),
            (None, false, OWN),
        ] {
            let (unread, manifest) = (unread(digest), pod(OWN, "web", "image"));
            assert_eq!(sandbox_decides(&unread, &manifest), decides, "{digest:?}");
            let identified = Runtime::of([unread]).adopt(manifest);
            assert_eq!(identified.uid(), expected.into(), "{digest:?}");
        }
    }

    #[test]
    fn a_manifest_takes_over_the_uid_of_the_pod_that_another_kubelet_runs_from_it() {
        let same = |_: &mut SandboxStatus| {};
        let dead = |one: &mut SandboxStatus| one.ready = false;
        let own = |one: &mut SandboxStatus| one.manifest_digest = Some("v1:other".into());
        let again = |one: &mut SandboxStatus| one.manifest_digest = Some("v1:image".into());
        let api = |one: &mut SandboxStatus| one.source = Some(PodSource::Api);
        let url = |one: &mut SandboxStatus| one.source = Some(PodSource::Http);
        let given = "3b7c1f5e-0000-0000-0000-000000000000";
        for (what, running, manifest, expected) in [
            ("the same", status(GO, same), pod(OWN, "web", "image"), GO),
            ("edited", status(GO, same), pod(OWN, "web", "older"), OWN),
            ("other name", status(GO, same), pod(OWN, "db", "image"), OWN),
            ("user's UID", status(GO, same), pod(given, "web", "image"), given),
            ("was a user's", status(given, same), pod(OWN, "web", "image"), OWN),
            ("dead", status(GO, dead), pod(OWN, "web", "image"), OWN),
            ("ours", status(GO, own), pod(OWN, "web", "image"), OWN),
            ("with a new sandbox", status(GO, again), pod(OWN, "web", "image"), GO),
            ("the API's", status(GO, api), pod(OWN, "web", "image"), OWN),
            ("of a URL", status(GO, url), pod(OWN, "web", "image"), OWN),
        ] {
            let identified = Runtime::of([running]).adopt(manifest);
            assert_eq!(identified.uid(), expected.into(), "{what}");
        }
    }

    #[test]
    fn it_keeps_that_uid_while_the_manifest_is_as_it_was() {
        let mut runtime = Runtime::of([status(GO, |_| {})]);
        let written = pod(OWN, "web", "image");
        let first = runtime.adopt(written.clone());
        assert_eq!(first.annotation(keys::CONFIG_HASH), Some(GO));
        assert!(Arc::ptr_eq(&first, &runtime.adopt(written)));
        let edited = pod("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "web", "image");
        let edited_uid = edited.uid();
        assert_eq!(runtime.adopt(edited).uid(), edited_uid);
        let back = runtime.adopt(pod(OWN, "web", "image"));
        assert_eq!(back.uid(), GO.into());
    }

    #[test]
    fn a_manifest_that_comes_after_the_first_list_is_a_new_pod() {
        let mut runtime = Runtime::of([status(GO, |_| {})]);
        runtime.adopted_uids.on_source_complete(PodSource::Http);
        runtime.adopted_uids.on_source_complete(PodSource::File);
        let late = runtime.adopt(pod(OWN, "web", "image"));
        assert_eq!(late.uid(), OWN.into());
    }

    #[test]
    fn of_two_pods_of_one_name_the_newest_counts() {
        let old = status(GO, |one| one.created_at = 1);
        let new = status(OWN, |one| one.created_at = 2);
        for order in [[old.clone(), new.clone()], [new, old]] {
            let manifest = pod("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "web", "image");
            let identified = Runtime::of(order).adopt(manifest);
            assert_eq!(identified.uid(), OWN.into());
        }
    }
}
