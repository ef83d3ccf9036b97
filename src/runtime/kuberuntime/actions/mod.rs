//! Computes what a sync has to do, as a pure function.
//!
//! * Owns: [`compute_pod_actions`], from a pod, its runtime status, probe results and recorded facts to actions, which
//!   do not depend on earlier actions.
//! * Woken by: every sync of a pod, which carries out the actions. The next sync computes new ones.
//! * Publishes: [`PodActions`], every step with its reason.
//! * Must never have effects, and never start two instances of one container at a time.
//! * Upstream: `computePodActions` (`pkg/kubelet/kuberuntime`), with two deviations: whether a pod was
//!   initialised is read from a record if there is one; and init containers, resizes and the trigger of
//!   `RestartAllContainers`, which then removes the instances of every sandbox, look only at instances with the id of the
//!   present sandbox. Regular and ephemeral containers look at the newest instance of any sandbox, because its exit may
//!   be final.

mod prefetch;
mod init;
mod reasons;
mod regular;
mod resize;
mod restart_all;
mod sandbox;
mod view;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use prefetch::containers_to_prefetch;
pub use reasons::{KillPodReason, KillReason, SandboxChange, StartReason};
pub use resize::ContainerResize;
pub use restart_all::{ContainerToReset, ContainersReset, RestartAllTrigger};

use crate::model::{
    ContainerId, ContainerStatus, Pod, PodExt, PodStatus, RestartPolicy, SandboxId,
};
use crate::resources::allocation::PodResourceInfo;
use crate::state::probe_results::ContainerProbeResults;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The inputs of [`compute_pod_actions`].
#[derive(Clone, Copy)]
pub struct PodActionInputs<'a> {
    /// The desired pod.
    pub pod: &'a Pod,
    /// The runtime status, newest instances first.
    pub status: &'a PodStatus,
    /// Probe results by container instance.
    pub probe_results: &'a dyn Fn(&ContainerId) -> ContainerProbeResults,
    /// Recorded facts, from the pod state store and the allocations.
    pub facts: &'a RecordedFacts,
}

/// Recorded facts about the pod. Without them, the runtime status alone decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedFacts {
    /// The sandbox in which all init containers have completed.
    pub initialized_in: Option<SandboxId>,
    /// The pod reached phase Succeeded or Failed, so no container of it is started again.
    pub terminal: bool,
    /// Last exit codes of regular containers by name. Only used for containers of which the runtime has no instance.
    pub exits: BTreeMap<Arc<str>, i32>,
    /// Instances of regular containers that were killed in order to start their successors, by container name: they are
    /// restarted after any exit code, which is not in `exits`.
    pub killed_to_restart: BTreeMap<String, String>,
    /// Instances to remove because all containers of the pod are being restarted.
    pub restart_all_instances: Vec<ContainerId>,
    /// The CPU and memory that its containers have (upstream's actuated resources).
    pub actuated: Option<Arc<PodResourceInfo>>,
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStart {
    /// Position in its list of the pod spec.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Why.
    pub reason: StartReason,
}

impl ContainerStart {
    fn new(index: usize, name: &str, reason: StartReason) -> Self {
        let name = name.to_string();
        Self { index, name, reason }
    }
}

/// A container instance to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerKill {
    /// The instance.
    pub id: ContainerId,
    /// Name of its container.
    pub name: String,
    /// Why.
    pub reason: KillReason,
    /// It is an init container (a sidecar, as a rule).
    pub init: bool,
    /// The same sync starts it again.
    pub restart: bool,
}

impl fmt::Display for ContainerKill {
    /// The message of the `Killing` event; upstream's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.init { "Init container" } else { "Container" })?;
        match self.reason {
            KillReason::UnknownState => {
                write!(f, " {}, try killing it before restart", self.reason)
            }
            KillReason::Resize => write!(f, " {} {}", self.name, self.reason),
            reason => {
                write!(f, " {} {reason}", self.name)?;
                if self.restart && !self.init {
                    f.write_str(", will be restarted")?;
                }
                Ok(())
            }
        }
    }
}

