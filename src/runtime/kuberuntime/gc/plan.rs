//! Which dead containers and sandboxes may be removed, and why.

use crate::model::{ContainerId, ContainerState, Pod, PodExt, PodStatus, PodUid, SandboxId};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    time::Duration,
};

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

impl Default for ContainerGcPolicy {
    /// Upstream's: no minimum age, one instance per container name, no limit for the node.
    fn default() -> Self {
        Self {
            min_age: Duration::ZERO,
            max_per_container: Some(1),
            max_containers: None,
        }
    }
}

/// A container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerInstance {
    /// The instance.
    pub id: ContainerId,
    /// Its pod.
    pub pod: PodUid,
    /// Its container's name.
    pub name: String,
    /// How often its container had been restarted; orders the instances of a container independently of the clock.
    pub restart_count: u32,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Running ones are kept; they show whether a created one is superseded.
    pub state: ContainerState,
}

/// A sandbox, ready or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its pod.
    pub pod: PodUid,
    /// Attempt number.
    pub attempt: u32,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// The runtime says SANDBOX_READY.
    pub ready: bool,
    /// Whether any container, dead or alive, is in it.
    pub has_containers: bool,
}

/// Why something is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemovalReason {
    /// Everything of the pod is removed.
    PodGone,
    /// There are newer instances of the same container, or a newer sandbox of the same pod.
    Superseded,
    /// There are more dead containers on the node than may be kept.
    TooMany,
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PodGone => "its pod is gone",
            Self::Superseded => "there is a newer one",
            Self::TooMany => "too many dead containers",
        })
    }
}

/// A container to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRemoval {
    /// The instance.
    pub id: ContainerId,
    /// Why.
    pub reason: RemovalReason,
    /// Its state is unknown: stop it first.
    pub stop_first: bool,
}

/// A sandbox to remove; it is stopped before, whatever its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRemoval {
    /// The sandbox.
    pub id: SandboxId,
    /// Why.
    pub reason: RemovalReason,
}

/// The dead containers to remove, the oldest instance of each container first, so that an interrupted run keeps the
/// newest. A created instance without a successor is kept and not counted. `remove_all` returns whether everything of a
/// pod is to be removed. `now` is in nanoseconds since the epoch.
pub fn containers(
    instances: Vec<ContainerInstance>,
    policy: &ContainerGcPolicy,
    remove_all: &dyn Fn(&PodUid) -> bool,
    now: i64,
) -> Vec<ContainerRemoval> {
    let min_age = i64::try_from(policy.min_age.as_nanos()).unwrap_or(i64::MAX);
    let newest_allowed = now.saturating_sub(min_age);
    // Without a minimum age, also removes containers whose creation time is in the future.
    let old_enough =
        |instance: &ContainerInstance| min_age == 0 || instance.created_at <= newest_allowed;
    let mut groups: HashMap<(PodUid, String), Vec<ContainerInstance>> = HashMap::new();
    for instance in instances {
        let key = (instance.pod.clone(), instance.name.clone());
        groups.entry(key).or_default().push(instance);
    }
    let mut removals = Vec::new();
    groups.retain(|(pod, _), group| {
        let removes_all = remove_all(pod);
        group.sort_by(newest_instance_first);
        let never_started = |newest: &ContainerInstance| newest.state == ContainerState::Created;
        if !removes_all && group.first().is_some_and(never_started) {
            group.remove(0);
        }
        group.retain(|instance| instance.state != ContainerState::Running && old_enough(instance));
        if removes_all {
            remove(group.drain(..).rev(), RemovalReason::PodGone, &mut removals);
        } else if let Some(keep) = policy.max_per_container {
            let keep = keep.min(group.len());
            remove(
                group.drain(keep..).rev(),
                RemovalReason::Superseded,
                &mut removals,
            );
        }
        !group.is_empty()
    });
    if let Some(max) = policy.max_containers {
        enforce_total(groups, max, &mut removals);
    }
    removals
}

