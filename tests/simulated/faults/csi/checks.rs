//! What came of the faults.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{CsiEpisode, KnownPod, SeenContainer};
use crate::csi::delete;
use crate::support::fake_runtime::PodView;
use crate::support::faults::{Finding, Goal};

/// Within which everything is as the API server says, once nothing goes wrong any more.
const SETTLES: Duration = Duration::from_secs(60);

impl CsiEpisode {
    fn is_wanted(&self, uid: &str, pod: &KnownPod) -> bool {
        self.node.uid(&pod.name).as_deref() == Some(uid) && !self.is_being_deleted(&pod.name)
    }

    /// Containers that end must have a reason.
    pub(super) fn observe(&mut self) {
        let pods = self.node.fake.pods();
        let running = pods.iter().flat_map(|pod| {
            let running = pod.containers.iter().filter(|one| one.is_running());
            running.map(|one| (one.id.clone(), pod.uid.clone()))
        });
        let running: BTreeMap<_, _> = running.collect();
        let mut found = Vec::new();
        for (id, seen) in &mut self.containers {
            if !seen.has_ended && !running.contains_key(id) {
                seen.has_ended = true;
                let pod = self.pods.get(&seen.uid);
                if let Some(pod) = pod.filter(|pod| !pod.is_disturbed) {
                    found.push(format!("{id} of {} ({})", pod.name, seen.uid));
                }
            }
        }
        for (id, uid) in running {
            let new = SeenContainer { uid, has_ended: false };
            self.containers.entry(id).or_insert(new);
        }
        for text in found {
            self.find(Goal::HealthyRestart, text);
        }
    }

    /// Pods that run and that nobody has disturbed have their volumes.
    pub(super) fn check_running(&mut self) {
        let pods: Vec<PodView> = self.node.fake.pods();
        for pod in pods {
            let known = self.pods.get(&pod.uid);
            if known.is_none_or(|known| known.is_disturbed) {
                continue;
            }
            for path in self.node.lacks(&pod) {
                self.find(Goal::VolumeLost, format!("{}: {path}", pod.name));
            }
        }
    }

    fn unsettled(&self) -> Vec<Finding> {
        let mut left = Vec::new();
        let mut wanted = Vec::new();
        for (uid, pod) in &self.pods {
            if !self.is_wanted(uid, pod) {
                if self.node.uid(&pod.name).as_ref() == Some(uid) {
                    let text = format!("{} ({uid}) is still there", pod.name);
                    left.push(Finding::new(Goal::LostKill, text));
                }
                continue;
            }
            wanted.push(uid);
            match self.node.running(uid) {
                None => {
                    let text = format!("{} ({uid}) does not run", pod.name);
                    left.push(Finding::new(Goal::NeverReady, text));
                }
                Some(running) => {
                    let lacks = self.node.lacks(&running).into_iter();
                    let text = |path| format!("{} ({uid}): {path}", pod.name);
                    left.extend(lacks.map(|path| Finding::new(Goal::VolumeLost, text(path))));
                }
            }
        }
        let pods = self.node.fake.pods();
        let unwanted = pods.iter().filter(|pod| !wanted.contains(&&pod.uid));
        left.extend(unwanted.map(|pod| {
            let text = format!("{} ({}) is in the runtime", pod.name, pod.uid);
            Finding::new(Goal::LostKill, text)
        }));
        left
    }

    pub(super) async fn settle(&mut self) -> bool {
        self.note("settle");
        let begin = Instant::now();
        loop {
            self.observe();
            let left = self.unsettled();
            if left.is_empty() {
                self.note("settled");
                return true;
            }
            if begin.elapsed() >= SETTLES {
                for finding in left {
                    self.find(finding.goal, finding.text);
                }
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Deletes all pods; nothing may be left.
    pub(super) async fn empty(&mut self) {
        let pods = self.pods.iter().filter(|(uid, pod)| self.is_wanted(uid, pod));
        let pods: Vec<_> = pods.map(|(uid, pod)| (uid.clone(), pod.name.clone())).collect();
        for (uid, name) in pods {
            self.disturb(&uid);
            delete(&self.node.api, &name);
        }
        let begin = Instant::now();
        if !self.settle().await {
            return;
        }
        loop {
            let left = self.node.left();
            if left.is_empty() {
                self.sum.emptied.push(begin.elapsed());
                return;
            }
            if begin.elapsed() >= SETTLES {
                for text in left {
                    self.find(Goal::Leak, text);
                }
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