/// What a sync has to do (upstream's `podActions`): stop (`kill_pod`, else `containers_to_kill`), then create the
/// sandbox, then start ephemeral, init and regular containers in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Stop every container and sandbox of the pod. `containers_to_kill` is then not executed; it only carries reasons.
    pub kill_pod: Option<KillPodReason>,
    /// Create a new sandbox; the instances of all init containers are removed first.
    pub create_sandbox: bool,
    /// Why the newest sandbox cannot be used; `None` when it can.
    pub sandbox_change: Option<SandboxChange>,
    /// The sandbox to use, or the one that is replaced. `None` for a sandbox that is replaced because of its network
    /// mode, as upstream, which therefore emits no event.
    pub sandbox: Option<SandboxId>,
    /// Attempt number of that sandbox, or of the one to create.
    pub attempt: u32,
    /// Ephemeral containers to start.
    pub ephemeral_containers_to_start: Vec<ContainerStart>,
    /// Init containers to start, in spec order.
    pub init_containers_to_start: Vec<ContainerStart>,
    /// Regular containers to start, in spec order.
    pub containers_to_start: Vec<ContainerStart>,
    /// All containers are restarted: remove these instances first and do nothing else in this sync.
    pub reset: Option<ContainersReset>,
    /// Single instances to stop before anything is started.
    pub containers_to_kill: Vec<ContainerKill>,
    /// Running containers whose CPU and memory change, in this order.
    pub containers_to_resize: Vec<ContainerResize>,
    /// The pod-level CPU and memory change.
    pub resize_pod_level: bool,
}

impl PodActions {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.kill_pod.is_none()
            && !self.create_sandbox
            && self.reset.is_none()
            && !self.starts_something()
            && self.containers_to_kill.is_empty()
            && !self.resizes()
    }

    /// Whether the CPU or memory of running containers changes.
    pub fn resizes(&self) -> bool {
        self.resize_pod_level || !self.containers_to_resize.is_empty()
    }

    /// Regular containers that are stopped in order to be started again, in their sandbox or in a new one, and that their
    /// policy would not restart after every exit code.
    pub fn killed_to_restart<'s>(
        &self,
        pod: &Pod,
        status: &'s PodStatus,
    ) -> Vec<&'s ContainerStatus> {
        let is_restarted = |container: &&ContainerStatus| {
            let mut containers = pod.containers().iter();
            let spec = containers.find(|spec| spec.name == *container.name);
            match spec.map(|spec| RestartPolicy::of(pod, spec)) {
                None | Some(RestartPolicy::Always) => false,
                Some(policy) if self.create_sandbox => policy != RestartPolicy::Never,
                Some(_) => {
                    let mut kills = self.containers_to_kill.iter();
                    kills.any(|kill| kill.restart && kill.id == container.id)
                }
            }
        };
        let running = status.maybe_running_containers();
        running.filter(is_restarted).collect()
    }

    /// Whether a container is started.
    pub fn starts_something(&self) -> bool {
        !(self.ephemeral_containers_to_start.is_empty()
            && self.init_containers_to_start.is_empty()
            && self.containers_to_start.is_empty())
    }

    fn start_nothing(&mut self) {
        self.ephemeral_containers_to_start.clear();
        self.init_containers_to_start.clear();
        self.containers_to_start.clear();
    }
}

/// Computes the actions for a pod. Pure: equal inputs give equal actions.
pub fn compute_pod_actions(inputs: &PodActionInputs<'_>) -> PodActions {
    let mut actions = sandbox::check(inputs);
    if inputs.facts.terminal {
        let active = inputs.status.may_be_running();
        actions.kill_pod = active.then_some(KillPodReason::Terminal);
        return actions;
    }
    match actions.sandbox_change {
        Some(change) => sandbox::replace(inputs, change, &mut actions),
        None => {
            actions.reset = restart_all::compute(inputs);
            if actions.reset.is_some() {
                return actions;
            }
            regular::compute_ephemeral(inputs, &mut actions);
            if init::compute(inputs, &mut actions) {
                regular::compute(inputs, &mut actions);
            }
            if actions.kill_pod.is_none() {
                resize::compute(inputs, &mut actions);
            }
        }
    }
    let only_kills = actions.kill_pod.is_some() && !actions.create_sandbox;
    if only_kills || inputs.pod.is_being_deleted() {
        actions.start_nothing();
        actions.containers_to_kill.iter_mut().for_each(|kill| kill.restart = false);
    }
    actions
}
