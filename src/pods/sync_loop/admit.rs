//! Admission of pods, with its effects: the rules are in [`super::admission`].

use super::{
    SyncLoop,
    admission::{AdmissionRefusal, NodeView, Others, Rejection, admit, may_have_devices},
    dispatch::Precedence,
    waiting::{INTERVAL, Wait},
};
use crate::{
    model::{Pod, PodExt, PodStatus, PodUid, reasons::event},
    pods::{pod_sync::syncer::TerminationReason, pod_workers::UpdateOptions},
    resources::devices::{DeviceAllocationError, DeviceManager, Unallocated},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The reason of a critical pod's wait.
pub(super) const WAITS_FOR_PREEMPTED: &str = "waiting for preempted pods to terminate";
/// The message of a pod that runs on although nothing could be allocated for it.
const NOTHING_EXCLUSIVE: &str = "The pod keeps running without exclusive CPUs and memory";
/// The message of a preempted pod.
const PREEMPTED: &str = "Preempted in order to admit critical pod";

impl SyncLoop {
    /// Whether a pod runs here, or may run, where its runtime status is not `settled`.
    pub(super) fn runs(&self, uid: &PodUid, settled: Option<&PodStatus>) -> bool {
        settled.map_or_else(
            || !self.cache.latest(uid).is_empty(),
            |status| status.is_active(),
        )
    }

    /// What is known of a new pod from before.
    pub(super) fn precedence(&self, uid: &PodUid) -> Precedence {
        if self.runs(uid, self.cache.try_settled(uid).as_deref()) {
            Precedence::Runs
        } else if self.pod_sync.allocations().knows(uid) {
            Precedence::Admitted
        } else {
            Precedence::New
        }
    }

    /// Publishes the pod as failed if the node rejects it; its worker then ends it. False if the pod is held because
    /// it may be admitted in a moment.
    pub(super) fn admit(&mut self, pod: &Arc<Pod>, runs: bool) -> bool {
        let rejection = match self.check_admission(pod, runs) {
            Ok(()) => None,
            Err(AdmissionRefusal::Rejected(rejection)) => Some(rejection),
            Err(AdmissionRefusal::NotYet {
                why,
                rejection,
                brief,
            }) => {
                let quiet = if brief { INTERVAL } else { Duration::ZERO };
                if !self.admission_timed_out(pod, &why, quiet) {
                    return false;
                }
                rejection
            }
            Err(AdmissionRefusal::Preempts { victims, resource }) => {
                self.preempt(pod, victims, &resource);
                if !self.admission_timed_out(pod, WAITS_FOR_PREEMPTED, Duration::ZERO) {
                    return false;
                }
                None
            }
        };
        let rejection = match rejection {
            Some(rejection) => Some(self.why_nothing_exclusive(pod, rejection)),
            None => self.allocate(pod, runs).err(),
        };
        if let Some(rejection) = rejection {
            self.metrics.rejected(&rejection);
            self.devices().release(&pod.uid());
            self.pod_sync
                .reject(pod, rejection.reason, &rejection.message);
        } else {
            self.pod_sync.allocations().allocate(pod);
        }
        true
    }

    /// Stops pods that make room for a critical one.
    pub(super) fn preempt(&self, pod: &Pod, victims: Vec<Arc<Pod>>, resource: &str) {
        for victim in victims {
            tracing::info!(
                pod = %victim.log_name(),
                podUID = %victim.uid(),
                resource,
                requestingPod = %pod.log_name(),
                "Preempting pod to free up resources"
            );
            self.pod_sync.warn(&victim, event::PREEMPTING, PREEMPTED);
            self.metrics.preempted(resource);
            let reason = TerminationReason::Evicted {
                reason: event::PREEMPTING.to_owned(),
                message: PREEMPTED.to_owned(),
                disruption: true,
            };
            self.workers.update_pod(UpdateOptions::kill(victim, reason));
        }
    }

    /// Allocates the exclusive resources of a pod, the last step of its admission. A pod that runs keeps what it has.
    fn allocate(&self, pod: &Pod, runs: bool) -> Result<(), Rejection> {
        self.release_resources();
        let devices = |nodes| self.devices().hints(pod, nodes);
        let Err(error) = self.admission.resources.admit(pod, runs, devices) else {
            return Ok(());
        };
        if runs {
            tracing::warn!(
                pod = %pod.log_name(),
                podUID = %pod.uid(),
                err = %error,
                "Failed to allocate exclusive resources of a pod that runs already"
            );
            let text = format!("{NOTHING_EXCLUSIVE}: {error}");
            self.pod_sync.warn(pod, error.reason, text);
            return Ok(());
        }
        Err(Rejection {
            reason: error.reason.into(),
            message: error.message,
        })
    }

    /// Upstream allocates exclusive resources before it compares requests with the node's resources, so that a pod that
    /// asks for more than there is of both is rejected by the managers. Allocates nothing.
    fn why_nothing_exclusive(&self, pod: &Pod, rejection: Rejection) -> Rejection {
        if !matches!(rejection.reason.as_ref(), "OutOfcpu" | "OutOfmemory") {
            return rejection;
        }
        let devices = |nodes| self.devices().hints(pod, nodes);
        match self.admission.resources.check(pod, devices) {
            Ok(()) => rejection,
            Err(error) => Rejection {
                reason: error.reason.into(),
                message: error.message,
            },
        }
    }

    /// Gives back the exclusive resources of pods that are gone. Before all sources have delivered, those that an
    /// earlier kubelet admitted may still come.
    pub(super) fn release_resources(&self) {
        let manager = self.manager.reader();
        let all_known = self.sources.all_seen();
        self.admission.resources.release(all_known, |uid| {
            manager.contains(uid) && !self.has_ended(uid)
                || self.workers.could_have_running_containers(uid)
                || self.cache.latest(uid).is_active()
        });
    }

    fn check_admission(&self, pod: &Pod, runs: bool) -> Result<(), AdmissionRefusal> {
        let admission = &self.admission;
        let object = admission.node.borrow().clone();
        let others = if object.is_some() && !runs {
            self.admitted_except(&pod.uid())
        } else {
            Others::default()
        };
        let before = NodeView {
            sysctls: &admission.sysctls,
            app_armor: admission.app_armor,
            certificates: admission.certificates,
            supplemental_groups_policy: admission.features.borrow().supplemental_groups_policy,
            pressure: *admission.pressure.borrow(),
            shutting_down: *admission.shutting_down.borrow(),
            in_place: runs,
            object: object.as_deref(),
            standalone: admission.standalone,
            others: &others,
            devices: None,
            allocated: &BTreeMap::new(),
        };
        let devices = if runs || may_have_devices(pod, &before).is_ok() {
            self.allocate_devices(pod, runs).err()
        } else {
            None
        };
        let allocated = self.devices().allocated_to_others(&pod.uid());
        let node = NodeView {
            devices: devices.as_ref(),
            allocated: &allocated.unwrap_or_default(),
            ..before
        };
        admit(pod, &node)
    }

    /// Whether the pod is terminating, so its resources become free without eviction.
    pub(super) fn is_ending(&self, pod: &Pod) -> bool {
        let uid = pod.uid();
        self.has_ended(&uid)
            || pod.is_being_deleted()
            || self.workers.is_pod_termination_requested(&uid)
    }

    /// Desired pods that use up the node: all that have a worker and of which something may run.
    pub(super) fn admitted_except(&self, uid: &PodUid) -> Others {
        let mut others = Others::default();
        for pod in self.manager.reader().pods() {
            let other = pod.uid();
            let in_use =
                || !self.has_ended(&other) || self.workers.could_have_running_containers(&other);
            if other == *uid || !self.workers.knows(&other) || !in_use() {
                continue;
            }
            if self.is_ending(&pod) {
                others.ending.push(pod);
            } else {
                others.staying.push(pod);
            }
        }
        others
    }

    /// Whether the wait for admission has timed out; if not, the pod is held, with an event after `event_delay`.
    fn admission_timed_out(&mut self, pod: &Pod, why: &str, event_delay: Duration) -> bool {
        let uid = pod.uid();
        if !self.waiting.contains(&uid) {
            self.hold(pod, why);
        }
        let wait = self.waiting.wait(uid.clone(), Instant::now(), event_delay);
        if wait == Wait::TimedOut {
            return true;
        }
        self.held.insert(uid);
        if wait == Wait::Announce {
            self.pod_sync.warn(pod, event::ADMISSION_PENDING, why);
        }
        false
    }

    /// A pod waits for its place, or for more of the node.
    pub(super) fn something_waits(&self) -> bool {
        !self.waiting.is_empty() || self.resizes.is_some_wanted()
    }

    /// Tries again to admit the pods that wait, those that wait longest first.
    pub(super) fn retry_waiting(&mut self) {
        let manager = self.manager.reader();
        for uid in self.waiting.in_order() {
            if let Some(pod) = manager.get(&uid) {
                self.create_held(pod);
            } else {
                self.waiting.remove(&uid);
            }
        }
    }

    pub(super) fn devices(&self) -> &DeviceManager {
        &self.pod_sync.devices().plugins
    }

    /// Has devices allocated for a pod, unless it runs: what it has then, it keeps.
    fn allocate_devices(&self, pod: &Pod, runs: bool) -> Result<(), AdmissionRefusal> {
        if runs {
            self.devices().mark_running(pod);
            return Ok(());
        }
        let hints = |nodes| self.devices().hints(pod, nodes);
        let align = || self.admission.resources.align(pod, hints);
        match self.devices().allocate(pod, align) {
            Ok(()) => Ok(()),
            Err(Unallocated::InProgress) => Err(AdmissionRefusal::NotYet {
                why: "device plugins are preparing its devices".into(),
                rejection: Some(rejection("the device plugins did not respond in time")),
                brief: true,
            }),
            Err(Unallocated::Failed(error)) => Err(self.refusal(&error)),
            Err(Unallocated::Misaligned(error)) => Err(AdmissionRefusal::Rejected(Rejection::new(
                error.reason,
                error.message,
            ))),
        }
    }

    fn refusal(&self, error: &DeviceAllocationError) -> AdmissionRefusal {
        let text = error.to_string();
        let waits = error.may_pass()
            || error.short_of().is_some_and(|resource| {
                let holders = self.devices().holders(resource);
                holders.iter().any(|uid| self.gives_back(uid))
            });
        if waits {
            AdmissionRefusal::NotYet {
                why: format!("waiting for devices: {text}"),
                rejection: Some(rejection(&text)),
                brief: false,
            }
        } else {
            AdmissionRefusal::Rejected(rejection(&text))
        }
    }

    /// Whether a pod that has devices is ending, or gone.
    fn gives_back(&self, uid: &PodUid) -> bool {
        let wanted = self.manager.reader().get(uid);
        wanted.is_none_or(|pod| self.is_ending(&pod))
    }
}

fn rejection(error: &str) -> Rejection {
    Rejection::new(
        "UnexpectedAdmissionError",
        format!("Allocate failed due to {error}, which is unexpected"),
    )
}