/// First an equal share for every container name, at least one each; then the oldest are removed.
fn enforce_total(
    mut groups: HashMap<(PodUid, String), Vec<ContainerInstance>>,
    max: usize,
    removals: &mut Vec<ContainerRemoval>,
) {
    let total: usize = groups.values().map(Vec::len).sum();
    if total <= max {
        return;
    }
    let share = max.checked_div(groups.len()).unwrap_or(0).max(1);
    for group in groups.values_mut() {
        let keep = share.min(group.len());
        remove(group.drain(keep..).rev(), RemovalReason::TooMany, removals);
    }
    let mut left: Vec<ContainerInstance> = groups.into_values().flatten().collect();
    left.sort_by(newest_first);
    let keep = max.min(left.len());
    remove(left.drain(keep..).rev(), RemovalReason::TooMany, removals);
}

/// The order of the instances of one container.
fn newest_instance_first(a: &ContainerInstance, b: &ContainerInstance) -> std::cmp::Ordering {
    (b.restart_count, b.created_at, &b.id).cmp(&(a.restart_count, a.created_at, &a.id))
}

/// The order of containers of different names.
fn newest_first(a: &ContainerInstance, b: &ContainerInstance) -> std::cmp::Ordering {
    (b.created_at, &b.id).cmp(&(a.created_at, &a.id))
}

fn remove(
    containers: impl Iterator<Item = ContainerInstance>,
    reason: RemovalReason,
    removals: &mut Vec<ContainerRemoval>,
) {
    removals.extend(containers.map(|container| ContainerRemoval {
        stop_first: container.state == ContainerState::Unknown,
        id: container.id,
        reason,
    }));
}

/// The sandboxes to remove: those that are not READY and without containers, except the newest one of a pod that is
/// kept. The list has to be complete.
pub fn sandboxes(all: &[GcSandbox], remove_all: &dyn Fn(&PodUid) -> bool) -> Vec<SandboxRemoval> {
    let rank = |s: &GcSandbox| (s.attempt, s.created_at, s.id.clone());
    let mut newest: HashMap<&PodUid, &GcSandbox> = HashMap::new();
    for sandbox in all {
        let known = newest.entry(&sandbox.pod).or_insert(sandbox);
        if rank(sandbox) > rank(known) {
            *known = sandbox;
        }
    }
    all.iter()
        .filter(|s| !s.ready && !s.has_containers)
        .filter_map(|s| {
            let is_newest = newest.get(&s.pod).is_some_and(|n| n.id == s.id);
            let reason = if remove_all(&s.pod) {
                RemovalReason::PodGone
            } else if !is_newest {
                RemovalReason::Superseded
            } else {
                return None;
            };
            Some(SandboxRemoval {
                id: s.id.clone(),
                reason,
            })
        })
        .collect()
}

/// Old instances of init containers that are removed before a pod's sync starts anything: of each
/// name only the newest dead one stays.
pub fn init_containers(pod: &Pod, status: &PodStatus) -> Vec<ContainerRemoval> {
    let names: HashSet<&str> = pod
        .init_containers()
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    let mut kept = HashSet::new();
    status
        .containers
        .iter()
        .filter(|c| matches!(c.state, ContainerState::Exited | ContainerState::Unknown))
        .filter(|c| names.contains(&*c.name))
        .filter(|c| !kept.insert(&*c.name))
        .map(|c| ContainerRemoval {
            id: c.id.clone(),
            reason: RemovalReason::Superseded,
            stop_first: c.state == ContainerState::Unknown,
        })
        .collect()
}

/// All instances of init containers: removed before a new sandbox is created, so that they run again.
pub fn all_init_containers(pod: &Pod, status: &PodStatus) -> Vec<ContainerRemoval> {
    let is_init = |name: &str| pod.init_containers().iter().any(|c| c.name == name);
    status
        .containers
        .iter()
        .filter(|c| is_init(&c.name))
        .map(|c| ContainerRemoval {
            id: c.id.clone(),
            reason: RemovalReason::Superseded,
            stop_first: c.state == ContainerState::Unknown,
        })
        .collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
