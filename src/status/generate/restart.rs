//! Whether a container that ended will be started again, as the status has to show it.

use crate::model::{ContainerState, ContainerStatus, Pod, PodExt, RestartPolicy, is_sidecar};
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

/// What the container's rules, else its own policy, else the pod's say after an exit with this code.
/// An init container that is not a sidecar is done once it succeeded.
pub(super) fn restarts_after(pod: &Pod, container: &Container, init: bool, exit_code: i32) -> bool {
    let rules = container.restart_policy_rules.as_deref();
    if rules
        .unwrap_or_default()
        .iter()
        .any(|r| matches(r, exit_code))
    {
        return true;
    }
    let own = container.restart_policy.as_deref();
    match own
        .and_then(RestartPolicy::parse)
        .unwrap_or(pod.restart_policy())
    {
        RestartPolicy::Always if init && !is_sidecar(container) => exit_code != 0,
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Both actions that a rule can have start the container again.
fn matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else {
        return false;
    };
    let listed = codes
        .values
        .as_deref()
        .unwrap_or_default()
        .contains(&exit_code);
    match codes.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

/// Whether the next sync would start the container, judged by its newest instance.
pub(super) fn starts_next(
    pod: &Pod,
    container: &Container,
    init: bool,
    newest: Option<&ContainerStatus>,
) -> bool {
    if pod.is_being_deleted() {
        return false;
    }
    match newest {
        None => true,
        Some(instance) => match instance.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => restarts_after(pod, container, init, instance.exit_code),
        },
    }
}
