//! The start gate: static pods of one full name run one after the other, in the order in which they were added
//! (upstream's `allowPodStart`). The end of one starts the next, so none polls. Pure.

use crate::model::{PodFullName, PodUid};
use std::collections::{HashMap, VecDeque};

#[derive(Debug, Default)]
struct GateLane {
    /// Pods that run, or may run.
    running: Vec<PodUid>,
    waiting: VecDeque<PodUid>,
}

impl GateLane {
    /// Starts the first in the queue if no other pod of the name is running.
    fn advance(&mut self) -> Option<PodUid> {
        let first = self.waiting.front()?;
        if self.running.iter().any(|uid| uid != first) {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.running = vec![first.clone()];
        Some(first)
    }
}

/// One lane per full name that is in use.
#[derive(Debug, Default)]
pub(super) struct StartGate {
    lanes: HashMap<PodFullName, GateLane>,
}

impl StartGate {
    /// Queues a pod that is about to start. Returns whether it may start now.
    pub(super) fn arrive(&mut self, name: &PodFullName, uid: &PodUid) -> bool {
        let lane = self.lanes.entry(name.clone()).or_default();
        if !lane.waiting.contains(uid) {
            lane.waiting.push_back(uid.clone());
        }
        lane.advance().as_ref() == Some(uid)
    }

    /// Blocks the name, because this pod runs already or is being stopped.
    pub(super) fn block(&mut self, name: &PodFullName, uid: &PodUid) {
        let lane = self.lanes.entry(name.clone()).or_default();
        lane.waiting.retain(|waiting| waiting != uid);
        if !lane.running.contains(uid) {
            lane.running.push(uid.clone());
        }
    }

    /// Removes a pod that ended or no longer wants to start. Returns the pod that may start now.
    pub(super) fn leave(&mut self, name: &PodFullName, uid: &PodUid) -> Option<PodUid> {
        let lane = self.lanes.get_mut(name)?;
        lane.running.retain(|running| running != uid);
        lane.waiting.retain(|waiting| waiting != uid);
        let next = lane.advance();
        if lane.running.is_empty() && lane.waiting.is_empty() {
            self.lanes.remove(name);
        }
        next
    }

    /// The pods of a name that run, or may run.
    pub(super) fn running(&self, name: &PodFullName) -> Vec<PodUid> {
        let lane = self.lanes.get(name);
        lane.map(|lane| lane.running.clone()).unwrap_or_default()
    }

    /// How many names are in use.
    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
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
        assert!(gate.arrive(&name, &a));
        assert!(!gate.arrive(&name, &b));
        assert!(!gate.arrive(&name, &c));
        assert!(!gate.arrive(&name, &b), "arriving twice does not help");
        assert_eq!(gate.leave(&name, &a), Some(b.clone()));
        assert_eq!(gate.leave(&name, &b), Some(c.clone()));
        assert_eq!(gate.leave(&name, &c), None);
        assert!(gate.is_empty());
    }

    #[test]
    fn another_name_has_a_lane_of_its_own() {
        let (mut gate, name, [a, b, _]) = gate();
        assert!(gate.arrive(&name, &a));
        assert!(gate.arrive(&PodFullName::of("etcd", "other"), &b));
    }

    #[test]
    fn a_pod_that_leaves_the_line_delays_no_other_pod() {
        let (mut gate, name, [a, b, c]) = gate();
        gate.arrive(&name, &a);
        gate.arrive(&name, &b);
        gate.arrive(&name, &c);
        assert_eq!(gate.leave(&name, &b), None);
        assert_eq!(gate.leave(&name, &a), Some(c));
    }

    #[test]
    fn a_pod_that_still_runs_keeps_others_out_but_not_itself() {
        let (mut gate, name, [a, b, c]) = gate();
        gate.block(&name, &a);
        assert!(gate.arrive(&name, &a), "adopted");
        gate.block(&name, &b);
        assert!(!gate.arrive(&name, &c));
        assert_eq!(gate.leave(&name, &a), None);
        assert_eq!(gate.leave(&name, &b), Some(c));
    }

    #[test]
    fn a_pod_that_is_stopped_while_in_line_is_inside_until_it_is_done() {
        let (mut gate, name, [a, b, c]) = gate();
        gate.arrive(&name, &a);
        gate.arrive(&name, &b);
        gate.block(&name, &b);
        assert!(!gate.arrive(&name, &c));
        assert_eq!(gate.leave(&name, &a), None);
        assert_eq!(gate.leave(&name, &b), Some(c));
    }
}
