//! Evicted pods that are still terminating, and the resources that they will free. Pure.

use super::rank::{self, Candidate, FilesOnDisk};
use super::thresholds::EvictionResource;
use crate::base::clock::Instant;
use crate::model::{Pod, PodExt, PodUid};
use crate::node::stats::api::PodStats;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Time until the kernel has freed all resources of a terminated pod.
const RELEASE_DELAY: Duration = Duration::from_millis(500);

/// Evicted pods that have not terminated.
#[derive(Debug, Default)]
pub struct TerminatingEvictions {
    /// Pods whose usage is expected to be freed soon.
    in_time: Vec<Terminating>,
    /// Pods past their deadline; evicting them again would free nothing.
    overdue: Vec<Arc<Pod>>,
}

#[derive(Debug)]
struct Terminating {
    candidate: Candidate,
    /// When the pod was found to have terminated.
    terminated_at: Option<Instant>,
    /// Deadline after which its usage is no longer expected to be freed.
    until: Instant,
}

impl TerminatingEvictions {
    /// Adds a pod that is being killed and should have terminated by `until`.
    pub fn add(&mut self, candidate: Candidate, until: Instant) {
        self.in_time.push(Terminating { candidate, terminated_at: None, until });
    }

    /// Shortens later deadlines to `until`, and returns the pods concerned.
    pub fn shorten_grace(&mut self, until: Instant) -> Vec<Arc<Pod>> {
        let slow = self.in_time.iter_mut().filter(|one| one.until > until);
        let shortened = slow.map(|one| {
            one.until = until;
            one.candidate.pod.clone()
        });
        shortened.collect()
    }

    /// Whether this pod was evicted and has not terminated.
    pub fn contains(&self, uid: &PodUid) -> bool {
        let in_time = self.in_time.iter().map(|one| &one.candidate.pod);
        let mut pods = in_time.chain(&self.overdue);
        pods.any(|pod| pod.uid() == *uid)
    }

    /// Whether no usage is expected to be freed.
    pub fn is_empty(&self) -> bool {
        self.in_time.is_empty()
    }

    /// Removes pods that `ended` some time ago. Returns the pods whose deadline has just passed; their usage is no
    /// longer expected to be freed.
    pub fn update_deadlines(
        &mut self,
        now: Instant,
        ended: impl Fn(&Pod) -> bool,
    ) -> Vec<Arc<Pod>> {
        self.overdue.retain(|pod| !ended(pod));
        for terminating in &mut self.in_time {
            if terminating.terminated_at.is_none() && ended(&terminating.candidate.pod) {
                terminating.terminated_at = Some(now);
            }
        }
        let is_released =
            |at: Option<Instant>| at.is_some_and(|terminated| now >= terminated + RELEASE_DELAY);
        self.in_time.retain(|terminating| !is_released(terminating.terminated_at));
        let is_late = |terminating: &mut Terminating| {
            terminating.terminated_at.is_none() && terminating.until <= now
        };
        let late = self.in_time.extract_if(.., is_late);
        let late: Vec<_> = late.map(|late| late.candidate.pod).collect();
        self.overdue.extend_from_slice(&late);
        late
    }

    /// Updates the usage. A pod whose container cgroups are gone keeps its last usage, because its volumes in memory
    /// may still exist.
    pub fn update(&mut self, usage: &HashMap<PodUid, PodStats>) {
        for Terminating { candidate, .. } in &mut self.in_time {
            let usage = usage.get(&candidate.pod.uid());
            if let Some(usage) = usage.filter(|usage| usage.memory.is_some()) {
                candidate.usage = Some(usage.clone());
            }
        }
    }

