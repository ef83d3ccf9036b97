//! Changes of a status that are never legal.

use super::list;
use super::states::{exit_code, restarts_unless_completed, termination};
use crate::model::{Pod, PodExt, RestartPolicy, is_sidecar, may_restart_all};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// A container that had terminated for good is no longer terminated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("terminated container {container} attempted illegal transition to non-terminated state")]
pub struct IllegalTransition {
    /// The container's name.
    pub container: String,
}

/// Refuses a status in which a container that may not be restarted is no longer terminated. Init containers may
/// run again in a new sandbox unless the pod's policy is Never. Nothing is refused for a pod with a
/// `RestartAllContainers` rule, because any of its containers may run again.
pub(in crate::pods) fn check(
    pod: &Pod,
    old: &PodStatus,
    new: &PodStatus,
) -> Result<(), IllegalTransition> {
    if may_restart_all(pod) {
        return Ok(());
    }
    for container in pod.containers() {
        let ended = ended_with(list(&old.container_statuses), &container.name);
        if ended.is_some_and(|code| !restarts_unless_completed(pod, container, false, code)) {
            still_ended(list(&new.container_statuses), &container.name)?;
        }
    }
    if pod.restart_policy() != RestartPolicy::Never {
        return Ok(());
    }
    for container in pod.init_containers().iter().filter(|c| !is_sidecar(c)) {
        let ended = ended_with(list(&old.init_container_statuses), &container.name);
        if ended.is_some_and(|code| !restarts_unless_completed(pod, container, true, code)) {
            still_ended(list(&new.init_container_statuses), &container.name)?;
        }
    }
    Ok(())
}

fn ended_with(statuses: &[ContainerStatus], name: &str) -> Option<i32> {
    let status = statuses.iter().find(|status| status.name == name)?;
    exit_code(&status.state)
}

fn still_ended(statuses: &[ContainerStatus], name: &str) -> Result<(), IllegalTransition> {
    let status = statuses.iter().find(|status| status.name == name);
    if status.is_none_or(|status| termination(&status.state).is_some()) {
        Ok(())
    } else {
        Err(IllegalTransition { container: name.into() })
    }
}
