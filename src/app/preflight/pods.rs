//! Compares the pods that should run here with those that the runtime has. Pure.

use super::forecast::{
    PodChecks, PodInputs, forecast, has_running_containers, of_pod, of_runtime, source_text,
};
use super::report::{Outcome, PodForecast};
use crate::model::{Completeness, Pod, PodExt, PodSource, PodStatus, PodUid};
use crate::pods::pod_config::{AdoptedUids, SourcesReady};
use crate::pods::sync_loop::uid_owner::{UidOwner, uid_owner};
use crate::runtime::kuberuntime::actions::RecordedFacts;
use crate::state::pod_state_store::PodOrigin;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The pods of one source.
#[derive(Clone, Debug)]
pub(super) struct SourceList {
    pub(super) source: PodSource,
    /// `None` if they are not known.
    pub(super) pods: Option<Vec<Arc<Pod>>>,
    pub(super) completeness: Completeness,
    /// Pods that the source has and this kubelet does not accept, with the reason.
    pub(super) refused: Vec<(PodUid, PodForecast)>,
}

impl SourceList {
    /// A source whose pods are not known.
    pub(super) fn unread(source: PodSource) -> Self {
        Self { source, pods: None, completeness: Completeness::Partial, refused: Vec::new() }
    }
}

/// What the runtime has.
#[derive(Clone, Debug, Default)]
pub(super) struct RuntimePods {
    pub(super) pods: BTreeMap<PodUid, Arc<PodStatus>>,
    /// Pods of which something could not be read, with the reason.
    pub(super) unread: BTreeMap<PodUid, String>,
}

/// A static pod and the UID that this kubelet generates for it.
#[derive(Clone, Debug)]
pub(super) struct StaticPod {
    pub(super) pod: Arc<Pod>,
    /// Whether it runs under the UID of another kubelet.
    pub(super) is_adopted: bool,
}

/// The static pods with the UIDs under which they run.
pub(super) fn adopt(
    source: PodSource,
    pods: Vec<Arc<Pod>>,
    runtime: &RuntimePods,
) -> Vec<StaticPod> {
    let mut uids = AdoptedUids::new(runtime.pods.values().cloned());
    let adopted = pods.into_iter().map(|pod| {
        let candidates = uids.candidates(source, &pod).iter();
        let statuses: Vec<_> =
            candidates.filter_map(|uid| runtime.pods.get(uid).cloned()).collect();
        let generated = pod.uid();
        let pod = uids.adopt(source, pod, &statuses);
        let is_adopted = pod.uid() != generated;
        StaticPod { pod, is_adopted }
    });
    adopted.collect()
}

/// What else is known of pods.
pub(super) trait PodLookup {
    /// What was recorded of a pod.
    fn facts(&self, uid: &PodUid) -> RecordedFacts;
    /// The recorded origin of a pod.
    fn origin(&self, uid: &PodUid) -> Option<&PodOrigin>;
    /// What other checks say about a desired pod.
    fn checks(&self, pod: &Pod, status: &PodStatus) -> PodChecks;
}

