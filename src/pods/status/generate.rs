//! The API status of a pod, as a function of what is known about it. Pure.
//!
//! Everything a person sees with `kubectl get pod -o yaml` or in `/pods` is decided here, from the
//! runtime status, the probe results and the old status. Upstream:
//! `generateAPIPodStatus` and `pkg/kubelet/status/generate.go`.

mod conditions;
mod container_status;
mod phase;
mod resources;
mod restart_all;
mod states;
#[cfg(test)]
mod tests;
pub(in crate::pods) mod transition;

pub use conditions::{DISRUPTION_TARGET, carry_transition_times, is_owned};
pub(in crate::pods::status) use container_status::{
    CONTAINER_LOST, INIT_CONTAINER_LOST, unknown_exit,
};
pub use phase::PodPhase;
pub use transition::IllegalTransition;

use crate::model::reasons::event;
use crate::model::{self, ContainerId, Pod, PodExt};
use crate::resources::allocation::ResizeConditions;
use crate::runtime::kuberuntime::RestartAllStage;
use crate::state::probe_results::ContainerProbeResults;
use conditions::generate_conditions;
use container_status::{ContainerList, container_statuses};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, HostIP, PodIP, PodStatus, ResourceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use phase::pod_phase;
use std::borrow::Cow;

/// Bytes that the termination messages of all containers of a pod share.
const POD_MESSAGE_BYTES: usize = 12 * 1024;

/// Reason and message of a pod that the node fails: for its deadline or by an eviction, for example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFailure {
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// It has the condition `DisruptionTarget`: its controller does not count the end as a failure.
    pub disruption: bool,
}

/// Everything a pod's status is made from.
#[derive(Clone, Copy)]
pub struct StatusInputs<'a> {
    /// The pod with its allocated resources in place of the requested ones. Containers that a running sync replaces
    /// have `restartPolicy: Always`.
    pub pod: &'a Pod,
    /// What the runtime has of it.
    pub runtime: &'a model::PodStatus,
    /// The runtime's name, for ids such as `containerd://0123`.
    pub runtime_name: &'a str,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: &'a str,
    /// Probe results of a container instance.
    pub probe_results: &'a dyn Fn(&ContainerId) -> ContainerProbeResults,
    /// Reason and message of a container's last start if that failed; cleared by a successful start.
    pub start_failure: &'a dyn Fn(&str) -> Option<(String, String)>,
    /// Message of a container's restart back-off if it holds the container back at `now`.
    pub back_off: &'a dyn Fn(&str) -> Option<String>,
    /// The old status: published by this process, or recorded by an earlier one.
    pub old: Option<&'a PodStatus>,
    /// What the API server has: the pod's own status, or that of a static pod's mirror, of which only the
    /// conditions of other writers count.
    pub api_status: Option<&'a PodStatus>,
    /// The pod has no usable sandbox.
    pub needs_new_sandbox: bool,
    /// Progress of restarting all containers.
    pub restart_all: RestartAllStage,
    /// All containers have ended, and none is started again.
    pub pod_is_terminal: bool,
    /// The node's addresses; empty without an API server.
    pub host_ips: &'a [String],
    /// Set when something else than a container failed the pod.
    pub pod_failure: Option<&'a PodFailure>,
    /// The resize conditions of the pod.
    pub resize: &'a ResizeConditions,
    /// The pod with its actuated resources, while they differ from the allocated ones.
    pub actuated_pod: Option<&'a Pod>,
    /// The health of a container's devices, if it has some.
    pub device_health: &'a dyn Fn(&str) -> Option<Vec<ResourceStatus>>,
    /// The runtime can mount a whole tree read-only.
    pub recursive_read_only_mounts: bool,
    /// Wall clock.
    pub now: Timestamp,
}

impl<'a> StatusInputs<'a> {
    /// The status to build on: the old one, else that of the API server.
    fn baseline(&self) -> Cow<'a, PodStatus> {
        match self.old.or(self.api_status_of_pod()) {
            Some(status) => Cow::Borrowed(status),
            None => Cow::Owned(PodStatus::default()),
        }
    }

    /// The generation that the status shows as observed: the last one while a resize is not decided.
    fn observed_generation(&self, old: &PodStatus) -> Option<i64> {
        if self.resize.undecided { old.observed_generation } else { self.pod.metadata.generation }
    }

    /// The status of a mirror pod never changes its static pod: a Failed mirror pod must not end it.
    fn api_status_of_pod(&self) -> Option<&'a PodStatus> {
        self.api_status.filter(|_| !self.pod.is_static())
    }
}

