//! Adoption of the UIDs under which another kubelet runs static pods. Pure.
//!
//! A kubelet generates the UID of a static pod from its manifest, and the Go kubelet does it differently from this one.
//! A manifest whose pod already runs under another UID adopts that UID, so that neither the replacement of the Go kubelet
//! nor a later restart of this one restarts static pods.

use crate::model::{
    Pod, PodExt, PodFullName, PodSource, PodStatus, PodUid, container_hash, is_other_manifest, keys,
};
use k8s_openapi::api::core::v1::Container;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of hexadecimal digits of a generated UID.
const GENERATED_UID_DIGITS: usize = 32;

/// The UIDs that may be adopted, and those that were.
#[derive(Debug, Default)]
pub(super) struct AdoptedUids {
    /// Running pods whose UID no manifest has adopted yet.
    candidates: HashMap<PodFullName, Arc<PodStatus>>,
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

/// Whether a kubelet started this pod from a manifest, and it runs.
fn is_running_static_pod(status: &PodStatus) -> bool {
    status.source() != PodSource::Api
        && is_generated(&status.uid)
        && status.newest_sandbox().is_some_and(|sandbox| sandbox.ready)
}

/// Whether a pod of the runtime was started by this kubelet implementation, of any version.
pub(super) fn started_by_this_implementation(status: &PodStatus) -> bool {
    let newest = status.newest_sandbox();
    newest.is_some_and(|sandbox| sandbox.manifest_digest.is_some())
}

impl AdoptedUids {
    /// The candidates for adoption, from the runtime statuses at the start of the kubelet.
    pub(super) fn new(statuses: impl IntoIterator<Item = Arc<PodStatus>>) -> Self {
        let mut candidates: HashMap<_, Arc<PodStatus>> = HashMap::new();
        for status in statuses {
            let name = PodFullName::of(&status.name, &status.namespace);
            let created = |status: &PodStatus| status.newest_sandbox().map(|one| one.created_at);
            let newer = candidates
                .get(&name)
                .is_none_or(|other| created(other) < created(&status));
            if is_running_static_pod(&status) && newer {
                candidates.insert(name, status);
            }
        }
        Self {
            candidates,
            adopted: HashMap::new(),
        }
    }

    /// The pod of a manifest, with the UID of the running pod that was started from this manifest.
    pub(super) fn adopt(&mut self, source: PodSource, pod: Arc<Pod>) -> Arc<Pod> {
        if self.adopted.is_empty() && self.candidates.is_empty() {
            return pod;
        }
        if let Some(known) = self.adopted.get_mut(&pod.uid()) {
            if !Arc::ptr_eq(&known.generated, &pod) {
                known.adopted = with_uid(&pod, &known.adopted.uid());
                known.generated = pod;
            }
            return known.adopted.clone();
        }
        if self.candidates.is_empty() || !is_generated(&pod.uid()) {
            return pod;
        }
        match self.candidates.remove(&pod.full_name()) {
            Some(status)
                if status.source() == source
                    && status.uid != pod.uid()
                    && matches_manifest(&status, &pod) =>
            {
                let adopted = with_uid(&pod, &status.uid);
                let entry = AdoptedPod {
                    generated: pod.clone(),
                    adopted: adopted.clone(),
                };
                self.adopted.insert(pod.uid(), entry);
                adopted
            }
            _ => pod,
        }
    }

