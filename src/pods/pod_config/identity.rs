//! Static pods that another kubelet runs under UIDs of its own. Pure.
//!
//! A kubelet makes the UID of a static pod from the manifest, and each kind of kubelet in its own way. A manifest
//! whose pod runs already takes over the UID that it runs under, so that a change of kubelets restarts nothing.

use crate::model::{Pod, PodExt, PodFullName, PodSource, PodStatus, PodUid, container_hash, keys};
use k8s_openapi::api::core::v1::Container;
use std::collections::HashMap;
use std::sync::Arc;

/// Hexadecimal digits of a UID that a kubelet made.
const GENERATED: usize = 32;

/// Which manifests stand for pods of another kubelet.
#[derive(Debug, Default)]
pub(super) struct Identities {
    /// Pods of another kubelet that no manifest has taken over yet.
    found: HashMap<PodFullName, Arc<PodStatus>>,
    /// By the UID that this kubelet makes: the pod as the source has it, and with the other UID.
    taken: HashMap<PodUid, (Arc<Pod>, Arc<Pod>)>,
}

/// Whether a pod of the runtime was started by another kubelet from a manifest, and runs: this kubelet notes the
/// digest of the manifest in each sandbox.
fn is_of_another_kubelet(status: &PodStatus) -> bool {
    status.source() != PodSource::Api
        && is_generated(&status.uid)
        && status
            .newest_sandbox()
            .is_some_and(|sandbox| sandbox.ready && sandbox.spec_digest.is_none())
}

/// Whether a pod of the runtime was started by a kubelet of this kind.
pub(super) fn is_own(status: &PodStatus) -> bool {
    let newest = status.newest_sandbox();
    newest.is_some_and(|sandbox| sandbox.spec_digest.is_some())
}

impl Identities {
    /// From the pods that run when the kubelet starts.
    pub(super) fn new(statuses: impl IntoIterator<Item = Arc<PodStatus>>) -> Self {
        let mut found: HashMap<_, Arc<PodStatus>> = HashMap::new();
        for status in statuses {
            let name = PodFullName::of(&status.name, &status.namespace);
            let created = |status: &PodStatus| status.newest_sandbox().map(|one| one.created_at);
            let newer = found
                .get(&name)
                .is_none_or(|other| created(other) < created(&status));
            if is_of_another_kubelet(&status) && newer {
                found.insert(name, status);
            }
        }
        Self {
            found,
            taken: HashMap::new(),
        }
    }

    /// The pod of a manifest, with the UID of the pod that runs in its place.
    pub(super) fn identify(&mut self, source: PodSource, pod: Arc<Pod>) -> Arc<Pod> {
        if let Some((written, taken)) = self.taken.get_mut(&pod.uid()) {
            if !Arc::ptr_eq(written, &pod) {
                *taken = with_uid(&pod, &taken.uid());
                *written = pod;
            }
            return taken.clone();
        }
        if self.found.is_empty() || !is_generated(&pod.uid()) {
            return pod;
        }
        match self.found.remove(&pod.full_name()) {
            Some(status) if status.source() == source && runs(&status, &pod) => {
                let taken = with_uid(&pod, &status.uid);
                let entry = (pod.clone(), taken.clone());
                self.taken.insert(pod.uid(), entry);
                taken
            }
            _ => pod,
        }
    }

    /// A manifest that comes later is a new pod.
    pub(super) fn delivered(&mut self, source: PodSource) {
        self.found.retain(|_, status| status.source() != source);
    }
}

/// Whether a kubelet made it, and not an API server or a user.
pub(super) fn is_generated(uid: &PodUid) -> bool {
    uid.as_str().len() == GENERATED && uid.as_str().bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether the newest instances of containers were made from the containers of this pod, at least one of them.
fn runs(status: &PodStatus, pod: &Pod) -> bool {
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
        let own = |one: &mut SandboxStatus| one.spec_digest = Some("v1:x".into());
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
            ("the API's", status(GO, api), pod(OWN, "web", "image"), OWN),
            ("of a URL", status(GO, url), pod(OWN, "web", "image"), OWN),
        ] {
            let mut identities = Identities::new([running]);
            let identified = identities.identify(PodSource::File, manifest);
            assert_eq!(identified.uid(), expected.into(), "{what}");
        }
    }

    #[test]
    fn it_keeps_that_uid_while_the_manifest_is_as_it_was() {
        let mut identities = Identities::new([status(GO, |_| {})]);
        let written = pod(OWN, "web", "image");
        let first = identities.identify(PodSource::File, written.clone());
        assert_eq!(first.annotation(keys::CONFIG_HASH), Some(GO));
        assert!(Arc::ptr_eq(
            &first,
            &identities.identify(PodSource::File, written)
        ));
        let edited = pod("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "web", "image");
        let edited_uid = edited.uid();
        assert_eq!(
            identities.identify(PodSource::File, edited).uid(),
            edited_uid
        );
        let back = identities.identify(PodSource::File, pod(OWN, "web", "image"));
        assert_eq!(back.uid(), GO.into());
    }

    #[test]
    fn a_manifest_that_comes_after_the_first_list_is_a_new_pod() {
        let mut identities = Identities::new([status(GO, |_| {})]);
        identities.delivered(PodSource::Http);
        identities.delivered(PodSource::File);
        let late = identities.identify(PodSource::File, pod(OWN, "web", "image"));
        assert_eq!(late.uid(), OWN.into());
    }

    #[test]
    fn of_two_pods_of_one_name_the_newest_counts() {
        let old = status(GO, |one| one.created_at = 1);
        let new = status(OWN, |one| one.created_at = 2);
        for order in [[old.clone(), new.clone()], [new, old]] {
            let mut identities = Identities::new(order);
            let manifest = pod("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "web", "image");
            let identified = identities.identify(PodSource::File, manifest);
            assert_eq!(identified.uid(), OWN.into());
        }
    }
}
