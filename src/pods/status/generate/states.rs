//! States of containers, as the API has them. Pure.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStateWaiting};

/// The exit code when the real one is unknown.
pub(super) const UNKNOWN_EXIT_CODE: i32 = 137;

pub(super) fn waiting(reason: Option<String>, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason, message }),
        ..ContainerState::default()
    }
}

pub(super) fn terminated(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..ContainerState::default()
    }
}
