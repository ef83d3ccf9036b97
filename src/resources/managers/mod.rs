//! Runs the CPU, memory and topology managers: admission, checkpoints, and updates of running containers.
//!
//! * Owns: [`CpuManager`], [`MemoryManager`], their checkpoints, and the CPUs with which each container was last
//!   created or updated.
//! * Woken by: the admission of a pod, the creation or the resize of a container, and removed pods.
//! * Publishes: CPUs and NUMA nodes for `CreateContainer`; `UpdateContainerResources` calls for containers whose CPUs
//!   changed.
//! * Must never release the resources of a pod that may be running, or update a container whose CPUs are correct.
//! * Upstream: `cpumanager.manager`, `memorymanager.manager` and `internalContainerLifecycle`.

mod metrics;
mod open;
mod state_files;
#[cfg(test)]
pub(super) mod tests;
mod updates;

pub use metrics::ManagerMetrics;
pub use open::{ManagersConfig, NodeReserved, open, open_errors};
pub use state_files::StateFiles;

use super::cpu::{self, CpuManager, CpuSet};
use super::devices::{Affinities, DeviceHints};
use super::memory::{self, MemoryManager};
use super::topology::{
    HintProvider, NumaMask, TopologyAdmission, TopologyError, TopologyManager, TopologyPolicy,
};
use crate::base::{KeyedLock, clock};
use crate::cri::RuntimeClient;
use crate::cri::v1::{LinuxContainerResources, PodSandboxConfig};
use crate::model::{ContainerId, Pod, PodExt, PodUid};
use crate::state::pod_cache::PodCache;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedMutexGuard};

/// Dependencies of the managers.
pub struct ResourceManagerDeps {
    /// The CRI runtime service.
    pub runtime: RuntimeClient,
    /// The runtime status of pods.
    pub cache: PodCache,
    /// The checkpoint files.
    pub files: StateFiles,
    /// Metrics of the managers.
    pub metrics: ManagerMetrics,
    /// Delay before a retry after a failed update (`cpuManagerReconcilePeriod`).
    pub retry_after: Duration,
    /// Whether containers with exclusive CPUs have no CPU quota (`DisableCPUQuotaWithExclusiveCPUs`).
    pub no_cpu_quota_with_exclusive_cpus: bool,
}

/// The managers of a node; cheap to clone.
#[derive(Clone)]
pub struct ResourceManagers(Arc<ResourceManagersInner>);

struct ResourceManagersInner {
    deps: ResourceManagerDeps,
    topology: TopologyManager,
    managers: Mutex<Managers>,
    /// Held from an update of a container's CPUs until the update is recorded. Otherwise the record could be that of a call
    /// which the runtime handled before another one.
    updates: KeyedLock<ContainerId>,
    /// Serializes writes: with two at once, an older state could overwrite a newer one.
    saving: tokio::sync::Mutex<()>,
    changed: Notify,
}

#[derive(Default)]
struct Managers {
    cpu: CpuManager,
    memory: MemoryManager,
    /// Pods that this process admitted or found running, and has not released.
    tracked: HashSet<PodUid>,
    /// The CPUs with which each container was last created or updated.
    last_applied: HashMap<ContainerId, AppliedCpus>,
    /// Number of state changes.
    changes: u64,
    /// Number of changes that the checkpoint contains.
    saved_changes: u64,
}

/// Exclusive CPUs and assigned memory of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExclusiveResources {
    /// CPU numbers.
    pub cpus: Vec<i64>,
    /// Memory and huge pages by NUMA nodes.
    pub memory: Vec<memory::MemoryBlock>,
}

fn ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

/// The CPUs with which a container was created or updated; `cpus` is `None` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AppliedCpus {
    pod: PodUid,
    container: String,
    cpus: Option<CpuSet>,
}

impl Managers {
    /// Pods that have exclusive resources.
    fn pods(&self) -> HashSet<PodUid> {
        let (cpu, memory) = (&self.cpu.state().assigned, &self.memory.state().assigned);
        let pods = cpu.keys().chain(memory.keys());
        pods.map(|uid| PodUid::from(uid.as_str())).collect()
    }
}

