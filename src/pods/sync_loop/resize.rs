//! In-place pod resize: pods whose requested CPU and memory differ from the allocated ones.
//!
//! Until a resize is accepted, all other modules see the pod with its allocated resources; the requested ones are kept
//! here. A resize that does not fit is retried whenever resources may have become free.

mod feasible;

pub use feasible::ResizeRules;

use super::SyncLoop;
use super::admission::{AdmissionError, fits_critical, fits_with, may_resize};
use super::admit::WAITS_FOR_PREEMPTED;
use feasible::{ResizeRejection, infeasible, needs_more};

use crate::base::clock::{self, Instant};
use crate::base::named_enum;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, PodUid};
use crate::pods::pod_sync::syncer::SyncPodType;
use crate::pods::pod_workers::UpdatePodOptions;
use crate::resources::allocation::{
    Allocations, PendingReason, PendingResize, PodResourceInfo, ResizeConditions, ResizeInProgress,
    ResizeMetrics, event_message, with_higher_requests,
};
use crate::resources::{QosClass, pod_qos};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

named_enum! {
    /// Why pending resizes are retried; a label of metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum ResizeTrigger {
        PodUpdated = "pod_updated",
        PodsRemoved = "pods_removed",
        PodResized = "pod_resized",
        PodTerminated = "pod_terminated",
        PeriodicRetry = "periodic_retry",
    }
}

/// The pending resizes.
pub struct Resizes {
    pending: HashMap<PodUid, WaitingResize>,
    rules: ResizeRules,
    metrics: ResizeMetrics,
}

struct WaitingResize {
    pod: Arc<Pod>,
    since: Instant,
}

impl Resizes {
    /// No resizes yet.
    pub fn new(rules: ResizeRules, metrics: ResizeMetrics) -> Self {
        Self { pending: HashMap::new(), rules, metrics }
    }

    /// Whether a resize is pending.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether a resize of this pod is pending.
    pub(super) fn is_pending(&self, uid: &PodUid) -> bool {
        self.pending.contains_key(uid)
    }

    /// The pending resizes in the order in which they are tried: first those that need no more resources than before,
    /// then by priority, QoS class and time of waiting.
    fn in_order(&self, allocated: impl Fn(&PodUid) -> Option<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let mut wanted: Vec<_> = self.pending.iter().collect();
        wanted.sort_by_key(|(uid, wanted)| {
            let grows = allocated(uid).is_none_or(|before| needs_more(&before, &wanted.pod));
            let priority = wanted.pod.spec().and_then(|spec| spec.priority);
            let guaranteed = matches!(pod_qos(&wanted.pod), Ok(QosClass::Guaranteed));
            let priority = Reverse(priority.unwrap_or_default());
            (grows, priority, !guaranteed, wanted.since)
        });
        wanted.into_iter().map(|(_, one)| one.pod.clone()).collect()
    }
}

impl SyncLoop {
    /// The pod with its allocated resources in place of the requested ones; a difference is recorded as a pending resize.
    pub(super) fn with_allocation(&mut self, pod: Arc<Pod>) -> Arc<Pod> {
        if pod.is_static() {
            return pod;
        }
        let (uid, allocations) = (pod.uid(), self.allocations().clone());
        let known = self.pod_manager.reader().get(&uid);
        if known.is_none() {
            let reported = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
            let reported = ResizeConditions::reported(reported.unwrap_or_default());
            allocations.adopt_pod_level(&pod, &reported);
            allocations.change_conditions(&uid, |conditions| *conditions = reported);
        }
        let allocated = allocations.apply(&pod);
        if known.is_some() && self.is_known_infeasible(&pod) {
            return allocated;
        }
        let before = self.resizes.pending.remove(&uid);
        let earlier = before.as_ref().map(|wanted| &wanted.pod).or(known.as_ref());
        if let Some(earlier) = earlier {
            let (earlier, now) = (PodResourceInfo::of(earlier), PodResourceInfo::of(&pod));
            self.resizes.metrics.record_requested(&earlier, &now);
        }
        if Arc::ptr_eq(&allocated, &pod) {
            allocations.change_conditions(&uid, |conditions| {
                conditions.pending = None;
                conditions.undecided = false;
            });
        } else {
            // The resize of a pod that ends is not decided any more.
            let ends = pod.metadata.deletion_timestamp.is_some();
            allocations.change_conditions(&uid, |conditions| conditions.undecided = !ends);
            let since = before.map_or_else(clock::instant, |wanted| wanted.since);
            self.resizes.pending.insert(uid, WaitingResize { pod, since });
        }
        allocated
    }

    /// The request of this version of the pod is infeasible, and its condition was set.
    fn is_known_infeasible(&self, pod: &Pod) -> bool {
        let pending = self.allocations().conditions(&pod.uid()).pending;
        pending.is_some_and(|pending| {
            pending.reason == PendingReason::Infeasible
                && pending.generation == pod.metadata.generation
        })
    }

