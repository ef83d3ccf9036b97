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
const AFTER_THE_END: Duration = Duration::from_secs(2);

/// The evicted pods that are still there.
#[derive(Debug, Default)]
pub struct LeavingPods(Vec<Leaving>);

#[derive(Debug)]
struct Leaving {
    candidate: Candidate,
    /// Since when nothing of it has been running.
    ended: Option<Instant>,
    /// What it uses is not expected back after that.
    until: Instant,
}

impl LeavingPods {
    /// A pod is being stopped, and should be gone by `until`.
    pub fn add(&mut self, candidate: Candidate, until: Instant) {
        self.0.push(Leaving {
            candidate,
            ended: None,
            until,
        });
    }

    /// Whether nothing is expected back.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the pods that ended, and those that took too long, which are returned.
    pub fn forget(&mut self, now: Instant, ended: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        self.0.retain(|leaving| !ended(&leaving.candidate.pod));
        let late = self.0.extract_if(.., |leaving| leaving.until <= now);
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

    /// How much of a resource will come back. Files stay until all of a pod is gone.
    pub fn expected(&self, resource: Resource, files: Files, now: Instant) -> i64 {
        let counts = |leaving: &&Leaving| {
            let over = |ended| now.duration_since(ended) > AFTER_THE_END;
            resource.is_on_disk() || !leaving.ended.is_some_and(over)
        };
        let used = self.0.iter().filter(counts).map(|leaving| {
            let usage = leaving.candidate.usage.as_ref();
            usage.map_or(0, |usage| {
                rank::used(&leaving.candidate, usage, resource, files)
            })
        });
        used.fold(0, i64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::stats::api::{ContainerStats, FsStats, MemoryStats};
    use std::time::Duration;

    fn pod(uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        Arc::new(pod)
    }

    fn usage(memory: u64, log: u64) -> PodStats {
        PodStats {
            memory: Some(MemoryStats {
                working_set_bytes: Some(memory),
                ..MemoryStats::default()
            }),
            containers: vec![ContainerStats {
                logs: Some(FsStats {
                    used_bytes: Some(log),
                    ..FsStats::default()
                }),
                ..ContainerStats::default()
            }],
            ..PodStats::default()
        }
    }

    const ALL: Files = Files {
        layers: true,
        logs_and_volumes: true,
    };

    #[test]
    fn what_an_evicted_pod_uses_is_expected_back_until_it_is_gone_or_late() {
        let start = Instant::now();
        let mut leaving = LeavingPods::default();
        for (uid, memory, log, seconds) in [("a", 10, 1, 30), ("b", 200, 2, 31)] {
            let candidate = Candidate {
                pod: pod(uid),
                usage: Some(usage(memory, log)),
            };
            leaving.add(candidate, start + Duration::from_secs(seconds));
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        let expected = |leaving: &LeavingPods, seconds| {
            (
                leaving.expected(Resource::Memory, ALL, at(seconds)),
                leaving.expected(Resource::Disk, ALL, at(seconds)),
            )
        };
        assert_eq!(expected(&leaving, 0), (210, 3));
        // `a` went on growing, and the containers of `b` are gone; its files are not.
        let of_a = HashMap::from([(PodUid::from("a"), usage(50, 7))]);
        leaving.update(&of_a, at(1));
        assert_eq!(expected(&leaving, 1), (250, 9));
        leaving.update(&of_a, at(2));
        assert_eq!(expected(&leaving, 3), (250, 9));
        assert_eq!(expected(&leaving, 4), (50, 9));
        let late = at(30);
        assert!(leaving.forget(start, |_| false).is_empty());
        assert_eq!(leaving.forget(late, |_| false), [pod("a")]);
        assert_eq!(expected(&leaving, 30), (0, 2));
        assert!(leaving.forget(late, |_| true).is_empty(), "it ended");
        assert!(leaving.is_empty());
    }
}
