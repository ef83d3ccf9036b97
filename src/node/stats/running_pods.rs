//! The pods in stats: those with running containers or sandboxes. Pure.

use crate::model::{ContainerState, NetworkMode, PodStatus, PodUid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A running pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSubject {
    /// UID.
    pub uid: PodUid,
    /// Name.
    pub name: Arc<str>,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Creation time of the sandbox, nanoseconds since the epoch.
    pub created_at: i64,
    /// ID of the sandbox.
    pub sandbox: Option<Arc<str>>,
    /// Whether it uses the host network.
    pub host_network: bool,
    /// Its running containers, by name.
    pub containers: Vec<ContainerSubject>,
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSubject {
    /// Container ID.
    pub id: Arc<str>,
    /// Name in the pod.
    pub name: Arc<str>,
    /// Image.
    pub image: Arc<str>,
    /// Creation time, nanoseconds since the epoch.
    pub created_at: i64,
}

/// The running pods, sorted by namespace and name. Of several pods with the same name (all but one are terminating)
/// only the newest is included, and of several instances of a container only the first, which is the newest, because a
/// time series must not occur twice.
pub(super) fn subjects(pods: &[Arc<PodStatus>]) -> Vec<PodSubject> {
    let mut found: Vec<PodSubject> = pods.iter().filter_map(|pod| subject(pod)).collect();
    found.sort_by(|a, b| {
        let by_age = b.created_at.cmp(&a.created_at);
        let names = |pod: &PodSubject| (pod.namespace.clone(), pod.name.clone());
        names(a).cmp(&names(b)).then(by_age).then_with(|| a.uid.cmp(&b.uid))
    });
    found.dedup_by(|later, kept| later.namespace == kept.namespace && later.name == kept.name);
    found
}

fn subject(pod: &PodStatus) -> Option<PodSubject> {
    let sandbox = pod.ready_sandboxes().next();
    let mut names = HashSet::new();
    let mut containers: Vec<ContainerSubject> = pod
        .containers
        .iter()
        .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
        .filter(|c| names.insert(c.name.clone()))
        .map(|c| ContainerSubject {
            id: c.id.as_str().into(),
            name: c.name.clone(),
            image: c.image.clone(),
            created_at: c.created_at,
        })
        .collect();
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    if sandbox.is_none() && containers.is_empty() {
        return None;
    }
    let oldest = containers.iter().map(|c| c.created_at).min();
    Some(PodSubject {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        created_at: sandbox.map(|s| s.created_at).or(oldest).unwrap_or_default(),
        sandbox: sandbox.map(|s| s.id.as_str().into()),
        host_network: sandbox.is_some_and(|s| s.network == NetworkMode::Node),
        containers,
    })
}

/// The pause image in the verbose status of a sandbox.
pub(super) fn image_of_sandbox(info: &HashMap<String, String>) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let image = info.get("image")?.as_str()?;
    (!image.is_empty()).then(|| image.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerStatus, SandboxStatus};

    fn container(id: &str, name: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: id.into(),
            name: name.into(),
            state,
            created_at: 5,
            ..ContainerStatus::default()
        }
    }

    fn pod(uid: &str, name: &str, ready: bool, created_at: i64) -> PodStatus {
        let sandbox = SandboxStatus {
            id: format!("s-{uid}").into(),
            ready,
            created_at,
            ..SandboxStatus::default()
        };
        PodStatus {
            uid: uid.into(),
            name: name.into(),
            namespace: "default".into(),
            sandboxes: vec![sandbox],
            containers: Vec::new(),
        }
    }

    #[test]
    fn only_what_runs_is_measured_and_each_container_once() {
        let mut running = pod("1", "a", true, 9);
        running.containers = vec![
            container("new", "web", ContainerState::Running),
            container("old", "web", ContainerState::Unknown),
            container("dead", "init", ContainerState::Exited),
            container("made", "next", ContainerState::Created),
        ];
        let found = subjects(&[Arc::new(running), Arc::new(pod("2", "b", false, 1))]);
        assert_eq!(found.len(), 1);
        let ids: Vec<&str> = found[0].containers.iter().map(|c| &*c.id).collect();
        assert_eq!(ids, ["new"]);
        assert_eq!(found[0].sandbox.as_deref(), Some("s-1"));
    }

    #[test]
    fn of_two_pods_of_one_name_the_newer_counts_and_a_lost_sandbox_is_no_end() {
        let mut without = pod("3", "c", false, 1);
        without.containers = vec![container("x", "web", ContainerState::Running)];
        let pods = [pod("1", "a", true, 1), pod("2", "a", true, 2), without];
        let found = subjects(&pods.map(Arc::new));
        let shown: Vec<_> = found.iter().map(|p| (p.uid.as_str(), p.created_at)).collect();
        assert_eq!(shown, [("2", 2), ("3", 5)]);
        assert_eq!(found[1].sandbox, None);
    }

    #[test]
    fn the_image_of_a_sandbox_is_optional() {
        let info = |text: &str| HashMap::from([("info".to_owned(), text.to_owned())]);
        let image = image_of_sandbox(&info(r#"{"pid": 7, "image": "pause:3"}"#));
        assert_eq!(image.as_deref(), Some("pause:3"));
        for other in ["{}", "no json", r#"{"image": 3}"#, r#"{"image": ""}"#] {
            assert_eq!(image_of_sandbox(&info(other)), None);
        }
        assert_eq!(image_of_sandbox(&HashMap::new()), None);
    }
}
