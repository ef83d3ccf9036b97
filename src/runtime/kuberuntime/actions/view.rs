//! Views of the runtime status for the rules: the newest instances of the pod, and those in its present sandbox.

use super::PodActionInputs;
use crate::model::{ContainerState, ContainerStatus, PodExt, RestartPolicy, container_hash};
use k8s_openapi::api::core::v1::Container;

/// What is known of the last instance of a regular or ephemeral container.
pub(super) enum LastInstance<'a> {
    /// It was never created.
    NeverCreated,
    /// The runtime has no instance, but the exit code of the last one is recorded.
    Removed(i32),
    /// The newest instance.
    Present(&'a ContainerStatus),
}

impl<'a> PodActionInputs<'a> {
    /// Newest instance of a container in the newest sandbox.
    pub(super) fn newest_in_sandbox(&self, name: &'a str) -> Option<&'a ContainerStatus> {
        let sandbox = self.status.newest_sandbox()?;
        self.status.instances(name).find(|c| c.sandbox == sandbox.id)
    }

    /// The last instance of a regular or ephemeral container: the newest one of the runtime, or the recorded exit.
    pub(super) fn last_instance(&self, name: &'a str) -> LastInstance<'a> {
        match self.status.newest(name) {
            Some(status) => LastInstance::Present(status),
            None => match self.facts.exits.get(name) {
                Some(code) => LastInstance::Removed(*code),
                None => LastInstance::NeverCreated,
            },
        }
    }

    /// Whether the last instance of a regular container was killed in order to start its successor.
    pub(super) fn was_killed_to_restart(&self, name: &str) -> bool {
        let killed = self.facts.killed_to_restart.get(name);
        killed.is_some_and(|id| match self.status.newest(name) {
            Some(newest) => newest.state == ContainerState::Exited && newest.id.as_str() == id,
            None => !self.facts.exits.contains_key(name),
        })
    }

    /// Whether any container was ever created.
    pub(super) fn any_container(&self) -> bool {
        !self.facts.exits.is_empty() || !self.status.containers.is_empty()
    }

    /// Whether any regular container was ever created.
    pub(super) fn any_regular_container(&self) -> bool {
        self.pod
            .containers()
            .iter()
            .any(|c| !matches!(self.last_instance(&c.name), LastInstance::NeverCreated))
    }

    /// Whether the pod was initialised in its newest sandbox: by the record, or because the sandbox has a regular
    /// container, which is only created after initialisation.
    pub(super) fn is_initialized(&self) -> bool {
        let Some(sandbox) = self.status.newest_sandbox() else {
            return false;
        };
        self.facts.initialized_in.as_ref() == Some(&sandbox.id)
            || self.pod.containers().iter().any(|c| self.newest_in_sandbox(&c.name).is_some())
    }

    /// The container's own restart policy, else the pod's.
    pub(super) fn restart_policy(&self, container: &Container) -> RestartPolicy {
        RestartPolicy::of(self.pod, container)
    }
}

/// Whether name or image differ from those that the container was created with. An instance without a hash counts as
/// unchanged.
pub(super) fn definition_changed(container: &Container, status: &ContainerStatus) -> bool {
    !status.hash.is_empty() && *status.hash != *container_hash(container)
}

/// Whether the container exited with a non-zero code or was OOM-killed.
pub(super) fn failed(status: &ContainerStatus) -> bool {
    status.state == ContainerState::Exited && !status.succeeded()
}
