//! Carries out admission; the rules are in [`super::admission`].

use super::SyncLoop;
use super::admission::{
    AdmissionError, AdmittedPods, PodAdmitAttributes, Rejection, admit, admit_before_devices,
    broken_by_running,
};
use super::dispatch::AdmissionOrder;
use super::pending_admission::{AdmissionWait, RETRY_INTERVAL};
use crate::base::clock;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, PodStatus, PodUid};
use crate::pods::pod_sync::syncer::TerminationReason;
use crate::pods::pod_workers::UpdatePodOptions;
use crate::resources::devices::{Affinities, AllocateError, DeviceAllocationError, DeviceManager};
use crate::resources::topology::TopologyError;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The reason for which a critical pod waits.
pub(super) const WAITS_FOR_PREEMPTED: &str = "waiting for preempted pods to terminate";
/// The event of a pod that already ran before the kubelet started and for which nothing could be allocated.
const WITHOUT_EXCLUSIVE_RESOURCES: &str = "The pod keeps running without exclusive CPUs and memory";
/// The event of a pod that already ran before the kubelet started and that breaks a rule for new pods.
const WOULD_NOT_BE_ADMITTED: &str = "The pod keeps running although it would not be admitted now";
/// The message of a preempted pod.
const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// Whether a pod may be running here already: if its runtime status is not settled (`None`), something of it may run
/// that was not read yet.
pub(super) fn may_be_running(settled: Option<&PodStatus>) -> bool {
    settled.is_none_or(PodStatus::may_be_running)
}

impl SyncLoop {
    /// How a new pod ran before.
    pub(super) fn admission_order(&self, uid: &PodUid) -> AdmissionOrder {
        if may_be_running(self.cache.try_settled(uid).as_deref()) {
            AdmissionOrder::MayBeRunning
        } else if self.pod_sync.allocations().is_allocated(uid) {
            AdmissionOrder::Admitted
        } else {
            AdmissionOrder::New
        }
    }

    /// Admits or rejects a pod; false if that is not decided yet and the pod is deferred. The status of a rejected pod
    /// is published as Failed; its worker then terminates it.
    pub(super) fn decide_admission(&mut self, pod: &Arc<Pod>, may_be_running: bool) -> bool {
        let admitted = self.run_admit_handlers(pod, may_be_running);
        let Some(admitted) = self.decided(pod, admitted) else {
            return false;
        };
        let admitted = match admitted {
            Err(rejection) => Err(self.prefer_manager_rejection(pod, rejection)),
            Ok(()) => {
                let allocated = self.allocate_cpus_and_memory(pod, may_be_running);
                let Some(allocated) = self.decided(pod, allocated) else {
                    return false;
                };
                allocated
            }
        };
        if let Err(rejection) = admitted {
            // The containers of a pod that may be running use its devices until they have stopped.
            if !may_be_running {
                self.devices().release(&pod.uid());
            }
            self.pod_sync.reject(pod, rejection.reason, &rejection.message);
        } else {
            self.pod_sync.allocations().allocate(pod);
        }
        true
    }

    /// Whether a pod is admitted or rejected by the outcome of an admission rule; `None` if it waits, deferred.
    fn decided(
        &mut self,
        pod: &Pod,
        outcome: Result<(), AdmissionError>,
    ) -> Option<Result<(), Rejection>> {
        match outcome {
            Ok(()) => Some(Ok(())),
            Err(AdmissionError::Rejected(rejection)) => Some(Err(rejection)),
            Err(AdmissionError::Deferred { message, on_timeout, delay_event, is_ending }) => {
                let event_delay = if delay_event { RETRY_INTERVAL } else { Duration::ZERO };
                let may_time_out = on_timeout.is_none() || !(pod.is_static() && is_ending);
                let wait = self.wait_for_admission(pod, &message, event_delay);
                (wait == AdmissionWait::TimedOut && may_time_out).then(|| {
                    self.deferred.remove(&pod.uid());
                    on_timeout.map_or(Ok(()), Err)
                })
            }
            Err(AdmissionError::Preempts { victims, resource }) => {
                self.preempt(pod, victims, &resource);
                let wait = self.wait_for_admission(pod, WAITS_FOR_PREEMPTED, Duration::ZERO);
                (wait == AdmissionWait::TimedOut).then(|| {
                    self.deferred.remove(&pod.uid());
                    Ok(())
                })
            }
        }
    }

    /// Kills the victims of a critical pod.
    pub(super) fn preempt(&self, pod: &Pod, victims: Vec<Arc<Pod>>, resource: &str) {
        let pod_manager = self.pod_manager.reader();
        // The victims carry the requests of `with_actuated_requests`; the stored pod is killed instead.
        for victim in victims {
            let victim = pod_manager.get(&victim.uid()).unwrap_or(victim);
            tracing::info!(
                pod = %victim.log_name(),
                podUID = %victim.uid(),
                resource,
                requestingPod = %pod.log_name(),
                "Preempting pod to free up resources"
            );
            self.pod_sync.warning_event(&victim, event::PREEMPTING, PREEMPTED);
            self.metrics.preempted(resource);
            let reason = TerminationReason::Evicted {
                reason: event::PREEMPTING.to_owned(),
                message: PREEMPTED.to_owned(),
                disruption: true,
            };
            self.workers.update_pod(UpdatePodOptions::kill(victim, reason));
        }
    }

