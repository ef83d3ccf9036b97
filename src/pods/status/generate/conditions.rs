//! The pod conditions that a kubelet owns.

use super::phase::{PodPhase, any_regular_started};
use super::{PodFailure, StatusInputs, restart_all, whole_seconds};
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, is_sidecar};
use crate::resources::allocation::ResizeConditions;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Condition types that the kubelet writes; every other type belongs to another writer and is kept
/// as it is.
const OWNED: [&str; 6] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "AllContainersRestarting",
];

/// The condition of a pod that the kubelet terminated by eviction, preemption or node shutdown; the eviction API sets
/// it, too.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Whether the kubelet writes conditions of this type.
pub fn is_owned(condition: &PodCondition) -> bool {
    let type_ = condition.type_.as_str();
    OWNED.contains(&type_) || ResizeConditions::TYPES.contains(&type_)
}

/// A condition's status with the reason and message that explain it.
#[derive(Clone, Debug, Default, PartialEq)]
struct ConditionStatus {
    is_true: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl ConditionStatus {
    fn met() -> Self {
        Self { is_true: true, ..Self::default() }
    }

    fn unmet(reason: &'static str, message: Option<String>) -> Self {
        Self { is_true: false, reason: Some(reason), message }
    }

    fn condition(self, kind: &str, observed_generation: Option<i64>) -> PodCondition {
        PodCondition {
            type_: kind.into(),
            status: if self.is_true { "True" } else { "False" }.into(),
            reason: self.reason.map(Into::into),
            message: self.message,
            observed_generation,
            ..PodCondition::default()
        }
    }
}

/// All conditions: conditions of other writers first, then the kubelet's own. Transition times are not set.
pub(super) fn generate_conditions(
    inputs: &StatusInputs<'_>,
    observed: Option<i64>,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    phase: PodPhase,
    old: &[PodCondition],
) -> Vec<PodCondition> {
    let pod = inputs.pod;
    let api = inputs.api_status.and_then(|status| status.conditions.as_deref());
    let mut conditions: Vec<PodCondition> =
        api.unwrap_or_default().iter().filter(|condition| !is_owned(condition)).cloned().collect();
    let to_start =
        ConditionStatus { is_true: !inputs.needs_new_sandbox, ..ConditionStatus::default() };
    let containers_ready = containers_ready(pod, init, regular, phase);
    let ready = if containers_ready.is_true {
        readiness_gates(pod, &conditions)
    } else {
        containers_ready.clone()
    };
    let restarting = restart_all::condition(inputs, phase).map(|(is_true, reason, message)| {
        ConditionStatus { is_true, reason, message: message.map(str::to_string) }
    });
    let was_initialized =
        old.iter().any(|before| before.type_ == "Initialized" && before.status == "True");
    let statuses = [
        Some(to_start),
        Some(initialized(pod, init, regular, phase, was_initialized)),
        Some(ready),
        Some(containers_ready),
        Some(ConditionStatus::met()),
        restarting,
    ];
    let owned = OWNED.iter().zip(statuses);
    conditions.extend(
        owned.filter_map(|(kind, status)| status.map(|status| status.condition(kind, observed))),
    );
    if !phase.is_terminal() && !inputs.pod_is_terminal {
        conditions.extend(inputs.resize.to_api());
    }
    if let Some(failure) = inputs.pod_failure.filter(|failure| failure.disruption) {
        conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
        let target = ConditionStatus {
            is_true: true,
            reason: Some("TerminationByKubelet"),
            message: Some(disruption_message(failure).to_owned()),
        };
        conditions.push(target.condition(DISRUPTION_TARGET, observed));
    }
    conditions
}

/// Upstream has another text for preempted pods.
fn disruption_message(failure: &PodFailure) -> &str {
    if failure.reason == event::PREEMPTING {
        "Pod was preempted by Kubelet to accommodate a critical pod."
    } else {
        &failure.message
    }
}

fn initialized(
    pod: &Pod,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    phase: PodPhase,
    was_initialized: bool,
) -> ConditionStatus {
    let done = |container: &Container, status: &ContainerStatus| {
        if is_sidecar(container) { status.started == Some(true) } else { status.ready }
    };
    let containers = partition(pod.init_containers().iter(), init, done);
    if phase == PodPhase::Succeeded && containers.unknown.is_empty() {
        return ConditionStatus { reason: Some("PodCompleted"), ..ConditionStatus::met() };
    }
    match containers.message("incomplete") {
        // Initialized stays True, also while all containers are restarted.
        Some(_) if any_regular_started(regular) || was_initialized => ConditionStatus::met(),
        Some(message) => ConditionStatus::unmet("ContainersNotInitialized", Some(message)),
        None => ConditionStatus::met(),
    }
}

fn containers_ready(
    pod: &Pod,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    phase: PodPhase,
) -> ConditionStatus {
    if init.is_empty() && regular.is_empty() {
        return ConditionStatus::unmet("UnknownContainerStatuses", None);
    }
    let sidecars = pod.init_containers().iter().filter(|c| is_sidecar(c));
    let mut containers = partition(sidecars, init, |_, status| status.ready);
    let of_regular = partition(pod.containers().iter(), regular, |_, status| status.ready);
    containers.unknown.extend(of_regular.unknown);
    containers.unmet.extend(of_regular.unmet);
    match phase {
        PodPhase::Succeeded if containers.unknown.is_empty() => {
            ConditionStatus::unmet("PodCompleted", None)
        }
        PodPhase::Failed => ConditionStatus::unmet("PodFailed", None),
        _ => match containers.message("unready") {
            Some(message) => ConditionStatus::unmet("ContainersNotReady", Some(message)),
            None => ConditionStatus::met(),
        },
    }
}

fn readiness_gates(pod: &Pod, conditions: &[PodCondition]) -> ConditionStatus {
    let gates = pod.spec().and_then(|spec| spec.readiness_gates.as_deref());
    let problems: Vec<String> = gates
        .unwrap_or_default()
        .iter()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match conditions.iter().find(|c| c.type_ == *kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{kind}\" does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if problems.is_empty() {
        ConditionStatus::met()
    } else {
        ConditionStatus::unmet("ReadinessGatesNotReady", Some(problems.join(", ")))
    }
}

/// Names of containers without a status, and of those that do not meet the condition.
struct UnmetContainers<'a> {
    unknown: Vec<&'a str>,
    unmet: Vec<&'a str>,
}

