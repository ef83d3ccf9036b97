//! Which pods of the runtime nobody wants: pure.

use crate::model::{PodSource, PodStatus, PodUid};
use std::sync::Arc;

/// What is known about who wants pods.
pub struct Claims<'a> {
    /// A source still has the pod, or a worker is still at it.
    pub claimed: &'a dyn Fn(&PodUid) -> bool,
    /// The source has delivered at least once.
    pub delivered: &'a dyn Fn(PodSource) -> bool,
    /// Every configured source has.
    pub all_delivered: bool,
}

/// Pods to stop and pods of which only remains are left.
#[derive(Debug, Default, PartialEq)]
pub struct Orphans {
    /// Something of them runs.
    pub running: Vec<Arc<PodStatus>>,
    /// Dead containers and sandboxes, nothing else.
    pub remains: Vec<Arc<PodStatus>>,
}

/// Finds orphans. A pod is judged once the source it came from has delivered; one that does not say
/// where it came from (another kubelet made it), or came from a source that is not configured now, is
/// judged once every source has.
pub fn find(pods: &[Arc<PodStatus>], claims: &Claims<'_>) -> Orphans {
    let mut orphans = Orphans::default();
    for pod in pods {
        if (claims.claimed)(&pod.uid) || !may_be_judged(pod, claims) {
            continue;
        }
        match pod.is_active() {
            true => orphans.running.push(pod.clone()),
            false => orphans.remains.push(pod.clone()),
        }
    }
    orphans
}

fn may_be_judged(pod: &PodStatus, claims: &Claims<'_>) -> bool {
    let source = pod.newest_sandbox().and_then(|sandbox| sandbox.source);
    claims.all_delivered || source.is_some_and(|source| (claims.delivered)(source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SandboxStatus;

    fn pod(uid: &str, source: Option<PodSource>, ready: bool) -> Arc<PodStatus> {
        let sandbox = SandboxStatus {
            ready,
            source,
            ..SandboxStatus::default()
        };
        Arc::new(PodStatus {
            uid: uid.into(),
            sandboxes: vec![sandbox],
            ..PodStatus::default()
        })
    }

    fn uids(pods: &[Arc<PodStatus>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.uid.as_str()).collect()
    }

    #[test]
    fn a_claimed_pod_is_never_an_orphan() {
        let pods = [pod("u", None, true)];
        let claims = Claims {
            claimed: &|_| true,
            delivered: &|_| true,
            all_delivered: true,
        };
        assert_eq!(find(&pods, &claims), Orphans::default());
    }

    #[test]
    fn a_pod_is_judged_as_soon_as_its_own_source_has_delivered() {
        let pods = [
            pod("file", Some(PodSource::File), true),
            pod("http", Some(PodSource::Http), true),
            pod("unknown", None, true),
        ];
        let mut claims = Claims {
            claimed: &|_| false,
            delivered: &|source| source == PodSource::File,
            all_delivered: false,
        };
        assert_eq!(uids(&find(&pods, &claims).running), ["file"]);
        claims.all_delivered = true;
        assert_eq!(
            uids(&find(&pods, &claims).running),
            ["file", "http", "unknown"]
        );
    }

    #[test]
    fn nothing_is_judged_before_any_source_has_delivered() {
        let pods = [pod("u", None, true), pod("v", Some(PodSource::File), false)];
        let claims = Claims {
            claimed: &|_| false,
            delivered: &|_| false,
            all_delivered: false,
        };
        assert_eq!(find(&pods, &claims), Orphans::default());
    }

    #[test]
    fn what_does_not_run_is_only_remains() {
        let pods = [pod("dead", None, false), pod("alive", None, true)];
        let claims = Claims {
            claimed: &|_| false,
            delivered: &|_| true,
            all_delivered: true,
        };
        let orphans = find(&pods, &claims);
        assert_eq!(
            (uids(&orphans.running), uids(&orphans.remains)),
            (vec!["alive"], vec!["dead"])
        );
    }
}
