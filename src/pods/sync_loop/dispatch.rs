//! The steps for an update of a source (upstream's `HandlePodAdditions`, `HandlePodUpdates` and so on). Pure.

use crate::model::{Pod, PodExt, PodFullName, PodOp, PodSource, PodUid, PodUpdate};
use std::sync::Arc;

/// One thing to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum DispatchStep {
    /// Store the desired pod.
    Set(Arc<Pod>),
    /// Remove it from the store.
    Remove(PodUid),
    /// Store the mirror pod of a static pod. Mirror pods have no worker, because nothing in them changes what runs.
    SetMirror(Arc<Pod>),
    /// Remove it from the store.
    RemoveMirror(PodFullName, PodUid),
    /// Give the pod a worker.
    Create(Arc<Pod>),
    /// Update the pod's worker.
    Update(Arc<Pod>),
    /// Generate and publish the pod's status again: another client changed a part of it, such as a condition.
    Reconcile(Arc<Pod>),
    /// Kill the pod: its source no longer has it.
    Kill(Arc<Pod>),
}

/// How a new pod ran before, in the order in which pods are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdmissionOrder {
    /// It may be running here.
    MayBeRunning,
    /// It was admitted and does not run, for example after a reboot.
    Admitted,
    /// It is new, or was rejected.
    New,
}

/// The steps of one update. Additions are in order of creation, as upstream's; pods without a creation time (static
/// ones) come first. Pods that were admitted before come before all others. Otherwise, after a restart of the kubelet,
/// a pod that was rejected because of them could be admitted in their place.
pub fn dispatch(
    update: &PodUpdate,
    known: &dyn Fn(&PodUid) -> Option<Arc<Pod>>,
    admission_order: &dyn Fn(&PodUid) -> AdmissionOrder,
) -> Vec<DispatchStep> {
    let mut pods = update.pods.clone();
    if update.op == PodOp::Add {
        pods.sort_by_cached_key(|pod| {
            let created = pod.metadata.creation_timestamp.clone();
            (admission_order(&pod.uid()), created)
        });
    }
    pods.into_iter().flat_map(|pod| steps(update.op, pod, known)).collect()
}