impl ResourceManagers {
    /// Builds the managers; `cpu` and `memory` have the state of an earlier kubelet.
    pub fn new(
        topology: TopologyManager,
        cpu: CpuManager,
        memory: MemoryManager,
        deps: ResourceManagerDeps,
    ) -> Self {
        let managers = Managers {
            changes: u64::from(cpu.is_on() || memory.is_on()),
            cpu,
            memory,
            ..Managers::default()
        };
        deps.metrics.create_alignment_series(&topology);
        deps.metrics.update(&managers.cpu, &managers.memory);
        Self(Arc::new(ResourceManagersInner {
            deps,
            topology,
            managers: Mutex::new(managers),
            updates: KeyedLock::default(),
            saving: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Whether the CPU or the memory manager has a policy.
    pub fn is_on(&self) -> bool {
        let managers = self.0.managers.lock();
        managers.cpu.is_on() || managers.memory.is_on()
    }

    /// Allocates the exclusive resources of a pod, and returns the NUMA affinities for its devices. On an error nothing is
    /// allocated, and if the pod `is_running` already, its containers get the shared CPUs. An earlier allocation is
    /// kept, unless the pod is not running and its requests have changed. `devices` returns the NUMA hints of its
    /// devices.
    ///
    /// # Errors
    /// Why the pod is rejected.
    pub fn admit(
        &self,
        pod: &Pod,
        is_running: bool,
        devices: impl FnOnce(NumaMask) -> DeviceHints,
    ) -> Result<Affinities, TopologyError> {
        let inner = &self.0;
        let started_at = clock::instant();
        let mut managers = inner.managers.lock();
        let AdmissionTrial { admission, cpu, memory, devices } =
            inner.try_admit(&managers, pod, is_running, devices);
        let admitted = admission.result.is_ok();
        let changed = admitted
            && (cpu.state() != managers.cpu.state() || memory.state() != managers.memory.state());
        let was_admitted = !is_running && managers.tracked.contains(&pod.uid());
        if admitted && was_admitted && !changed {
            // The second time, after the devices were prepared; an admission is counted once.
            return Ok(devices.into_affinities());
        }
        if admitted {
            (managers.cpu, managers.memory) = (cpu, memory);
        } else {
            managers.cpu.counters = cpu.counters;
            managers.memory.counters = memory.counters;
        }
        // The CPUs of containers that an earlier kubelet created are unknown, so they are read and compared once.
        // Containers without exclusive CPUs must be moved off CPUs that are exclusive to others.
        let is_new = (admitted || is_running) && managers.tracked.insert(pod.uid());
        let found_running = is_running && is_new;
        managers.changes += u64::from(changed);
        let metrics = &inner.deps.metrics;
        metrics.update(&managers.cpu, &managers.memory);
        metrics.admitted(&inner.topology, &admission, clock::since(started_at));
        drop(managers);
        if changed || found_running {
            inner.changed.notify_one();
        }
        admission.result.map(|()| devices.into_affinities())
    }

    /// Records a pod that runs and is not admitted again because it is ending: its containers are moved off CPUs that
    /// become exclusive to others.
    pub fn mark_running(&self, pod: &Pod) {
        if self.0.managers.lock().tracked.insert(pod.uid()) {
            self.0.changed.notify_one();
        }
    }

    /// Checks whether the exclusive resources of a pod can be allocated, without allocating them. A failure is counted.
    ///
    /// # Errors
    /// Why the pod is rejected.
    pub fn check(
        &self,
        pod: &Pod,
        devices: impl FnOnce(NumaMask) -> DeviceHints,
    ) -> Result<(), TopologyError> {
        let inner = &self.0;
        let started_at = clock::instant();
        let mut managers = inner.managers.lock();
        let trial = inner.try_admit(&managers, pod, false, devices);
        let admission = trial.admission;
        if admission.result.is_err() {
            managers.cpu.counters = trial.cpu.counters;
            managers.memory.counters = trial.memory.counters;
            let metrics = &inner.deps.metrics;
            metrics.update(&managers.cpu, &managers.memory);
            metrics.admitted(&inner.topology, &admission, clock::since(started_at));
        }
        admission.result
    }

    /// Pods that have exclusive resources.
    pub fn pods(&self) -> HashSet<PodUid> {
        self.0.managers.lock().pods()
    }

    /// Whether the exclusive resources of a pod could be allocated if these pods released theirs. Allocates and counts
    /// nothing.
    pub fn could_admit_without(
        &self,
        pod: &Pod,
        leaving: &HashSet<PodUid>,
        devices: impl FnOnce(NumaMask) -> DeviceHints,
    ) -> bool {
        let managers = self.0.managers.lock();
        let mut left = Managers {
            cpu: managers.cpu.clone(),
            memory: managers.memory.clone(),
            ..Managers::default()
        };
        drop(managers);
        let stays = |pod: &str, _: &str| !leaving.contains(&PodUid::from(pod));
        left.cpu.retain(stays);
        left.memory.retain(stays);
        let trial = self.0.try_admit(&left, pod, false, devices);
        trial.admission.result.is_ok()
    }

    /// Releases the resources of pods for which `keep` returns false.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let inner = &self.0;
        let mut managers = inner.managers.lock();
        let mut gone = managers.pods();
        gone.extend(managers.tracked.iter().cloned());
        gone.retain(|uid| !keep(uid));
        if gone.is_empty() {
            return;
        }
        managers.tracked.retain(|uid| !gone.contains(uid));
        managers.last_applied.retain(|_, applied| !gone.contains(&applied.pod));
        let stays = |pod: &str, _: &str| !gone.contains(&PodUid::from(pod));
        let released = managers.cpu.retain(stays) | managers.memory.retain(stays);
        managers.changes += u64::from(released);
        inner.deps.metrics.update(&managers.cpu, &managers.memory);
        drop(managers);
        if released {
            inner.changed.notify_one();
        }
    }

    /// The exclusive resources of a container.
    pub fn exclusive(&self, uid: &PodUid, container: &str) -> ExclusiveResources {
        let managers = self.0.managers.lock();
        let cpus = managers.cpu.exclusive(uid.as_str(), container);
        let blocks = managers.memory.state().assigned.get(uid.as_str());
        let blocks = blocks.and_then(|containers| containers.get(container));
        ExclusiveResources {
            cpus: cpus.map(ids).unwrap_or_default(),
            memory: blocks.cloned().unwrap_or_default(),
        }
    }

    /// All resources of the node that can become exclusive.
    pub fn allocatable(&self) -> ExclusiveResources {
        let managers = self.0.managers.lock();
        ExclusiveResources {
            cpus: ids(&managers.cpu.allocatable()),
            memory: managers.memory.allocatable(),
        }
    }

    /// Whether the cgroup of a pod has no CPU quota: one of its containers has exclusive CPUs, or, with pod-level
    /// resources, all of them have.
    pub fn has_no_cpu_quota(&self, pod: &Pod) -> bool {
        self.0.deps.no_cpu_quota_with_exclusive_cpus
            && self.0.managers.lock().cpu.has_no_cpu_quota(pod)
    }

    /// Removes the CPU quota from the sandbox configuration of a pod without CPU quota.
    pub fn pre_create_sandbox(&self, pod: &Pod, config: &mut PodSandboxConfig) {
        let linux = config.linux.as_mut();
        if let Some(resources) = linux.and_then(|linux| linux.resources.as_mut())
            && resources.cpu_quota != 0
            && self.has_no_cpu_quota(pod)
        {
            resources.cpu_quota = -1;
        }
    }

    /// Sets CPUs and NUMA nodes in a container's configuration, and saves the checkpoint. A failed write is logged and
    /// retried by the task.
    pub async fn pre_create_container(
        &self,
        pod: &Pod,
        container: &str,
        resources: &mut LinuxContainerResources,
    ) {
        let inner = &self.0;
        {
            let mut managers = inner.managers.lock();
            managers.changes +=
                u64::from(managers.memory.release_ended_init_containers(pod, container));
            let uid = pod.uid();
            if let Some(cpus) = managers.cpu.cpus(uid.as_str(), container) {
                resources.cpuset_cpus = cpus.to_string();
            }
            if let Some(nodes) = managers.memory.nodes(uid.as_str(), container) {
                resources.cpuset_mems = nodes;
            }
            let mut containers = pod.init_containers().iter().chain(pod.containers());
            let is_exclusive = containers
                .find(|other| other.name == container)
                .is_some_and(|container| managers.cpu.is_exclusive(pod, container));
            if is_exclusive
                && inner.deps.no_cpu_quota_with_exclusive_cpus
                && resources.cpu_quota != 0
            {
                resources.cpu_quota = -1;
            }
        }
        inner.save().await;
    }

    /// Keeps other updates of a running container from being sent, until the returned guard is dropped. To be held from
    /// [`Self::pre_create_container`] until [`Self::add_container`].
    pub async fn lock_updates(&self, id: &ContainerId) -> UpdateGuard {
        UpdateGuard { lock: Some(self.0.updates.lock(id).await), managers: self.clone() }
    }

    /// Records that a container was created or updated with these CPUs.
    pub fn add_container(&self, pod: &Pod, container: &str, id: &ContainerId, cpus: &str) {
        let inner = &self.0;
        let applied = AppliedCpus {
            pod: pod.uid(),
            container: container.to_owned(),
            cpus: CpuSet::parse(cpus).ok().filter(|cpus| !cpus.is_empty()),
        };
        let mut managers = inner.managers.lock();
        if !managers.cpu.is_on() {
            return;
        }
        let is_earlier_instance =
            |other: &AppliedCpus| other.pod == applied.pod && other.container == container;
        managers.last_applied.retain(|_, other| !is_earlier_instance(other));
        let wanted = managers.cpu.cpus(applied.pod.as_str(), container);
        let is_correct = wanted.is_none() || wanted == applied.cpus.as_ref();
        managers.last_applied.insert(id.clone(), applied);
        drop(managers);
        if !is_correct {
            inner.changed.notify_one();
        }
    }
}

/// See [`ResourceManagers::lock_updates`].
pub struct UpdateGuard {
    lock: Option<OwnedMutexGuard<()>>,
    managers: ResourceManagers,
}

impl Drop for UpdateGuard {
    fn drop(&mut self) {
        // First, because the managers pass over a container that is being updated.
        self.lock.take();
        self.managers.0.changed.notify_one();
    }
}

/// An admission on copies of the managers' state.
struct AdmissionTrial {
    admission: TopologyAdmission,
    cpu: CpuManager,
    memory: MemoryManager,
    devices: DeviceHints,
}

impl ResourceManagersInner {
    /// Admits a pod on copies of the state.
    fn try_admit(
        &self,
        managers: &Managers,
        pod: &Pod,
        is_running: bool,
        devices: impl FnOnce(NumaMask) -> DeviceHints,
    ) -> AdmissionTrial {
        let (mut cpu, mut memory) = (managers.cpu.clone(), managers.memory.clone());
        if !is_running {
            cpu.release_if_changed(pod);
            memory.release_if_changed(pod);
        }
        let mut devices = self.devices(devices);
        let providers: &mut [&mut dyn HintProvider] = &mut [&mut devices, &mut cpu, &mut memory];
        let admission = self.topology.admit(pod, providers);
        AdmissionTrial { admission, cpu, memory, devices }
    }

    /// The NUMA hints of devices; empty if the topology manager has no policy.
    fn devices(&self, devices: impl FnOnce(NumaMask) -> DeviceHints) -> DeviceHints {
        if self.topology.policy() != TopologyPolicy::None {
            devices(self.topology.nodes())
        } else {
            DeviceHints::default()
        }
    }

    /// Saves the state if it changed; false on an error.
    async fn save(&self) -> bool {
        let _saving = self.saving.lock().await;
        let (files, changes) = {
            let managers = self.managers.lock();
            if managers.saved_changes == managers.changes {
                return true;
            }
            (managers.checkpoints(), managers.changes)
        };
        let saved = self.deps.files.write(files).await;
        match &saved {
            Ok(()) => self.managers.lock().saved_changes = changes,
            Err(error) => tracing::error!(err = %error, "Failed to store state to checkpoint"),
        }
        saved.is_ok()
    }
}

impl Managers {
    /// The content of the checkpoints, by file name; only of managers with a policy.
    fn checkpoints(&self) -> BTreeMap<&'static str, String> {
        let mut checkpoints = BTreeMap::new();
        let (cpu, memory) = (&self.cpu, &self.memory);
        if cpu.is_on() {
            let text = cpu::to_checkpoint(cpu.policy_name(), cpu.state());
            checkpoints.insert(cpu::STATE_FILE, text);
        }
        if memory.is_on() {
            let text = memory::to_checkpoint(memory.policy_name(), memory.state());
            checkpoints.insert(memory::STATE_FILE, text);
        }
        checkpoints
    }
}
