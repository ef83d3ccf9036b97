//! Containers that run with other amounts of CPU and memory than their pod is allocated (upstream's
//! `computePodResizeAction`).

use super::{PodActionInputs, PodActions};
use crate::model::{ContainerId, ContainerState, ContainerStatus, PodExt};
use crate::resources::allocation::{ComputeAmounts, same_amounts};
use crate::resources::requests::{CPU, MEMORY};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

/// A container to update while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerResize {
    /// The instance.
    pub id: ContainerId,
    /// Its container.
    pub name: String,
    /// The actuated amounts.
    pub from: ComputeAmounts,
    /// The allocated amounts.
    pub to: ComputeAmounts,
}

impl ContainerResize {
    /// The new limit of its memory, if that is lower than before.
    pub fn lower_memory_limit(&self) -> Option<i64> {
        let (from, to) = (self.from.memory_limit, self.to.memory_limit);
        (to != 0 && (from == 0 || to < from)).then_some(to)
    }
}

/// What changes for a running container. Without actuated amounts, they are assumed to be the allocated ones.
fn change(
    inputs: &PodActionInputs<'_>,
    container: &Container,
) -> Option<(ComputeAmounts, ComputeAmounts)> {
    let actuated = inputs.facts.actuated.as_deref()?;
    let pod_level = inputs.pod.spec()?.resources.as_ref();
    let resources = container.resources.clone().unwrap_or_default();
    let from = ComputeAmounts::of(actuated.containers.get(&container.name)?, actuated.pod.as_ref());
    let to = ComputeAmounts::of(&resources, pod_level);
    (from != to).then_some((from, to))
}

/// Whether a running container has to be restarted for its new amounts (`resizePolicy`).
pub(super) fn needs_restart(inputs: &PodActionInputs<'_>, container: &Container) -> bool {
    let Some((from, to)) = change(inputs, container) else {
        return false;
    };
    let restarts = |resource: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|policy| {
            policy.resource_name == resource && policy.restart_policy == "RestartContainer"
        })
    };
    let cpu = (from.cpu_request, from.cpu_limit) != (to.cpu_request, to.cpu_limit);
    let memory = (from.memory_request, from.memory_limit) != (to.memory_request, to.memory_limit);
    cpu && restarts(CPU) || memory && restarts(MEMORY)
}

/// Adds the updates of containers that keep running, and of pod-level resources.
pub(super) fn compute(inputs: &PodActionInputs<'_>, actions: &mut PodActions) {
    let pod = inputs.pod;
    let containers = pod.init_containers().iter().chain(pod.containers());
    let running = containers.filter_map(|container| {
        let status = inputs.newest_in_sandbox(&container.name)?;
        (status.state == ContainerState::Running).then_some((container, status))
    });
    let stays = |status: &ContainerStatus| {
        let mut kills = actions.containers_to_kill.iter();
        !kills.any(|kill| kill.id == status.id)
    };
    let resizes = running.filter(|(_, status)| stays(status));
    let resizes = resizes.filter_map(|(container, status)| {
        let (from, to) = change(inputs, container)?;
        Some(ContainerResize { id: status.id.clone(), name: container.name.clone(), from, to })
    });
    let mut resizes: Vec<_> = resizes.collect();
    // Decreases of memory limits come first, because they free memory for the increases.
    resizes.sort_by_key(|resize| resize.lower_memory_limit().is_none());
    actions.containers_to_resize = resizes;
    let actuated = inputs.facts.actuated.as_deref();
    let allocated = pod.spec().and_then(|spec| spec.resources.as_ref());
    actions.resize_pod_level = actuated.zip(allocated).is_some_and(|(actuated, allocated)| {
        let none = ResourceRequirements::default();
        !same_amounts(actuated.pod.as_ref().unwrap_or(&none), allocated)
    });
}