impl UnmetContainers<'_> {
    /// `unmet` is the adjective for containers that do not meet the condition.
    fn message(&self, unmet: &str) -> Option<String> {
        let part = |what: &str, names: &[&str]| {
            (!names.is_empty())
                .then(|| format!("containers with {what} status: [{}]", names.join(" ")))
        };
        let parts: Vec<String> = [part("unknown", &self.unknown), part(unmet, &self.unmet)]
            .into_iter()
            .flatten()
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

fn partition<'a>(
    containers: impl Iterator<Item = &'a Container>,
    statuses: &[ContainerStatus],
    meets: impl Fn(&Container, &ContainerStatus) -> bool,
) -> UnmetContainers<'a> {
    let mut result = UnmetContainers { unknown: Vec::new(), unmet: Vec::new() };
    for container in containers {
        match statuses.iter().find(|status| status.name == container.name) {
            None => result.unknown.push(&container.name),
            Some(status) if !meets(container, status) => result.unmet.push(&container.name),
            Some(_) => {}
        }
    }
    result
}

/// Gives each condition the time at which its status last changed: the old one's where the status is
/// the same, else `now`. Conditions of other writers keep their time.
pub fn carry_transition_times(
    conditions: &mut [PodCondition],
    old: &[PodCondition],
    now: Timestamp,
) {
    for condition in conditions {
        let foreign = !is_owned(condition);
        if foreign && condition.last_transition_time.is_some() {
            continue;
        }
        let before = old.iter().find(|before| before.type_ == condition.type_);
        condition.last_transition_time = before
            .filter(|before| before.status == condition.status)
            .and_then(|before| before.last_transition_time.clone())
            .or_else(|| Some(Time(whole_seconds(now))));
    }
}
