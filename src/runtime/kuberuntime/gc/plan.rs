//! Which dead containers and sandboxes may be removed, and why.

use crate::base::named_enum;
use crate::model::{ContainerState, ContainerStatus, Pod, PodExt, PodStatus, PodUid, SandboxId};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How many dead containers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerGcPolicy {
    /// Only containers created longer ago than this are candidates.
    pub min_age: Duration,
    /// Dead instances kept per pod and container name; `None` for all.
    pub max_per_container: Option<usize>,
    /// Dead instances kept on the node; `None` for any number.
    pub max_containers: Option<usize>,
}

named_enum! {
    /// Why a container is removed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RemovalReason {
        /// The pod has ended or is gone: everything of it is removed.
        PodEnded = "its pod has ended or is gone",
        /// There are newer instances of the same container.
        Superseded = "there is a newer one",
        /// A new sandbox is created, in which init containers run again.
        SandboxReplaced = "its sandbox is replaced",
        /// There are more dead containers on the node than may be kept.
        TooMany = "too many dead containers",
    }
}

/// A container to remove.
#[derive(Clone, Copy, Debug)]
pub struct ContainerRemoval<'a> {
    /// Its pod.
    pub status: &'a PodStatus,
    /// The instance.
    pub container: &'a ContainerStatus,
    /// Why.
    pub reason: RemovalReason,
}

impl ContainerRemoval<'_> {
    /// Whether its state is unknown, so that it has to be stopped first.
    pub fn stop_first(&self) -> bool {
        self.container.state == ContainerState::Unknown
    }
}

/// A container instance and its pod.
type Instance<'a> = (&'a PodStatus, &'a ContainerStatus);

/// The dead containers to remove, the oldest instance of each container first, so that an interrupted run keeps the
/// newest. A created instance without a successor is kept and not counted. `remove_all` returns whether everything of a
/// pod is to be removed. `now` is in nanoseconds since the epoch.
pub fn containers_to_remove<'a>(
    pods: &'a [Arc<PodStatus>],
    policy: &ContainerGcPolicy,
    remove_all: &dyn Fn(&PodUid) -> bool,
    now: i64,
) -> Vec<ContainerRemoval<'a>> {
    let min_age = i64::try_from(policy.min_age.as_nanos()).unwrap_or(i64::MAX);
    let newest_allowed = now.saturating_sub(min_age);
    // Without a minimum age, also removes containers whose creation time is in the future.
    let old_enough =
        |instance: &ContainerStatus| min_age == 0 || instance.created_at <= newest_allowed;
    let mut kept = Vec::new();
    let mut removals = Vec::new();
    for pod in pods {
        let removes_all = remove_all(&pod.uid);
        // The instances of a status are sorted, the newest first.
        let mut groups: BTreeMap<&str, Vec<Instance<'a>>> = BTreeMap::new();
        for container in &pod.containers {
            let group = groups.entry(&container.name).or_default();
            group.push((pod, container));
        }
        for mut group in groups.into_values() {
            let never_started =
                |(_, newest): &Instance<'a>| newest.state == ContainerState::Created;
            if !removes_all && group.first().is_some_and(never_started) {
                group.remove(0);
            }
            group.retain(|(_, instance)| {
                instance.state != ContainerState::Running && old_enough(instance)
            });
            if removes_all {
                remove(group.drain(..).rev(), RemovalReason::PodEnded, &mut removals);
            } else if let Some(keep) = policy.max_per_container {
                let keep = keep.min(group.len());
                remove(group.drain(keep..).rev(), RemovalReason::Superseded, &mut removals);
            }
            if !group.is_empty() {
                kept.push(group);
            }
        }
    }
    if let Some(max) = policy.max_containers {
        enforce_total(kept, max, &mut removals);
    }
    removals
}

/// First an equal share for every container name, at least one each; then the oldest are removed.
fn enforce_total<'a>(
    mut groups: Vec<Vec<Instance<'a>>>,
    max: usize,
    removals: &mut Vec<ContainerRemoval<'a>>,
) {
    let total: usize = groups.iter().map(Vec::len).sum();
    if total <= max {
        return;
    }
    let share = max.checked_div(groups.len()).unwrap_or(0).max(1);
    for group in &mut groups {
        let keep = share.min(group.len());
        remove(group.drain(keep..).rev(), RemovalReason::TooMany, removals);
    }
    let mut left: Vec<Instance<'a>> = groups.into_iter().flatten().collect();
    left.sort_by(|(_, a), (_, b)| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    let keep = max.min(left.len());
    remove(left.drain(keep..).rev(), RemovalReason::TooMany, removals);
}

fn remove<'a>(
    instances: impl Iterator<Item = Instance<'a>>,
    reason: RemovalReason,
    removals: &mut Vec<ContainerRemoval<'a>>,
) {
    removals.extend(instances.map(|(status, container)| ContainerRemoval {
        status,
        container,
        reason,
    }));
}

/// The sandboxes to remove, each with its pod: those that are not READY and without containers, except the newest one
/// of a pod that is kept. The list has to be complete.
pub fn sandboxes_to_remove<'a>(
    pods: &'a [Arc<PodStatus>],
    remove_all: &dyn Fn(&PodUid) -> bool,
) -> Vec<(&'a PodStatus, &'a SandboxId)> {
    let mut removals: Vec<(&PodStatus, &SandboxId)> = Vec::new();
    for pod in pods {
        let kept = usize::from(!remove_all(&pod.uid));
        for sandbox in pod.sandboxes.iter().skip(kept) {
            let has_containers = pod.containers.iter().any(|c| c.sandbox == sandbox.id);
            if !sandbox.ready && !has_containers {
                removals.push((pod, &sandbox.id));
            }
        }
    }
    removals
}

/// Old instances of init containers that are removed before a pod's sync starts anything: of each
/// name only the newest dead one stays.
pub fn init_containers_to_remove<'a>(
    pod: &Pod,
    status: &'a PodStatus,
) -> Vec<ContainerRemoval<'a>> {
    let mut removals = instances_of_init_containers(pod, status, RemovalReason::Superseded);
    let mut kept = HashSet::new();
    removals.retain(|removal| {
        let ContainerStatus { state, name, .. } = removal.container;
        matches!(state, ContainerState::Exited | ContainerState::Unknown) && !kept.insert(name)
    });
    removals
}

/// All instances of init containers: removed before a new sandbox is created, so that they run again.
pub fn all_init_containers_to_remove<'a>(
    pod: &Pod,
    status: &'a PodStatus,
) -> Vec<ContainerRemoval<'a>> {
    instances_of_init_containers(pod, status, RemovalReason::SandboxReplaced)
}

fn instances_of_init_containers<'a>(
    pod: &Pod,
    status: &'a PodStatus,
    reason: RemovalReason,
) -> Vec<ContainerRemoval<'a>> {
    let is_init = |name: &str| pod.init_containers().iter().any(|c| c.name == name);
    let instances = status.containers.iter().filter(|c| is_init(&c.name));
    let removals = instances.map(|container| ContainerRemoval { status, container, reason });
    removals.collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