/// What would become of every pod.
pub(super) fn forecasts(
    sources: &[SourceList],
    runtime: &RuntimePods,
    lookup: &dyn PodLookup,
) -> Vec<PodForecast> {
    let none = PodStatus::default();
    let removed = Removed::new(sources, lookup);
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut restarted = HashSet::new();
    for pod in sources.iter().flat_map(|list| list.pods.iter().flatten()) {
        let uid = pod.uid();
        seen.insert(uid.clone());
        if let Some(why) = runtime.unread.get(&uid) {
            found.push(PodForecast { reasons: vec![why.clone()], ..of_pod(pod) });
            continue;
        }
        let status = runtime.pods.get(&uid).map_or(&none, |status| &**status);
        let digest = lookup.origin(&uid).and_then(|origin| origin.manifest_digest.as_deref());
        let owner = uid_owner(pod, status, true, digest);
        let replaced = match owner {
            UidOwner::Other if status.may_be_running() => Some(status),
            _ if pod.is_static() && !has_running_containers(status) => {
                predecessor(pod, runtime, &removed)
            }
            _ => None,
        };
        if let Some(other) = replaced {
            restarted.insert(other.uid.clone());
            let reason = format!(
                "the manifest is another one than that of the pod that runs (UID {})",
                other.uid
            );
            found.push(PodForecast {
                outcome: Outcome::Restarted,
                reasons: vec![reason],
                ..of_pod(pod)
            });
            continue;
        }
        if owner == UidOwner::ApiPod {
            let reason = format!("a pod of the API server has its UID, {uid}");
            found.push(PodForecast {
                outcome: Outcome::Refused,
                reasons: vec![reason],
                ..of_pod(pod)
            });
            continue;
        }
        let inputs = PodInputs {
            pod,
            // What is left of another pod is removed before the start.
            status: if owner == UidOwner::Other { &none } else { status },
            facts: &lookup.facts(&uid),
        };
        found.push(forecast(inputs, lookup.checks(pod, status)));
    }
    for (uid, refused) in sources.iter().flat_map(|list| &list.refused) {
        seen.insert(uid.clone());
        found.push(refused.clone());
    }
    let others = runtime.pods.values();
    let others =
        others.filter(|status| !seen.contains(&status.uid) && !restarted.contains(&status.uid));
    found.extend(others.filter_map(|status| not_desired(status, sources, &removed)));
    found
}

/// Which pods of the runtime have been removed from their sources.
struct Removed<'a> {
    ready: SourcesReady,
    lookup: &'a dyn PodLookup,
}

impl<'a> Removed<'a> {
    fn new(sources: &[SourceList], lookup: &'a dyn PodLookup) -> Self {
        let ready = SourcesReady::new(sources.iter().map(|list| list.source).collect());
        for list in sources.iter().filter(|list| list.pods.is_some()) {
            ready.mark_seen(list.source, list.completeness.clone());
        }
        Self { ready, lookup }
    }

    fn has(&self, pod: &PodStatus) -> bool {
        let source = pod.source();
        let origin = self.lookup.origin(&pod.uid);
        let origin = origin.filter(|origin| origin.source() == Some(source));
        let manifest = origin.and_then(|origin| origin.manifest.as_deref());
        self.ready.is_removed(source, &pod.uid, manifest)
    }
}

/// The pod that runs under the name of a static pod, with another UID, and is stopped before that starts.
fn predecessor<'a>(
    pod: &Pod,
    runtime: &'a RuntimePods,
    removed: &Removed<'_>,
) -> Option<&'a PodStatus> {
    let mut running = runtime
        .pods
        .values()
        .filter(|status| status.source() != PodSource::Api && has_running_containers(status));
    let found = running.find(|status| {
        &*status.name == pod.name()
            && &*status.namespace == pod.namespace()
            && status.uid != pod.uid()
            && (PodSource::of(pod) == Some(status.source()) || removed.has(status))
    });
    found.map(|status| &**status)
}

/// What would become of a pod of the runtime that no source has; `None` if nothing of it runs.
fn not_desired(
    status: &PodStatus,
    sources: &[SourceList],
    removed: &Removed<'_>,
) -> Option<PodForecast> {
    if !has_running_containers(status) {
        return None;
    }
    let source = status.source();
    let list = sources.iter().find(|list| list.source == source);
    let (outcome, reason) = match list {
        _ if removed.has(status) => match (list, source) {
            (None, _) => {
                (Outcome::Stopped, format!("the configuration has no source of its kind: {source}"))
            }
            (Some(_), PodSource::Api) => {
                (Outcome::Stopped, "the API server does not have it".to_owned())
            }
            (Some(_), _) => (Outcome::Stopped, "no manifest has it".to_owned()),
        },
        None if source == PodSource::Api => (
            Outcome::CannotStartAgain,
            "it runs on, and without a kubeconfig nothing starts it again".to_owned(),
        ),
        None => (Outcome::Unknown, "not all manifests can be used".to_owned()),
        Some(list) if list.pods.is_none() => {
            (Outcome::Unknown, format!("{} could not be read", source_text(source)))
        }
        Some(_) => (
            Outcome::CannotStartAgain,
            "it runs on, but its manifest may be one of those that cannot be used".to_owned(),
        ),
    };
    Some(of_runtime(status, outcome, &reason))
}

