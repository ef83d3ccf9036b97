//! `RestartAllContainers`: the exit of one container makes the whole pod start over in its sandbox.
//!
//! Its only state is the runtime status and the pod state store's list of the instances to remove; while one of them
//! exists, the action is to remove them.

use super::PodActionInputs;
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, PodExt, RestartAction, restart_action,
};
use k8s_openapi::api::core::v1::Container;
use std::fmt;

/// The exit that triggers the restart of all containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartAllTrigger {
    /// Name of the container.
    pub name: String,
    /// Its exit code.
    pub exit_code: i32,
    /// Nanoseconds since the epoch.
    pub finished_at: i64,
}

/// An instance to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToReset {
    /// The instance.
    pub id: ContainerId,
    /// Name of its container.
    pub name: String,
    /// It may run: stop it first.
    pub stop: bool,
    /// It is the newest instance of its container, whose log stays.
    pub newest: bool,
}

/// Instances to stop and remove before anything is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainersReset {
    /// Why; `None` when the restart of an earlier sync is completed.
    pub trigger: Option<RestartAllTrigger>,
    /// One group after the other: first regular containers, then init containers, and at the very end
    /// those whose exit triggered it, so that an interrupted action can be resumed.
    pub groups: Vec<Vec<ContainerToReset>>,
}

impl fmt::Display for ContainersReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trigger {
            Some(RestartAllTrigger { name, exit_code, .. }) => write!(
                f,
                "{name} exited with code {exit_code}, and matched a RestartAllContainers rule"
            ),
            None => f.write_str("resuming an interrupted restart"),
        }
    }
}

/// The instances to remove for a `RestartAllContainers` action, if one is due.
pub(super) fn compute(inputs: &PodActionInputs<'_>) -> Option<ContainersReset> {
    let pod = inputs.pod;
    if pod.is_being_deleted() {
        return None;
    }
    let left = |status: &ContainerStatus| inputs.facts.restart_all_instances.contains(&status.id);
    if inputs.status.containers.iter().any(left) {
        let groups = groups(inputs, &left);
        return Some(ContainersReset { trigger: None, groups });
    }
    let trigger = all(pod).find_map(|c| trigger(c, inputs.newest_in_sandbox(&c.name)?))?;
    Some(ContainersReset { trigger: Some(trigger), groups: groups(inputs, &|_| true) })
}

fn all(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.init_containers().iter().chain(pod.containers())
}

fn trigger(container: &Container, status: &ContainerStatus) -> Option<RestartAllTrigger> {
    triggers_restart_all(container, status).then(|| RestartAllTrigger {
        name: container.name.clone(),
        exit_code: status.exit_code,
        finished_at: status.finished_at,
    })
}

fn triggers_restart_all(container: &Container, status: &ContainerStatus) -> bool {
    status.state == ContainerState::Exited
        && restart_action(container, status.exit_code) == Some(RestartAction::RestartAllContainers)
}

/// The chosen instances of containers of the spec, in upstream's order of removal.
fn groups(
    inputs: &PodActionInputs<'_>,
    chosen: &dyn Fn(&ContainerStatus) -> bool,
) -> Vec<Vec<ContainerToReset>> {
    let pod = inputs.pod;
    let of = |containers: &[Container], triggering: bool| -> Vec<ContainerToReset> {
        let instances = containers.iter().flat_map(|container| {
            let instances = inputs.status.instances(&container.name);
            instances.enumerate().filter_map(move |(age, status)| {
                let wanted =
                    chosen(status) && triggers_restart_all(container, status) == triggering;
                wanted.then(|| ContainerToReset {
                    id: status.id.clone(),
                    name: container.name.clone(),
                    stop: status.state != ContainerState::Exited,
                    newest: age == 0,
                })
            })
        });
        instances.collect()
    };
    let groups = [
        of(pod.containers(), false),
        of(pod.init_containers(), false),
        of(pod.containers(), true),
        of(pod.init_containers(), true),
    ];
    groups.into_iter().filter(|group| !group.is_empty()).collect()
}