/// Generates the status. An error means that the runtime status contradicts the old status (a container
/// that had ended for good runs again); the caller keeps the old status.
pub fn generate_api_pod_status(inputs: &StatusInputs<'_>) -> Result<PodStatus, IllegalTransition> {
    let old = inputs.baseline();
    let mut init =
        container_statuses(inputs, list(&old.init_container_statuses), ContainerList::Init);
    let mut regular =
        container_statuses(inputs, list(&old.container_statuses), ContainerList::Regular);
    limit_messages(&mut init, &mut regular);
    let ephemeral = list(&old.ephemeral_container_statuses);
    let ephemeral = container_statuses(inputs, ephemeral, ContainerList::Ephemeral);

    let generated = pod_phase(inputs.pod, &init, &regular, inputs.pod_is_terminal);
    let (phase, reason, message) = final_phase(inputs, &old, generated);
    let before = list(&old.conditions);
    let observed_generation = inputs.observed_generation(&old);
    let mut conditions =
        generate_conditions(inputs, observed_generation, &init, &regular, phase, before);
    carry_transition_times(&mut conditions, before, inputs.now);
    let (pod_ip, pod_ips) = pod_ips(inputs, &old);

    let of_host = |ip: &String| HostIP { ip: ip.clone() };
    let host_ips = inputs.host_ips.iter().map(of_host).collect();

    let allocated = resources::of_pod(inputs.pod);
    let actuated_pod = inputs.actuated_pod.filter(|_| phase == PodPhase::Running);
    let actuated_pod = actuated_pod.map(resources::of_pod);
    let status = PodStatus {
        allocated_resources: allocated.requests.clone(),
        resources: Some(actuated_pod.unwrap_or(allocated)),
        conditions: Some(conditions),
        container_statuses: none_if_empty(regular),
        ephemeral_container_statuses: none_if_empty(ephemeral),
        host_ip: inputs.host_ips.first().cloned(),
        host_ips: none_if_empty(host_ips),
        init_container_statuses: none_if_empty(init),
        message,
        observed_generation,
        phase: Some(phase.as_str().into()),
        pod_ip,
        pod_ips,
        qos_class: Some(inputs.qos_class.into()),
        reason,
        start_time: Some(start_time(inputs, &old)),
        ..PodStatus::default()
    };
    transition::check(inputs.pod, &old, &status)?;
    Ok(status)
}

/// A terminal phase stays; otherwise `pod_failure` overrides the phase of the containers. As upstream, a preempted pod
/// has succeeded if all of its containers exit with 0.
fn final_phase(
    inputs: &StatusInputs<'_>,
    old: &PodStatus,
    generated: PodPhase,
) -> (PodPhase, Option<String>, Option<String>) {
    let api = inputs.api_status_of_pod();
    let known = |status: &PodStatus| status.phase.as_deref().and_then(PodPhase::parse);
    let ended =
        [api.and_then(known), known(old)].into_iter().flatten().find(|phase| phase.is_terminal());
    let phase = match (ended, inputs.pod_failure) {
        (Some(ended), _) => ended,
        (None, Some(failure))
            if failure.reason == event::PREEMPTING
                && (generated == PodPhase::Succeeded || !inputs.pod_is_terminal) =>
        {
            generated
        }
        (None, Some(_)) => PodPhase::Failed,
        (None, None) => generated,
    };
    let (mut reason, mut message) = (None, None);
    if known(old) == Some(phase) {
        reason = non_empty(&old.reason).or_else(|| non_empty(&api?.reason));
        message = non_empty(&old.message).or_else(|| non_empty(&api?.message));
    }
    if let Some(failure) = inputs.pod_failure
        && phase == PodPhase::Failed
        && reason.is_none()
    {
        reason = Some(failure.reason.clone());
        message = Some(failure.message.clone());
    }
    (phase, reason, message)
}

/// Addresses of the sandbox. Without a ready sandbox, the old addresses are kept; a host-network pod has the node's.
fn pod_ips(inputs: &StatusInputs<'_>, old: &PodStatus) -> (Option<String>, Option<Vec<PodIP>>) {
    let runtime = inputs.runtime.ips();
    let ips: Vec<PodIP> = if !runtime.is_empty() {
        runtime.iter().map(|ip| PodIP { ip: ip.clone() }).collect()
    } else if inputs.runtime.ready_sandboxes().next().is_none() && !list(&old.pod_ips).is_empty() {
        list(&old.pod_ips).to_vec()
    } else if inputs.pod.host_network() {
        let of_host = |ip: &String| PodIP { ip: ip.clone() };
        inputs.host_ips.iter().map(of_host).collect()
    } else {
        Vec::new()
    };
    (ips.first().map(|first| first.ip.clone()), none_if_empty(ips))
}

/// When this pod was first seen.
fn start_time(inputs: &StatusInputs<'_>, old: &PodStatus) -> Time {
    let first_seen = || Time(whole_seconds(inputs.now));
    old.start_time.clone().unwrap_or_else(first_seen)
}

/// Truncates each termination message to an equal share of [`POD_MESSAGE_BYTES`].
fn limit_messages(init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
    let share = POD_MESSAGE_BYTES / (init.len() + regular.len()).max(1);
    let states = init
        .iter_mut()
        .chain(regular)
        .flat_map(|status| [status.state.as_mut(), status.last_state.as_mut()]);
    for message in states.flatten().filter_map(|state| state.terminated.as_mut()?.message.as_mut())
    {
        message.truncate(message.floor_char_boundary(share));
    }
}

/// The timestamp without its fraction of a second: that is all the API shows.
pub(in crate::pods::status) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn list<T>(optional: &Option<Vec<T>>) -> &[T] {
    optional.as_deref().unwrap_or_default()
}

fn none_if_empty<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}

fn non_empty(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}
