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

/// How long memory and processes are expected back once containers have ended: volumes in memory go after them.
const AFTER_THE_END: Duration = Duration::from_secs(5);

/// How much later the kernel has given back all that a pod had.
const SETTLING: Duration = Duration::from_millis(500);

/// The evicted pods that are still there.
#[derive(Debug, Default)]
pub struct LeavingPods(Vec<Leaving>);

#[derive(Debug)]
struct Leaving {
    candidate: Candidate,
    /// Since when nothing of it has been running.
    ended: Option<Instant>,
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
            ended: None,
            gone: None,
            until,
        });
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

    /// Takes what pods that run use at `now`.
    pub fn update(&mut self, usage: &HashMap<PodUid, PodStats>, now: Instant) {
        for leaving in &mut self.0 {
            match usage.get(&leaving.candidate.pod.uid()) {
                Some(usage) => leaving.candidate.usage = Some(usage.clone()),
                None => leaving.ended = leaving.ended.or(Some(now)),
            }
        }
    }

    /// How much of a resource will come back. What is not known may be enough, and what a pod has on a disk is measured
    /// too rarely to be known: there all of the pod has to be gone first.
    pub fn expected(&self, resource: Resource, now: Instant) -> i64 {
        if resource.is_on_disk() {
            return if self.is_empty() { 0 } else { i64::MAX };
        }
        let is_over = |ended| now.duration_since(ended) > AFTER_THE_END;
        let counted = self.0.iter().filter(|one| !one.ended.is_some_and(is_over));
        let used = counted.map(|Leaving { candidate, .. }| {
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
        let expected = |leaving: &LeavingPods, seconds| {
            let of = |resource| leaving.expected(resource, at(seconds));
            (of(Resource::Memory), of(Resource::Disk))
        };
        assert_eq!(expected(&leaving, 0), (210, i64::MAX));
        // `a` went on growing, and the containers of `b` are gone; its files are not.
        let of_a = HashMap::from([(PodUid::from("a"), usage(50))]);
        leaving.update(&of_a, at(1));
        assert_eq!(expected(&leaving, 1), (250, i64::MAX));
        leaving.update(&of_a, at(2));
        assert_eq!(expected(&leaving, 6), (250, i64::MAX));
        assert_eq!(expected(&leaving, 7), (50, i64::MAX));
        let late = at(30);
        assert!(leaving.forget(start, |_| false).is_empty());
        assert_eq!(leaving.forget(late, |_| false), [pod("a")]);
        assert_eq!(expected(&leaving, 30), (0, i64::MAX));
        assert!(leaving.forget(late, |_| true).is_empty(), "it ended");
        assert!(!leaving.is_empty());
        assert!(leaving.forget(at(31), |_| true).is_empty(), "in time");
        assert!(leaving.is_empty());
        assert_eq!(expected(&leaving, 31), (0, 0));
        // Nothing is known of one that has just started.
        let candidate = Candidate {
            pod: pod("c"),
            usage: None,
        };
        leaving.add(candidate, at(60));
        assert_eq!(expected(&leaving, 30), (i64::MAX, i64::MAX));
        leaving.update(&HashMap::new(), at(31));
        assert_eq!(expected(&leaving, 37), (0, i64::MAX));
    }
}