    /// Allocates exclusive CPUs and memory to a pod, the last step of its admission. A pod that may be running keeps what
    /// it has; one with devices got them with its devices.
    fn allocate_cpus_and_memory(
        &self,
        pod: &Pod,
        may_be_running: bool,
    ) -> Result<(), AdmissionError> {
        let Err(error) = self.admit_resources(pod, may_be_running) else {
            return Ok(());
        };
        if may_be_running {
            tracing::warn!(
                pod = %pod.log_name(),
                podUID = %pod.uid(),
                err = %error,
                "Failed to allocate exclusive resources of a pod that runs already"
            );
            let text = format!("{WITHOUT_EXCLUSIVE_RESOURCES}: {error}");
            self.pod_sync.warning_event(pod, error.reason, text);
            return Ok(());
        }
        Err(self.topology_error(pod, error))
    }

    /// A pod for which no exclusive CPUs or memory are left waits if those of pods that are being stopped are enough.
    fn topology_error(&self, pod: &Pod, error: TopologyError) -> AdmissionError {
        let rejection = Rejection::new(error.reason, error.message);
        let resources = &self.admission.resources;
        let mut leaving = resources.pods();
        leaving.retain(|uid| *uid != pod.uid() && self.will_release(uid));
        let devices = |nodes| self.devices().hints(pod, nodes);
        if leaving.is_empty() || !resources.could_admit_without(pod, &leaving, devices) {
            return AdmissionError::Rejected(rejection);
        }
        AdmissionError::Deferred {
            message: format!(
                "waiting for exclusive CPUs and memory of terminating pods: {}",
                rejection.message
            ),
            on_timeout: Some(rejection),
            delay_event: false,
            is_ending: self.is_any_being_stopped(&leaving),
        }
    }

    fn admit_resources(
        &self,
        pod: &Pod,
        may_be_running: bool,
    ) -> Result<Affinities, TopologyError> {
        // Without a policy, ended pods have nothing that this one could get; `on_finished` forgets them.
        if self.admission.resources.is_on() {
            self.release_resources();
        }
        let devices = |nodes| self.devices().hints(pod, nodes);
        self.admission.resources.admit(pod, may_be_running, devices)
    }

    /// The rejection of the resource managers in place of `rejection`, if they would reject the pod, too. Upstream runs
    /// the managers before it compares requests with the node's resources, so users expect the managers' reason.
    /// Allocates nothing.
    fn prefer_manager_rejection(&self, pod: &Pod, rejection: Rejection) -> Rejection {
        if !matches!(rejection.reason.as_ref(), "OutOfcpu" | "OutOfmemory") {
            return rejection;
        }
        let devices = |nodes| self.devices().hints(pod, nodes);
        match self.admission.resources.check(pod, devices) {
            Ok(()) => rejection,
            Err(error) => Rejection { reason: error.reason.into(), message: error.message },
        }
    }

    /// Releases the exclusive resources of pods that are not desired or have a terminal status, and that run neither
    /// according to their worker nor to the runtime status. Before the first full housekeeping, a pod without a worker
    /// counts as running.
    pub(super) fn release_resources(&self) {
        let pod_manager = self.pod_manager.reader();
        self.admission.resources.retain(|uid| {
            pod_manager.contains(uid) && !self.pod_sync.has_terminal_status(uid)
                || self.workers.could_have_running_containers(uid)
                || may_be_running(self.cache.try_settled(uid).as_deref())
        });
    }

    /// Applies the admission rules. Also allocates devices, CPUs and memory: a failed allocation rejects the pod.
    fn run_admit_handlers(&self, pod: &Pod, may_be_running: bool) -> Result<(), AdmissionError> {
        let admission = &self.admission;
        let node = admission.node.borrow().clone();
        let others = if node.is_some() && !may_be_running {
            self.admitted_except(pod)
        } else {
            AdmittedPods::default()
        };
        let before = PodAdmitAttributes {
            sysctls: &admission.sysctls,
            app_armor: admission.app_armor,
            supplemental_groups_policy: admission.features.borrow().supplemental_groups_policy,
            pressure: *admission.pressure.borrow(),
            shutting_down: *admission.shutting_down.borrow(),
            may_be_running,
            node: node.as_deref(),
            initial_node: &admission.initial_node,
            standalone: admission.standalone,
            others: &others,
            device_error: None,
            allocated_devices: &BTreeMap::new(),
        };
        if may_be_running {
            self.devices().mark_running(pod);
            if let Some(Rejection { reason, message }) = broken_by_running(pod, &before) {
                let text = format!("{WOULD_NOT_BE_ADMITTED}: {message}");
                self.pod_sync.warning_event(pod, reason, text);
            }
            return Ok(());
        }
        // The other rules first: a pod that one of them rejects must not make a device plugin prepare devices.
        let device_error = if admit_before_devices(pod, &before).is_ok() {
            self.allocate_devices(pod).err()
        } else {
            None
        };
        let allocated_devices = self.devices().allocated_for_admission(&pod.uid());
        let attributes = PodAdmitAttributes {
            device_error: device_error.as_ref(),
            allocated_devices: &allocated_devices.unwrap_or_default(),
            ..before
        };
        admit(pod, &attributes)
    }

