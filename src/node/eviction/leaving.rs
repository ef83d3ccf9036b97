//! Pods that are evicted and have not ended: what they use comes back soon. Pure.

use super::{
    rank::{self, Candidate, Files},
    thresholds::Resource,
};
use crate::{
    model::{Pod, PodExt, PodUid},
    node::stats::api::PodStats,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How much later the kernel has given back all that a pod had.
const SETTLING: Duration = Duration::from_millis(500);

/// The evicted pods that are still there.
#[derive(Debug, Default)]
pub struct LeavingPods(Vec<Leaving>);

#[derive(Debug)]
struct Leaving {
    candidate: Candidate,
    /// When it was seen that nothing of it is left.
    gone: Option<Instant>,
    /// What it uses is not expected back after that.
    until: Instant,
}

impl LeavingPods {
    /// A pod is being stopped, and should be gone by `until`.
    pub fn add(&mut self, candidate: Candidate, until: Instant) {
        self.0.push(Leaving {
            candidate,
            gone: None,
            until,
        });
    }

    /// Whether this pod is one of them.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.0.iter().any(|one| one.candidate.pod.uid() == *uid)
    }

    /// Whether nothing is expected back.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the pods that `ended` some time ago, and those that took too long, which are returned.
    pub fn forget(&mut self, now: Instant, ended: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        for leaving in &mut self.0 {
            if leaving.gone.is_none() && ended(&leaving.candidate.pod) {
                leaving.gone = Some(now);
            }
        }
        let is_over = |gone: Option<Instant>| gone.is_some_and(|gone| now >= gone + SETTLING);
        self.0.retain(|leaving| !is_over(leaving.gone));
        let is_late = |leaving: &mut Leaving| leaving.gone.is_none() && leaving.until <= now;
        let late = self.0.extract_if(.., is_late);
        late.map(|leaving| leaving.candidate.pod).collect()
    }

    /// Takes what pods use now. The cgroups of containers that have ended are gone while the pod's volumes in memory are
    /// still there: what was known of such a pod stays.
    pub fn update(&mut self, usage: &HashMap<PodUid, PodStats>) {
        for Leaving { candidate, .. } in &mut self.0 {
            let usage = usage.get(&candidate.pod.uid());
            if let Some(usage) = usage.filter(|usage| usage.memory.is_some()) {
                candidate.usage = Some(usage.clone());
            }
        }
    }

    /// How much memory, or how many processes, will come back. What is not known may be enough.
    pub fn expected(&self, resource: Resource) -> i64 {
        let used = self.0.iter().map(|Leaving { candidate, .. }| {
            let usage = candidate.usage.as_ref();
            usage.map_or(i64::MAX, |usage| {
                rank::used(candidate, usage, resource, Files::default())
            })
        });
        used.fold(0, i64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::stats::api::MemoryStats;
    use std::time::Duration;

    fn pod(uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        Arc::new(pod)
    }

    fn usage(memory: u64) -> PodStats {
        PodStats {
            memory: Some(MemoryStats {
                working_set_bytes: Some(memory),
                ..MemoryStats::default()
            }),
            ..PodStats::default()
        }
    }

    #[test]
    fn what_an_evicted_pod_uses_is_expected_back_until_it_is_gone_or_late() {
        let start = Instant::now();
        let mut leaving = LeavingPods::default();
        for (uid, memory, seconds) in [("a", 10, 30), ("b", 200, 31)] {
            let candidate = Candidate {
                pod: pod(uid),
                usage: Some(usage(memory)),
            };
            leaving.add(candidate, start + Duration::from_secs(seconds));
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        let expected = |leaving: &LeavingPods| leaving.expected(Resource::Memory);
        assert_eq!(expected(&leaving), 210);
        // `a` went on growing, and the containers of `b` are gone; its volumes are not.
        let grown = HashMap::from([(PodUid::from("a"), usage(50))]);
        leaving.update(&grown);
        assert_eq!(expected(&leaving), 250);
        // Its cgroup is there, and has nothing that says what volumes use.
        let empty = HashMap::from([(PodUid::from("b"), PodStats::default())]);
        leaving.update(&empty);
        assert_eq!(expected(&leaving), 250);
        let late = at(30);
        assert!(leaving.forget(start, |_| false).is_empty());
        assert_eq!(leaving.forget(late, |_| false), [pod("a")]);
        assert!(!leaving.contains(&"a".into()) && leaving.contains(&"b".into()));
        assert_eq!(expected(&leaving), 200);
        assert!(leaving.forget(late, |_| true).is_empty(), "it ended");
        assert_eq!(expected(&leaving), 200, "the kernel takes its time");
        assert!(leaving.forget(at(31), |_| true).is_empty(), "in time");
        assert!(leaving.is_empty());
        assert_eq!(expected(&leaving), 0);
        // Nothing is known of one that has just started.
        let candidate = Candidate {
            pod: pod("c"),
            usage: None,
        };
        leaving.add(candidate, at(60));
        leaving.update(&HashMap::new());
        assert_eq!(expected(&leaving), i64::MAX);
    }
}
