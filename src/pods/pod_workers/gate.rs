//! The start gate: static pods of one full name run one after the other, in the order in which they were added
//! (upstream's `allowPodStart`). The end of one starts the next, so none polls. Pure.

use crate::model::{PodFullName, PodUid};
use std::collections::{HashMap, VecDeque};

#[derive(Debug, Default)]
struct FullNameQueue {
    /// Pods that may be running.
    started: Vec<PodUid>,
    waiting: VecDeque<PodUid>,
}

impl FullNameQueue {
    /// Starts the first in the queue if no other pod of the name is running.
    fn start_next(&mut self) -> Option<PodUid> {
        let first = self.waiting.front()?;
        if self.started.iter().any(|uid| uid != first) {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.started = vec![first.clone()];
        Some(first)
    }
}

/// A queue for each full name that is in use.
#[derive(Debug, Default)]
pub(super) struct StartGate {
    by_full_name: HashMap<PodFullName, FullNameQueue>,
}

impl StartGate {
    /// Queues a pod that is about to start. Returns whether it may start now.
    pub(super) fn enqueue(&mut self, name: &PodFullName, uid: &PodUid) -> bool {
        let queue = self.by_full_name.entry(name.clone()).or_default();
        if !queue.waiting.contains(uid) {
            queue.waiting.push_back(uid.clone());
        }
        queue.start_next().as_ref() == Some(uid)
    }

    /// Blocks the name, because this pod runs already or is being stopped.
    pub(super) fn block(&mut self, name: &PodFullName, uid: &PodUid) {
        let queue = self.by_full_name.entry(name.clone()).or_default();
        queue.waiting.retain(|waiting| waiting != uid);
        if !queue.started.contains(uid) {
            queue.started.push(uid.clone());
        }
    }

    /// Removes a pod that ended or no longer waits to start. Returns the pod that may start now.
    pub(super) fn remove(&mut self, name: &PodFullName, uid: &PodUid) -> Option<PodUid> {
        let queue = self.by_full_name.get_mut(name)?;
        queue.started.retain(|started| started != uid);
        queue.waiting.retain(|waiting| waiting != uid);
        let next = queue.start_next();
        if queue.started.is_empty() && queue.waiting.is_empty() {
            self.by_full_name.remove(name);
        }
        next
    }

    /// The pods of a name that may be running.
    pub(super) fn started(&self, name: &PodFullName) -> Vec<PodUid> {
        let queue = self.by_full_name.get(name);
        queue.map(|queue| queue.started.clone()).unwrap_or_default()
    }

    /// How many names are in use.
    pub(super) fn len(&self) -> usize {
        self.by_full_name.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_full_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> (StartGate, PodFullName, [PodUid; 3]) {
        (
            StartGate::default(),
            PodFullName::of("etcd", "kube-system"),
            ["a".into(), "b".into(), "c".into()],
        )
    }

    #[test]
    fn pods_of_one_name_start_in_the_order_in_which_they_came() {
        let (mut gate, name, [a, b, c]) = gate();
        assert!(gate.enqueue(&name, &a));
        assert!(!gate.enqueue(&name, &b));
        assert!(!gate.enqueue(&name, &c));
        assert!(!gate.enqueue(&name, &b), "arriving twice does not help");
        assert_eq!(gate.remove(&name, &a), Some(b.clone()));
        assert_eq!(gate.remove(&name, &b), Some(c.clone()));
        assert_eq!(gate.remove(&name, &c), None);
        assert!(gate.is_empty());
    }

    #[test]
    fn pods_of_other_names_are_not_delayed() {
        let (mut gate, name, [a, b, _]) = gate();
        assert!(gate.enqueue(&name, &a));
        assert!(gate.enqueue(&PodFullName::of("etcd", "other"), &b));
    }

    #[test]
    fn a_pod_that_leaves_the_queue_delays_no_other_pod() {
        let (mut gate, name, [a, b, c]) = gate();
        gate.enqueue(&name, &a);
        gate.enqueue(&name, &b);
        gate.enqueue(&name, &c);
        assert_eq!(gate.remove(&name, &b), None);
        assert_eq!(gate.remove(&name, &a), Some(c));
    }

    #[test]
    fn a_pod_that_still_runs_keeps_others_out_but_not_itself() {
        let (mut gate, name, [a, b, c]) = gate();
        gate.block(&name, &a);
        assert!(gate.enqueue(&name, &a), "adopted");
        gate.block(&name, &b);
        assert!(!gate.enqueue(&name, &c));
        assert_eq!(gate.remove(&name, &a), None);
        assert_eq!(gate.remove(&name, &b), Some(c));
    }

    #[test]
    fn a_queued_pod_that_is_stopped_blocks_its_name_until_it_ended() {
        let (mut gate, name, [a, b, c]) = gate();
        gate.enqueue(&name, &a);
        gate.enqueue(&name, &b);
        gate.block(&name, &b);
        assert!(!gate.enqueue(&name, &c));
        assert_eq!(gate.remove(&name, &a), None);
        assert_eq!(gate.remove(&name, &b), Some(c));
    }
}