    /// The list of the source is complete: a manifest that is added later is a new pod and adopts nothing.
    pub(super) fn on_source_complete(&mut self, source: PodSource) {
        self.candidates
            .retain(|_, status| status.source() != source);
    }
}

/// Whether a kubelet generated this UID; those of API servers are RFC 4122 UUIDs with dashes.
pub(super) fn is_generated(uid: &PodUid) -> bool {
    uid.as_str().len() == GENERATED_UID_DIGITS
        && uid.as_str().bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a pod was started from this manifest, as far as is known. This kubelet annotates every sandbox with the digest
/// of the manifest, also one that it makes for a pod with an adopted UID; others do not.
fn matches_manifest(status: &PodStatus, pod: &Pod) -> bool {
    let sandbox = status.newest_sandbox();
    let digest = sandbox.and_then(|sandbox| sandbox.manifest_digest.as_deref());
    !is_other_manifest(digest, pod.annotation(keys::MANIFEST_DIGEST)) && matches_spec(status, pod)
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
    use crate::model::{ContainerStatus, SandboxStatus};
    use k8s_openapi::api::core::v1::PodSpec;

    const GO: &str = "0123456789abcdef0123456789abcdef";
    const OWN: &str = "ffffffffffffffffffffffffffffffff";

    fn container(image: &str) -> Container {
        Container {
            name: "c".into(),
            image: Some(image.into()),
            ..Container::default()
        }
    }

    fn pod(uid: &str, name: &str, image: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some(uid.into());
        let digest = (keys::MANIFEST_DIGEST.to_owned(), format!("v1:{image}"));
        pod.metadata.annotations = Some([digest].into());
        pod.spec = Some(PodSpec {
            containers: vec![container(image)],
            ..PodSpec::default()
        });
        Arc::new(pod)
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
            (
                "user's UID",
                status(GO, same),
                pod(given, "web", "image"),
                given,
            ),
            (
                "was a user's",
                status(given, same),
                pod(OWN, "web", "image"),
                OWN,
            ),
            ("dead", status(GO, dead), pod(OWN, "web", "image"), OWN),
            ("ours", status(GO, own), pod(OWN, "web", "image"), OWN),
            (
                "with a new sandbox",
                status(GO, again),
                pod(OWN, "web", "image"),
                GO,
            ),
            ("the API's", status(GO, api), pod(OWN, "web", "image"), OWN),
            ("of a URL", status(GO, url), pod(OWN, "web", "image"), OWN),
        ] {
            let mut adopted_uids = AdoptedUids::new([running]);
            let identified = adopted_uids.adopt(PodSource::File, manifest);
            assert_eq!(identified.uid(), expected.into(), "{what}");
        }
    }

    #[test]
    fn it_keeps_that_uid_while_the_manifest_is_as_it_was() {
        let mut adopted_uids = AdoptedUids::new([status(GO, |_| {})]);
        let written = pod(OWN, "web", "image");
        let first = adopted_uids.adopt(PodSource::File, written.clone());
        assert_eq!(first.annotation(keys::CONFIG_HASH), Some(GO));
        assert!(Arc::ptr_eq(
            &first,
            &adopted_uids.adopt(PodSource::File, written)
        ));
        let edited = pod("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "web", "image");
        let edited_uid = edited.uid();
        assert_eq!(
            adopted_uids.adopt(PodSource::File, edited).uid(),
            edited_uid
        );
        let back = adopted_uids.adopt(PodSource::File, pod(OWN, "web", "image"));
        assert_eq!(back.uid(), GO.into());
    }

    #[test]
    fn a_manifest_that_comes_after_the_first_list_is_a_new_pod() {
        let mut adopted_uids = AdoptedUids::new([status(GO, |_| {})]);
        adopted_uids.on_source_complete(PodSource::Http);
        adopted_uids.on_source_complete(PodSource::File);
        let late = adopted_uids.adopt(PodSource::File, pod(OWN, "web", "image"));
        assert_eq!(late.uid(), OWN.into());
    }

    #[test]
    fn of_two_pods_of_one_name_the_newest_counts() {
        let old = status(GO, |one| one.created_at = 1);
        let new = status(OWN, |one| one.created_at = 2);
        for order in [[old.clone(), new.clone()], [new, old]] {
            let mut adopted_uids = AdoptedUids::new(order);
            let manifest = pod("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "web", "image");
            let identified = adopted_uids.adopt(PodSource::File, manifest);
            assert_eq!(identified.uid(), OWN.into());
        }
    }
}