    /// Tries to accept the resizes that wait.
    pub(super) fn retry_resizes(&mut self, trigger: ResizeTrigger) {
        if self.resizes.pending.is_empty() || !self.sources.all_delivered() {
            return;
        }
        let pod_manager = self.pod_manager.reader();
        let mut accepted = true;
        let mut trigger = trigger;
        // A resize that shrinks a pod may make room for another one.
        while std::mem::take(&mut accepted) {
            for wanted in self.resizes.in_order(|uid| pod_manager.get(uid)) {
                let uid = wanted.uid();
                let Some(before) = pod_manager.get(&uid) else {
                    self.resizes.pending.remove(&uid);
                    continue;
                };
                if self.is_terminating(&before) {
                    let allocations = self.allocations();
                    allocations.change_conditions(&uid, |conditions| conditions.undecided = false);
                    continue;
                }
                if !self.workers.has_worker(&uid) {
                    continue;
                }
                match self.decide_resize(&before, &wanted) {
                    None => {}
                    Some(Ok(())) => {
                        self.accept_resize(&before, wanted, trigger);
                        accepted = true;
                    }
                    Some(Err(rejection)) => self.reject_resize(&before, &wanted, rejection),
                }
            }
            trigger = ResizeTrigger::PodResized;
        }
    }

    /// `None` while the node is not known.
    fn decide_resize(
        &self,
        before: &Arc<Pod>,
        wanted: &Pod,
    ) -> Option<Result<(), ResizeRejection>> {
        let object = self.admission.node.borrow().clone()?;
        if let Some(rejection) = infeasible(before, wanted, &self.resizes.rules) {
            return Some(Err(rejection));
        }
        let deferred =
            |message| ResizeRejection { reason: PendingReason::Deferred, message, detail: "" };
        let (pressure, shutting_down) =
            (*self.admission.pressure.borrow(), *self.admission.shutting_down.borrow());
        if let Err(rejection) = may_resize(wanted, pressure, shutting_down) {
            return Some(Err(deferred(rejection.message)));
        }
        let others = self.admitted_except(wanted);
        let allocated = self.devices().allocated_for_admission(&wanted.uid());
        let allocated = allocated.unwrap_or_default();
        let actuated = self.with_actuated_requests(before.clone());
        let wanted = &with_higher_requests(wanted, &actuated);
        let fits = if wanted.is_critical() {
            let fits = fits_critical(wanted, &object, &others, &allocated, false);
            fits.map_err(|error| self.make_room(wanted, error))
        } else {
            fits_with(wanted, &object, &others, &allocated).map_err(|why| why.message)
        };
        Some(fits.map_err(deferred))
    }

    /// Preempts pods for a critical one; returns the message of the deferred resize.
    fn make_room(&self, pod: &Pod, error: AdmissionError) -> String {
        match error {
            AdmissionError::Preempts { victims, resource } => {
                self.preempt(pod, victims, &resource);
                WAITS_FOR_PREEMPTED.to_owned()
            }
            AdmissionError::Deferred { message, .. } => message,
            AdmissionError::Rejected(rejection) => rejection.message,
        }
    }

    fn accept_resize(&mut self, before: &Pod, pod: Arc<Pod>, trigger: ResizeTrigger) {
        let uid = pod.uid();
        self.resizes.pending.remove(&uid);
        let generation = pod.metadata.generation;
        let allocations = self.allocations();
        allocations.resize(before, &pod);
        let was_deferred = allocations.change_conditions(&uid, |conditions| {
            conditions.undecided = false;
            conditions.in_progress = Some(ResizeInProgress { error: None, generation });
            let pending = conditions.pending.take();
            pending.is_some_and(|pending| pending.reason == PendingReason::Deferred)
        });
        if was_deferred {
            self.resizes.metrics.deferred_accepted.with([trigger.as_str()]).inc();
        }
        let text = event_message("Pod resize started", &pod, generation, "");
        self.pod_sync.normal_event(&pod, event::RESIZE_STARTED, text);
        self.pod_manager.set(pod.clone());
        self.publish_status(&pod);
        let update = UpdatePodOptions::sync(SyncPodType::Update, pod);
        self.workers.update_known_pod(update);
    }

    fn reject_resize(&mut self, before: &Arc<Pod>, pod: &Arc<Pod>, rejection: ResizeRejection) {
        let (uid, generation) = (pod.uid(), pod.metadata.generation);
        let pending =
            PendingResize { reason: rejection.reason, message: rejection.message, generation };
        let is_new =
            |old: &PendingResize| (old.reason, old.generation) != (pending.reason, generation);
        let (is_new, changed) = self.allocations().change_conditions(&uid, |conditions| {
            let was_undecided = std::mem::take(&mut conditions.undecided);
            let old = conditions.pending.replace(pending.clone());
            let is_new = old.as_ref().is_none_or(is_new);
            (is_new, was_undecided || old.as_ref() != Some(&pending))
        });
        if is_new {
            let what = format!("Pod resize {}", pending.reason.as_str());
            let text = event_message(&what, pod, generation, &pending.message);
            let reason = match pending.reason {
                PendingReason::Deferred => event::RESIZE_DEFERRED,
                PendingReason::Infeasible => event::RESIZE_INFEASIBLE,
            };
            self.pod_sync.warning_event(pod, reason, text);
        }
        if pending.reason == PendingReason::Infeasible {
            self.resizes.metrics.infeasible.with([rejection.detail]).inc();
            self.resizes.pending.remove(&uid);
        }
        if changed {
            self.publish_status(before);
        }
    }

    pub(super) fn allocations(&self) -> &Allocations {
        self.pod_sync.allocations()
    }
}
