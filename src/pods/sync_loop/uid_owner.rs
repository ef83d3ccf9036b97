//! Which pod has, in the runtime, the UID of a pod that is about to start. Pure.

use crate::model::{Pod, PodExt, PodSource, PodStatus, is_other_manifest, keys};

/// The pod in the runtime with the UID of a desired pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UidOwner {
    /// None, or the pod itself.
    Itself,
    /// Another static pod: one of another name, or one made from an earlier version of the manifest. It is stopped and
    /// removed before the desired pod starts.
    Other,
    /// A pod of the API server, which is left alone.
    ApiPod,
    /// Too little of the runtime status is known to decide.
    Unknown,
}

/// Compares a desired pod with the runtime status of its UID. `settled` is whether that status is complete.
/// `recorded_digest` is the digest of the manifest in the pod state store, used if the sandbox has none.
pub fn uid_owner(
    pod: &Pod,
    status: &PodStatus,
    settled: bool,
    recorded_digest: Option<&str>,
) -> UidOwner {
    // UIDs of the API server are unique, and it edits pods in place.
    if !pod.is_static() {
        return UidOwner::Itself;
    }
    let newest = status.newest_sandbox();
    if newest.is_none() && !settled {
        return UidOwner::Unknown;
    }
    let has_name = *status.name == *pod.name() && *status.namespace == *pod.namespace();
    let renamed = !status.is_empty() && !has_name;
    let source = newest.and_then(|sandbox| sandbox.source);
    if source == Some(PodSource::Api) || (renamed && status.source() == PodSource::Api) {
        return UidOwner::ApiPod;
    }
    let made_from = newest.and_then(|sandbox| sandbox.manifest_digest.as_deref());
    let edited =
        is_other_manifest(made_from.or(recorded_digest), pod.annotation(keys::MANIFEST_DIGEST));
    match (renamed || edited, settled) {
        (false, _) => UidOwner::Itself,
        (true, true) => UidOwner::Other,
        (true, false) => UidOwner::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerStatus, SandboxStatus, fixture};
    use UidOwner::{ApiPod, Itself, Other, Unknown};

    fn pod(source: &str, digest: &str) -> Pod {
        let annotations = [(keys::CONFIG_SOURCE, source), (keys::MANIFEST_DIGEST, digest)];
        fixture::annotated(fixture::pod("shop/web/", None), annotations)
    }

    fn status(name: &str, sandboxes: &[(Option<PodSource>, Option<&str>)]) -> PodStatus {
        let sandbox = |(source, digest): &(Option<PodSource>, Option<&str>)| SandboxStatus {
            source: *source,
            manifest_digest: digest.map(Into::into),
            ..SandboxStatus::default()
        };
        PodStatus {
            name: name.into(),
            namespace: "shop".into(),
            sandboxes: sandboxes.iter().map(sandbox).collect(),
            containers: vec![ContainerStatus::default()],
            ..PodStatus::default()
        }
    }

    #[test]
    fn another_pod_under_a_uid_is_recognised() {
        const FILE: Option<PodSource> = Some(PodSource::File);
        const API: Option<PodSource> = Some(PodSource::Api);
        let ours = pod("file", "v1:new");
        let nothing = PodStatus::default();
        let (new, old) = (Some("v1:new"), Some("v1:old"));
        for (what, status, settled, recorded_digest, expected) in [
            ("nothing", nothing.clone(), true, None, Itself),
            ("nothing but records", nothing.clone(), true, old, Other),
            ("its own records", nothing.clone(), true, new, Itself),
            ("nothing read yet", nothing, false, None, Unknown),
            ("no sandbox", status("web", &[]), true, None, Itself),
            ("no sandbox yet", status("web", &[]), false, None, Unknown),
            ("itself", status("web", &[(FILE, new)]), true, None, Itself),
            ("not all read", status("web", &[(FILE, new)]), false, None, Itself),
            ("edited", status("web", &[(FILE, old)]), true, None, Other),
            ("edited, not all read", status("web", &[(FILE, old)]), false, None, Unknown),
            ("the newest counts", status("web", &[(FILE, new), (FILE, old)]), true, old, Itself),
            ("adopted", status("web", &[(FILE, None)]), true, None, Itself),
            ("adopted, then edited", status("web", &[(FILE, None)]), true, old, Other),
            ("another version", status("web", &[(FILE, Some("v0:old"))]), true, None, Itself),
            ("unmarked", status("web", &[(None, None)]), true, None, Itself),
            ("renamed", status("other", &[(FILE, new)]), true, None, Other),
            ("renamed, not all read", status("other", &[(FILE, new)]), false, None, Unknown),
            ("of the API", status("other", &[(API, None)]), true, None, ApiPod),
            ("of the API, not all read", status("other", &[(API, None)]), false, None, ApiPod),
            ("of the API, same name", status("web", &[(API, None)]), true, None, ApiPod),
            ("unmarked, other name", status("other", &[(None, None)]), true, None, ApiPod),
            ("no sandbox, other name", status("other", &[]), true, None, ApiPod),
        ] {
            let found = uid_owner(&ours, &status, settled, recorded_digest);
            assert_eq!(found, expected, "{what}");
        }
        let edited = status("web", &[(API, old)]);
        let of_api = uid_owner(&pod("api", "v1:new"), &edited, true, old);
        assert_eq!(of_api, Itself, "annotations of API pods are their users' own");
    }
}