    /// The amount of memory or processes that will be freed. Unknown usage counts as enough.
    pub fn expected_to_free(&self, resource: EvictionResource) -> i64 {
        let used = self.in_time.iter().map(|Terminating { candidate, .. }| {
            let usage = candidate.usage.as_ref();
            usage.map_or(i64::MAX, |usage| {
                rank::used(candidate, usage, resource, FilesOnDisk::default())
            })
        });
        used.fold(0, i64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use crate::node::stats::api::MemoryStats;
    use std::time::Duration;

    #[test]
    fn pods_with_a_long_grace_are_hurried_once() {
        let (mut terminating, now) = (TerminatingEvictions::default(), clock::instant());
        let after = |seconds| now + Duration::from_secs(seconds);
        let candidate = |uid| Candidate { usage: None, pod: pod(uid) };
        terminating.add(candidate("soft"), after(150));
        terminating.add(candidate("hard"), after(31));
        let mut shortened = |until| -> Vec<_> {
            let pods = terminating.shorten_grace(until).into_iter();
            pods.map(|pod| pod.uid().to_string()).collect()
        };
        assert_eq!(shortened(after(31)), ["soft"]);
        assert!(shortened(after(32)).is_empty());
        let late = terminating.update_deadlines(after(31), |_| false);
        assert_eq!(late.len(), 2, "none has longer than that");
    }

    fn pod(uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        Arc::new(pod)
    }

    fn usage(memory: u64) -> PodStats {
        PodStats {
            memory: Some(MemoryStats { working_set_bytes: Some(memory), ..MemoryStats::default() }),
            ..PodStats::default()
        }
    }

    #[test]
    fn what_an_evicted_pod_uses_is_expected_back_until_it_is_gone_or_late() {
        let start = clock::instant();
        let mut terminating = TerminatingEvictions::default();
        for (uid, memory, seconds) in [("a", 10, 30), ("b", 200, 31)] {
            let candidate = Candidate { pod: pod(uid), usage: Some(usage(memory)) };
            terminating.add(candidate, start + Duration::from_secs(seconds));
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        let expected = |terminating: &TerminatingEvictions| {
            terminating.expected_to_free(EvictionResource::Memory)
        };
        assert_eq!(expected(&terminating), 210);
        // `a` went on growing, and the containers of `b` are gone; its volumes are not.
        let grown = HashMap::from([(PodUid::from("a"), usage(50))]);
        terminating.update(&grown);
        assert_eq!(expected(&terminating), 250);
        // Its cgroup is there, and has nothing that says what volumes use.
        let empty = HashMap::from([(PodUid::from("b"), PodStats::default())]);
        terminating.update(&empty);
        assert_eq!(expected(&terminating), 250);
        let late = at(30);
        assert!(terminating.update_deadlines(start, |_| false).is_empty());
        assert_eq!(terminating.update_deadlines(late, |_| false), [pod("a")]);
        assert!(terminating.contains(&"b".into()));
        assert_eq!(expected(&terminating), 200);
        assert!(terminating.update_deadlines(late, |_| true).is_empty(), "it ended");
        assert_eq!(expected(&terminating), 200, "the kernel takes its time");
        assert!(terminating.update_deadlines(at(31), |_| true).is_empty(), "in time");
        assert!(terminating.is_empty());
        assert_eq!(expected(&terminating), 0);
        // Nothing is known of one that has just started.
        let candidate = Candidate { pod: pod("c"), usage: None };
        terminating.add(candidate, at(60));
        terminating.update(&HashMap::new());
        assert_eq!(expected(&terminating), i64::MAX);
    }

    #[test]
    fn a_pod_that_cannot_be_killed_is_not_evicted_again_and_keeps_no_other_from_it() {
        let start = clock::instant();
        let mut terminating = TerminatingEvictions::default();
        let candidate = Candidate { pod: pod("stuck"), usage: Some(usage(10)) };
        terminating.add(candidate, start + Duration::from_secs(31));
        let late = start + Duration::from_secs(31);
        assert_eq!(terminating.update_deadlines(late, |_| false), [pod("stuck")]);
        assert!(terminating.contains(&"stuck".into()));
        assert!(terminating.is_empty(), "it is not waited for");
        assert_eq!(terminating.expected_to_free(EvictionResource::Memory), 0);
        assert!(terminating.update_deadlines(late, |_| false).is_empty(), "said once");
        assert!(terminating.update_deadlines(late, |_| true).is_empty());
        assert!(!terminating.contains(&"stuck".into()), "it has ended");
    }
}