    /// Whether the pod is terminating, so its resources become free without eviction.
    pub(super) fn is_terminating(&self, pod: &Pod) -> bool {
        let uid = pod.uid();
        self.pod_sync.has_terminal_status(&uid)
            || pod.is_being_deleted()
            || self.workers.is_pod_termination_requested(&uid)
    }

    /// Defers a pod that cannot be admitted now, with an event after `event_delay`.
    fn wait_for_admission(&mut self, pod: &Pod, why: &str, event_delay: Duration) -> AdmissionWait {
        let uid = pod.uid();
        if self.pending_admissions.why(&uid) != Some(why) {
            self.defer(pod, why);
        }
        self.deferred.insert(uid.clone());
        let wait = self.pending_admissions.wait(uid, why, clock::instant(), event_delay);
        if wait == AdmissionWait::EmitEvent {
            self.pod_sync.warning_event(pod, event::ADMISSION_PENDING, why);
        }
        wait
    }

    /// Whether a pod waits for admission, or for a resize.
    pub(super) fn has_waiting_pods(&self) -> bool {
        !self.pending_admissions.is_empty() || self.resizes.has_pending()
    }

    /// Retries the admission of waiting pods, longest wait first.
    pub(super) fn retry_pending_admissions(&mut self) {
        let pod_manager = self.pod_manager.reader();
        for uid in self.pending_admissions.in_order() {
            if let Some(pod) = pod_manager.get(&uid) {
                self.create_deferred(pod);
            } else {
                self.pending_admissions.remove(&uid);
            }
        }
    }

    pub(super) fn devices(&self) -> &DeviceManager {
        &self.pod_sync.devices().plugins
    }

    /// Allocates devices to a pod, after the CPUs and memory near to them, so that no other pod gets these while device
    /// plugins respond. If devices cannot be allocated, a new pod releases its CPUs and memory; one that was admitted
    /// before a restart of the kubelet keeps them.
    fn allocate_devices(&self, pod: &Pod) -> Result<(), AdmissionError> {
        let allocated = self.devices().allocate(pod, || self.admit_resources(pod, false));
        let uid = pod.uid();
        if matches!(allocated, Err(AllocateError::Failed(_)))
            && !self.allocations().is_allocated(&uid)
        {
            self.admission.resources.retain(|other| *other != uid);
        }
        match allocated {
            Ok(()) => Ok(()),
            Err(AllocateError::InProgress) => Err(AdmissionError::Deferred {
                message: "waiting for device plugins to prepare the pod's devices".into(),
                on_timeout: Some(rejection("the device plugins did not respond in time")),
                delay_event: true,
                is_ending: false,
            }),
            Err(AllocateError::Failed(error)) => Err(self.admission_error(&error)),
            Err(AllocateError::Misaligned(error)) => Err(self.topology_error(pod, error)),
        }
    }

    fn admission_error(&self, error: &DeviceAllocationError) -> AdmissionError {
        let text = error.to_string();
        let exhausted = error.exhausted_resource();
        let using = exhausted.map(|resource| self.devices().pods_using(resource));
        let leaving: HashSet<_> =
            using.into_iter().flatten().filter(|uid| self.will_release(uid)).collect();
        if error.is_transient() || !leaving.is_empty() {
            AdmissionError::Deferred {
                message: format!("waiting for devices: {text}"),
                on_timeout: Some(rejection(&text)),
                delay_event: false,
                is_ending: self.is_any_being_stopped(&leaving),
            }
        } else {
            AdmissionError::Rejected(rejection(&text))
        }
    }

    /// Whether a pod is terminating or gone, so that its devices become free.
    fn will_release(&self, uid: &PodUid) -> bool {
        let pod = self.pod_manager.reader().get(uid);
        pod.is_none_or(|pod| self.is_terminating(&pod))
    }

    fn is_any_being_stopped(&self, uids: &HashSet<PodUid>) -> bool {
        uids.iter().any(|uid| self.workers.is_pod_termination_requested(uid))
    }
}

fn rejection(error: &str) -> Rejection {
    Rejection::new(
        "UnexpectedAdmissionError",
        format!("Allocate failed due to {error}, which is unexpected"),
    )
}
