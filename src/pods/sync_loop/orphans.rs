//! Finds the orphans among the pods of the runtime. Pure.

use crate::model::{PodStatus, PodUid};
use std::sync::Arc;

/// What makes a pod of the runtime an orphan.
pub struct OrphanCriteria<'a> {
    /// A source or a worker has the pod.
    pub is_known: &'a dyn Fn(&PodUid) -> bool,
    /// The pod was removed from its source, so that it is an orphan if it is not known.
    pub is_removed_from_source: &'a dyn Fn(&PodStatus) -> bool,
}

/// Orphans to stop, and orphans to remove.
#[derive(Debug, Default, PartialEq)]
pub struct Orphans {
    /// A container or a sandbox runs.
    pub running: Vec<Arc<PodStatus>>,
    /// Only dead containers and sandboxes are left.
    pub stopped: Vec<Arc<PodStatus>>,
}

/// Finds orphans: only among pods that were removed from their source.
pub fn find(pods: &[Arc<PodStatus>], criteria: &OrphanCriteria<'_>) -> Orphans {
    let mut orphans = Orphans::default();
    for pod in pods {
        if (criteria.is_known)(&pod.uid) || !(criteria.is_removed_from_source)(pod) {
            continue;
        }
        if pod.may_be_running() {
            orphans.running.push(pod.clone());
        } else {
            orphans.stopped.push(pod.clone());
        }
    }
    orphans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PodSource, SandboxStatus};

    fn pod(uid: &str, source: Option<PodSource>, ready: bool) -> Arc<PodStatus> {
        let sandbox = SandboxStatus { ready, source, ..SandboxStatus::default() };
        Arc::new(PodStatus { uid: uid.into(), sandboxes: vec![sandbox], ..PodStatus::default() })
    }

    fn uids(pods: &[Arc<PodStatus>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.uid.as_str()).collect()
    }

    #[test]
    fn a_known_pod_is_never_an_orphan() {
        let pods = [pod("u", Some(PodSource::File), true)];
        let criteria = OrphanCriteria { is_known: &|_| true, is_removed_from_source: &|_| true };
        assert_eq!(find(&pods, &criteria), Orphans::default());
    }

    #[test]
    fn a_pod_is_an_orphan_only_once_its_own_source_has_delivered() {
        let pods = [
            pod("file", Some(PodSource::File), true),
            pod("http", Some(PodSource::Http), true),
            pod("dead", Some(PodSource::File), false),
            pod("api", Some(PodSource::Api), true),
            pod("unmarked", None, true),
        ];
        let found = |delivered: &[PodSource]| {
            let criteria = OrphanCriteria {
                is_known: &|_| false,
                is_removed_from_source: &|pod| delivered.contains(&pod.source()),
            };
            let orphans = find(&pods, &criteria);
            [orphans.running, orphans.stopped].map(|pods| uids(&pods).join(" "))
        };
        use PodSource::{Api, File, Http};
        assert_eq!(found(&[]), ["", ""]);
        assert_eq!(found(&[File]), ["file", "dead"]);
        assert_eq!(found(&[File, Http]), ["file http", "dead"]);
        assert_eq!(found(&[Api]), ["api unmarked", ""]);
    }
}
