//! The pod, container and sandbox of a request. Pure.

use super::params::{ContainerName, PodName};
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, PodExt, PodStatus, SandboxId,
};
use crate::pods::pod_sync::PodWithStatus;

/// The pod or container does not exist: 404. The texts begin as upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::server) enum MissingContainer {
    /// No pod has that name.
    #[error("pod does not exist")]
    Pod,
    /// The pod of that name has a different UID.
    #[error("pod not found: the pod of that name has another UID")]
    Uid,
    /// The pod has no such container.
    #[error("container not found ({0:?})")]
    Container(String),
    /// The container is not running.
    #[error("container not found ({name:?}): {why}")]
    NotRunning {
        name: String,
        /// Its state.
        why: String,
    },
    /// No sandbox of the pod is ready.
    #[error("pod not found ({0:?}): it has no sandbox that is ready")]
    Sandbox(String),
}

/// The pod of this name; with a UID, the one with this UID. Without, the first one, which is the desired one.
pub(in crate::server) fn pod(
    pods: impl IntoIterator<Item = PodWithStatus>,
    name: &PodName,
) -> Result<PodWithStatus, MissingContainer> {
    let of_name =
        |(pod, _): &PodWithStatus| pod.namespace() == name.namespace && pod.name() == name.name;
    let mut missing = MissingContainer::Pod;
    for found in pods.into_iter().filter(of_name) {
        match &name.uid {
            Some(uid) if *uid != *found.0.uid().as_str() => missing = MissingContainer::Uid,
            _ => return Ok(found),
        }
    }
    Err(missing)
}

/// Whether a pod has a container of this name, of any kind.
pub(in crate::server) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let regular = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    regular.map(|c| &c.name).chain(ephemeral.map(|c| &c.name)).any(|known| known == name)
}

/// The running instance of a container.
pub(super) fn container(
    pod: &Pod,
    runtime_status: &PodStatus,
    name: &ContainerName,
) -> Result<ContainerId, MissingContainer> {
    let name = name.container.as_str();
    if !has_container(pod, name) {
        return Err(MissingContainer::Container(name.to_owned()));
    }
    let mut instances = runtime_status.instances(name);
    if let Some(running) = instances.find(|c| c.state == ContainerState::Running) {
        return Ok(running.id.clone());
    }
    Err(MissingContainer::NotRunning {
        name: name.to_owned(),
        why: runtime_status.newest(name).map_or("it has not been created yet".into(), instead),
    })
}

fn instead(container: &ContainerStatus) -> String {
    match container.state {
        ContainerState::Created => "it has not been started yet".into(),
        ContainerState::Exited => format!("it has ended with code {}", container.exit_code),
        ContainerState::Running | ContainerState::Unknown => {
            "the runtime does not know whether it runs".into()
        }
    }
}

/// The ready sandbox, to whose ports connections can be forwarded.
pub(super) fn sandbox(
    pod: &Pod,
    runtime_status: &PodStatus,
) -> Result<SandboxId, MissingContainer> {
    let ready = runtime_status.ready_sandboxes().next();
    let missing = || MissingContainer::Sandbox(format!("{}_{}", pod.name(), pod.namespace()));
    ready.map(|sandbox| sandbox.id.clone()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SandboxStatus;
    use serde_json::json;
    use std::sync::Arc;

    fn a_pod(uid: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": uid},
                "spec": {
                    "containers": [{"name": "main"}],
                    "initContainers": [{"name": "init"}],
                    "ephemeralContainers": [{"name": "debug"}],
                },
            }))
            .unwrap(),
        )
    }

    fn named(namespace: &str, name: &str, uid: Option<&str>) -> PodName {
        PodName { namespace: namespace.into(), name: name.into(), uid: uid.map(Into::into) }
    }

    #[test]
    fn a_pod_is_found_by_its_name_and_its_uid() {
        let pods = || [(a_pod("new"), None), (a_pod("old"), None)];
        let rows = [
            (named("shop", "web", None), Ok("new")),
            (named("shop", "web", Some("new")), Ok("new")),
            (named("shop", "web", Some("old")), Ok("old")),
            (named("shop", "web", Some("other")), Err(MissingContainer::Uid)),
            (named("shop", "we", None), Err(MissingContainer::Pod)),
            (named("default", "web", None), Err(MissingContainer::Pod)),
            (named("default", "web", Some("new")), Err(MissingContainer::Pod)),
        ];
        for (name, expected) in rows {
            let found = pod(pods(), &name).map(|(pod, _)| pod.uid().to_string());
            assert_eq!(found, expected.map(ToOwned::to_owned), "{name:?}");
        }
    }

    fn instance(name: &str, id: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: id.into(),
            name: name.into(),
            state,
            exit_code: 3,
            ..ContainerStatus::default()
        }
    }

    #[test]
    fn a_command_runs_in_the_running_instance_or_fails_with_the_reason() {
        use ContainerState::{Created, Exited, Running, Unknown};
        let rows: &[(&str, &[(&str, ContainerState)], _)] = &[
            ("main", &[("now", Running)], Ok("now")),
            ("init", &[("now", Running)], Ok("now")),
            ("debug", &[("now", Running)], Ok("now")),
            ("main", &[("next", Created), ("now", Running)], Ok("now")),
            ("other", &[], Err("container not found (\"other\")")),
            ("main", &[], Err("container not found (\"main\"): it has not been created yet")),
            (
                "main",
                &[("next", Created), ("old", Exited)],
                Err("container not found (\"main\"): it has not been started yet"),
            ),
            (
                "main",
                &[("now", Exited)],
                Err("container not found (\"main\"): it has ended with code 3"),
            ),
            (
                "main",
                &[("now", Unknown)],
                Err("container not found (\"main\"): the runtime does not know whether it runs"),
            ),
        ];
        for (name, instances, expected) in rows {
            let containers = instances.iter().map(|(id, state)| instance(name, id, *state));
            let runtime_status =
                PodStatus { containers: containers.collect(), ..PodStatus::default() };
            let wanted = ContainerName { container: (*name).into(), ..ContainerName::default() };
            let found = container(&a_pod("u"), &runtime_status, &wanted);
            let found = found.map(|id| id.to_string()).map_err(|missing| missing.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), *expected);
        }
    }

    #[test]
    fn ports_are_those_of_a_sandbox_that_is_ready() {
        let sandbox_of =
            |id: &str, ready| SandboxStatus { id: id.into(), ready, ..SandboxStatus::default() };
        let runtime_status = PodStatus {
            sandboxes: vec![sandbox_of("new", false), sandbox_of("old", true)],
            ..PodStatus::default()
        };
        assert_eq!(sandbox(&a_pod("u"), &runtime_status).unwrap().as_str(), "old");
        let none = sandbox(&a_pod("u"), &PodStatus::default()).unwrap_err();
        assert_eq!(
            none.to_string(),
            "pod not found (\"web_shop\"): it has no sandbox that is ready"
        );
    }
}