/// What a return to the other kubelet would cost.
pub(super) fn way_back(pods: &[StaticPod], runtime: &RuntimePods) -> Vec<String> {
    let runs = |pod: &StaticPod| {
        let status = runtime.pods.get(&pod.pod.uid());
        status.is_some_and(|status| has_running_containers(status))
    };
    let names = |adopted: bool| {
        let of = pods.iter().filter(|pod| runs(pod) && pod.is_adopted == adopted);
        let names: Vec<_> = of.map(|pod| pod.pod.log_name().to_string()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let mut lines = Vec::new();
    if let Some(own) = names(false) {
        lines.push(format!(
            "static pods that this kubelet has started restart, because the Go kubelet gives them another UID: {own}"
        ));
    }
    if let Some(adopted) = names(true) {
        lines.push(format!(
            "static pods keep running as long as they do not restart here; one that does, and its API server or etcd with it, restarts once more: {adopted}"
        ));
    }
    lines.push("counters of /metrics begin again, and open exec, attach, port-forward and log connections end, both ways".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        ContainerState, ContainerStatus, SandboxStatus, container_hash, fixture, keys,
    };
    use serde_json::json;
    use std::collections::BTreeSet;

    const GO: &str = "0123456789abcdef0123456789abcdef";
    const OWN: &str = "ffffffffffffffffffffffffffffffff";

    fn pod(uid: &str, source: &str, image: &str) -> Arc<Pod> {
        let spec = json!({"containers": [{"name": "c", "image": image}]});
        let pod = fixture::pod(&format!("n/web/{uid}"), spec);
        Arc::new(fixture::annotated(pod, [(keys::CONFIG_SOURCE, source)]))
    }

    fn status(uid: &str, source: PodSource, image: &str, state: ContainerState) -> Arc<PodStatus> {
        let spec = pod(uid, "file", image);
        Arc::new(PodStatus {
            uid: uid.into(),
            name: "web".into(),
            namespace: "n".into(),
            sandboxes: vec![SandboxStatus {
                id: "s".into(),
                ready: true,
                source: Some(source),
                ..SandboxStatus::default()
            }],
            containers: vec![ContainerStatus {
                name: "c".into(),
                sandbox: "s".into(),
                state,
                image: image.into(),
                hash: container_hash(&spec.containers()[0]).into(),
                ..ContainerStatus::default()
            }],
        })
    }

    fn runtime(statuses: impl IntoIterator<Item = Arc<PodStatus>>) -> RuntimePods {
        let pods = statuses.into_iter().map(|status| (status.uid.clone(), status));
        RuntimePods { pods: pods.collect(), unread: BTreeMap::new() }
    }

    fn list(
        source: PodSource,
        pods: Option<Vec<Arc<Pod>>>,
        completeness: Completeness,
    ) -> SourceList {
        SourceList { source, pods, completeness, refused: Vec::new() }
    }

    /// Nothing else is known.
    struct Nothing;

    impl PodLookup for Nothing {
        fn facts(&self, _: &PodUid) -> RecordedFacts {
            RecordedFacts::default()
        }

        fn origin(&self, _: &PodUid) -> Option<&PodOrigin> {
            None
        }

        fn checks(&self, _: &Pod, _: &PodStatus) -> PodChecks {
            PodChecks::default()
        }
    }

    fn outcomes(sources: &[SourceList], runtime: &RuntimePods) -> Vec<(Outcome, String)> {
        let found = forecasts(sources, runtime, &Nothing);
        let found = found.into_iter();
        found.map(|pod| (pod.outcome, pod.reasons.join(", "))).collect()
    }

    #[test]
    fn a_static_pod_is_kept_under_the_uid_of_the_other_kubelet_unless_its_manifest_changed() {
        use ContainerState::Running;
        let runtime = runtime([status(GO, PodSource::File, "a", Running)]);
        for (image, adopted, outcome) in
            [("a", true, Outcome::Kept), ("b", false, Outcome::Restarted)]
        {
            let pods = adopt(PodSource::File, vec![pod(OWN, "file", image)], &runtime);
            assert_eq!(pods[0].is_adopted, adopted);
            let desired = pods.iter().map(|one| one.pod.clone()).collect();
            let sources = [list(PodSource::File, Some(desired), Completeness::Complete)];
            let found = outcomes(&sources, &runtime);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].0, outcome);
            let back = way_back(&pods, &runtime).join("\n");
            assert_eq!(back.contains("n/web"), adopted, "{back}");
        }
        // One that this kubelet has started.
        let runtime = self::runtime([status(OWN, PodSource::File, "a", Running)]);
        let pods = adopt(PodSource::File, vec![pod(OWN, "file", "a")], &runtime);
        assert!(!pods[0].is_adopted);
        assert!(way_back(&pods, &runtime)[0].contains("another UID: n/web"));
    }

    #[test]
    fn a_pod_that_this_kubelet_started_from_another_manifest_is_restarted() {
        for (digest, state, outcome) in [
            ("v1:new", ContainerState::Running, Outcome::Kept),
            ("v1:old", ContainerState::Running, Outcome::Restarted),
            ("v1:old", ContainerState::Exited, Outcome::Starts),
        ] {
            let mut desired = Pod::clone(&pod(OWN, "file", "a"));
            let annotations = desired.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::MANIFEST_DIGEST.to_owned(), "v1:new".to_owned());
            let mut status = PodStatus::clone(&status(OWN, PodSource::File, "a", state));
            status.sandboxes[0].manifest_digest = Some(digest.into());
            status.sandboxes[0].ready = state == ContainerState::Running;
            let runtime = runtime([Arc::new(status)]);
            let pods = Some(vec![Arc::new(desired)]);
            let sources = [list(PodSource::File, pods, Completeness::Complete)];
            let found = outcomes(&sources, &runtime);
            assert_eq!(found[0].0, outcome, "{digest}: {found:?}");
        }
    }

    #[test]
    fn what_runs_and_is_not_desired_is_stopped_only_if_its_source_is_known() {
        use ContainerState::{Exited, Running};
        use PodSource::{Api, File};
        let all = || Some(Vec::new());
        for (source, state, sources, expected) in [
            (Api, Running, vec![list(Api, all(), Completeness::Complete)], Some(Outcome::Stopped)),
            (Api, Running, vec![list(Api, None, Completeness::Partial)], Some(Outcome::Unknown)),
            (Api, Exited, vec![list(Api, all(), Completeness::Complete)], None),
            (Api, Running, vec![], Some(Outcome::CannotStartAgain)),
            (File, Running, vec![list(Api, all(), Completeness::Complete)], Some(Outcome::Stopped)),
            (File, Running, vec![list(Api, None, Completeness::Partial)], Some(Outcome::Unknown)),
            (
                File,
                Running,
                vec![list(File, all(), Completeness::Complete)],
                Some(Outcome::Stopped),
            ),
            (
                File,
                Running,
                vec![list(File, all(), BTreeSet::from(["/m/bad".to_owned()]).into())],
                Some(Outcome::CannotStartAgain),
            ),
        ] {
            let runtime = runtime([status(GO, source, "a", state)]);
            let found = outcomes(&sources, &runtime);
            assert_eq!(found.first().map(|pod| pod.0), expected, "{found:?}");
        }
    }

    #[test]
    fn a_pod_that_cannot_be_read_or_is_refused_is_said_once() {
        let mut runtime = runtime([status("u", PodSource::Api, "a", ContainerState::Running)]);
        runtime.unread = [("u".into(), "no response".to_owned())].into();
        let mut api =
            list(PodSource::Api, Some(vec![pod("u", "api", "a")]), Completeness::Complete);
        let found = outcomes(std::slice::from_ref(&api), &runtime);
        assert_eq!(found, [(Outcome::Unknown, "no response".to_owned())]);
        let refused = PodForecast {
            outcome: Outcome::Refused,
            reasons: vec!["no".to_owned()],
            ..of_pod(&pod("u", "api", "a"))
        };
        (api.pods, api.refused) = (Some(Vec::new()), vec![("u".into(), refused)]);
        assert_eq!(outcomes(&[api], &runtime), [(Outcome::Refused, "no".to_owned())]);
    }
}