fn steps(
    op: PodOp,
    pod: Arc<Pod>,
    known: &dyn Fn(&PodUid) -> Option<Arc<Pod>>,
) -> Vec<DispatchStep> {
    if pod.is_mirror() && PodSource::of(&pod) == Some(PodSource::Api) {
        let step = if op == PodOp::Remove {
            DispatchStep::RemoveMirror(pod.full_name(), pod.uid())
        } else {
            DispatchStep::SetMirror(pod)
        };
        return vec![step];
    }
    match op {
        PodOp::Add => vec![DispatchStep::Set(pod.clone()), DispatchStep::Create(pod)],
        PodOp::Update | PodOp::Delete => {
            vec![DispatchStep::Set(pod.clone()), DispatchStep::Update(pod)]
        }
        PodOp::Reconcile => vec![DispatchStep::Set(pod.clone()), DispatchStep::Reconcile(pod)],
        // The last desired version has the grace period and the hooks; the update may not.
        PodOp::Remove => {
            let uid = pod.uid();
            let last = known(&uid).unwrap_or(pod);
            vec![DispatchStep::Remove(uid), DispatchStep::Kill(last)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Completeness, keys};

    fn pod(uid: &str, created: Option<&str>) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod.metadata.creation_timestamp = created
            .map(|t| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(t.parse().unwrap()));
        Arc::new(pod)
    }

    fn update(op: PodOp, pods: Vec<Arc<Pod>>) -> PodUpdate {
        PodUpdate { source: PodSource::File, op, pods, completeness: Completeness::Complete }
    }

    fn new(_: &PodUid) -> AdmissionOrder {
        AdmissionOrder::New
    }

    #[test]
    fn pods_that_had_their_place_on_the_node_come_before_older_ones_that_had_none() {
        let days = ["rejected 1", "admitted 4", "running 3", "admitted 2", "rejected 0"];
        let pods = days.map(|uid| {
            let day = uid.split(' ').nth(1).unwrap();
            let created = format!("2026-01-0{day}T00:00:00Z");
            pod(uid, (day != "0").then_some(created.as_str()))
        });
        let admission_order = |uid: &PodUid| match uid.as_str().split(' ').next() {
            Some("running") => AdmissionOrder::MayBeRunning,
            Some("admitted") => AdmissionOrder::Admitted,
            _ => AdmissionOrder::New,
        };
        let update = update(PodOp::Add, pods.to_vec());
        let order = dispatch(&update, &|_| None, &admission_order).into_iter();
        let order: Vec<_> = order
            .filter_map(|step| match step {
                DispatchStep::Create(pod) => Some(pod.uid().to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(order, ["running 3", "admitted 2", "admitted 4", "rejected 0", "rejected 1"]);
    }

    #[test]
    fn additions_are_set_before_they_get_a_worker_in_order_of_creation() {
        let (late, early, none) = (
            pod("l", Some("2026-01-02T00:00:00Z")),
            pod("e", Some("2026-01-01T00:00:00Z")),
            pod("n", None),
        );
        let steps = dispatch(
            &update(PodOp::Add, vec![late.clone(), early.clone(), none.clone()]),
            &|_| None,
            &new,
        );
        let expected: Vec<_> = [none, early, late]
            .into_iter()
            .flat_map(|pod| [DispatchStep::Set(pod.clone()), DispatchStep::Create(pod)])
            .collect();
        assert_eq!(steps, expected);
    }

    #[test]
    fn a_removed_pod_is_killed_by_its_last_desired_version() {
        let (last, message) = (pod("u", Some("2026-01-01T00:00:00Z")), pod("u", None));
        let steps = dispatch(&update(PodOp::Remove, vec![message]), &|_| Some(last.clone()), &new);
        assert_eq!(steps, [DispatchStep::Remove("u".into()), DispatchStep::Kill(last.clone())]);
    }

    #[test]
    fn updates_and_deletions_reach_the_worker_and_reconciliations_only_the_status() {
        let p = pod("u", None);
        for op in [PodOp::Update, PodOp::Delete] {
            let steps = dispatch(&update(op, vec![p.clone()]), &|_| None, &new);
            assert_eq!(steps, [DispatchStep::Set(p.clone()), DispatchStep::Update(p.clone())]);
        }
        let steps = dispatch(&update(PodOp::Reconcile, vec![p.clone()]), &|_| None, &new);
        assert_eq!(steps, [DispatchStep::Set(p.clone()), DispatchStep::Reconcile(p)]);
    }

    #[test]
    fn a_mirror_is_stored_and_gets_no_worker() {
        let annotated = |source: &str| {
            let mut mirror = Pod::default();
            mirror.metadata.uid = Some("m".into());
            let annotations = [(keys::CONFIG_SOURCE, source), (keys::CONFIG_MIRROR, "h")];
            let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
            mirror.metadata.annotations = Some(annotations.into());
            Arc::new(mirror)
        };
        let mirror = annotated("api");
        for op in [PodOp::Add, PodOp::Update, PodOp::Delete, PodOp::Reconcile] {
            let steps = dispatch(&update(op, vec![mirror.clone()]), &|_| None, &new);
            assert_eq!(steps, [DispatchStep::SetMirror(mirror.clone())]);
        }
        let steps = dispatch(&update(PodOp::Remove, vec![mirror.clone()]), &|_| None, &new);
        assert_eq!(steps, [DispatchStep::RemoveMirror(mirror.full_name(), "m".into())]);
        // A manifest cannot have the annotation; a pod that is not a mirror of the API server's is a pod.
        let of_file = annotated("file");
        let steps = dispatch(&update(PodOp::Add, vec![of_file.clone()]), &|_| None, &new);
        assert_eq!(steps, [DispatchStep::Set(of_file.clone()), DispatchStep::Create(of_file)]);
    }

    #[test]
    fn an_empty_update_does_nothing() {
        assert!(dispatch(&update(PodOp::Add, vec![]), &|_| None, &new).is_empty());
    }
}
