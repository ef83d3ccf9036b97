//! The CPU manager of a node. Pure.

use super::{CpuSet, CpuState, StaticCpuPolicy, pod_level as parts, requests};
use crate::model::{Pod, PodExt, is_sidecar};
use crate::resources::checkpoint::release;
use crate::resources::requests::{CPU, has_pod_level};
use crate::resources::topology::{HintProvider, ResourceHints, TopologyError, TopologyHint};
use crate::resources::{AllocationCounters, pod_level};
use k8s_openapi::api::core::v1::Container;
use std::collections::{BTreeMap, BTreeSet};

/// Counters since the kubelet started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Containers that requested exclusive CPUs.
    pub requests: u64,
    /// Containers that requested exclusive CPUs and got none.
    pub errors: u64,
    /// Containers that got whole cores (`full-pcpus-only`).
    pub aligned_physical: u64,
    /// Containers that could not get whole cores.
    pub misaligned_physical: u64,
    /// Allocations within one last-level cache.
    pub aligned_uncore: u64,
    /// Allocations for containers and for pods.
    pub allocations: AllocationCounters,
}

/// Manages exclusive CPUs and the shared pool; without the static policy it does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuManager {
    pub(super) policy: Option<StaticCpuPolicy>,
    /// Whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pod_level: bool,
    state: CpuState,
    /// UID of a pod, and the CPUs of its init containers that its later containers may reuse.
    reusable: (String, CpuSet),
    /// Counters for metrics.
    pub counters: CpuCounters,
}

impl CpuManager {
    /// A manager with a policy, and the state of an earlier kubelet if there is one.
    ///
    /// # Errors
    /// The state does not match the machine; texts as upstream's.
    pub fn new(policy: StaticCpuPolicy, mut state: CpuState) -> Result<Self, String> {
        policy.start(&mut state)?;
        Ok(Self { policy: Some(policy), state, ..Self::default() })
    }

    /// Sets whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pub fn with_pod_level(self, pod_level: bool) -> Self {
        Self { pod_level, ..self }
    }

    /// Whether the policy is static.
    pub fn is_on(&self) -> bool {
        self.policy.is_some()
    }

    /// The name of the policy in the configuration.
    pub fn policy_name(&self) -> &'static str {
        if self.is_on() { "static" } else { "none" }
    }

    /// Exclusive and shared CPUs.
    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// The exclusive CPUs of a container.
    pub fn exclusive(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.state.assigned.get(pod)?.get(container)
    }

    /// Whether a container has CPUs that it shares with no other one.
    pub fn is_exclusive(&self, pod: &Pod, container: &Container) -> bool {
        let has_some = self.exclusive(pod.uid().as_str(), &container.name);
        has_some.is_some_and(|cpus| !cpus.is_empty())
            && (!has_pod_level(pod) || requests::of_container(pod, container) > 0)
    }

    /// Whether a pod has no CPU quota: one of its containers has exclusive CPUs, or all of them if the pod has
    /// pod-level resources.
    pub fn has_no_cpu_quota(&self, pod: &Pod) -> bool {
        let mut containers = pod.init_containers().iter().chain(pod.containers());
        if has_pod_level(pod) {
            containers.all(|container| self.is_exclusive(pod, container))
        } else {
            containers.any(|container| self.is_exclusive(pod, container))
        }
    }

    /// The CPUs that a container runs on; `None` for all.
    pub fn cpus(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.policy.as_ref()?;
        let cpus = self.exclusive(pod, container).unwrap_or(&self.state.shared);
        Some(cpus).filter(|cpus| !cpus.is_empty())
    }

    /// Shared CPUs that can become exclusive.
    pub fn available(&self) -> CpuSet {
        let available = self.policy.as_ref().map(|policy| policy.available(&self.state));
        available.unwrap_or_default()
    }

    /// All CPUs that can become exclusive.
    pub fn allocatable(&self) -> CpuSet {
        let policy = self.policy.as_ref();
        let all = policy.map(|policy| policy.topology.cpus().difference(&policy.reserved));
        all.unwrap_or_default()
    }

    /// The NUMA nodes that have CPUs.
    pub fn numa_nodes(&self) -> BTreeSet<u32> {
        let nodes = self.policy.as_ref().map(|policy| policy.topology.numa_node_ids());
        nodes.unwrap_or_default()
    }

    /// The number of exclusive CPUs on each NUMA node.
    pub fn exclusive_by_node(&self) -> BTreeMap<u32, usize> {
        let mut count = BTreeMap::new();
        let Some(policy) = &self.policy else {
            return count;
        };
        let containers = self.state.assigned.values().flat_map(BTreeMap::values);
        let all = containers.chain(self.state.pods.values());
        let cpus = all.fold(CpuSet::default(), |all, cpus| all.union(cpus));
        for node in cpus.iter().filter_map(|cpu| policy.topology.numa_node(cpu)) {
            *count.entry(node).or_default() += 1;
        }
        count
    }

    /// Releases the CPUs of containers for which `keep` is false; returns whether there were some. Those of a whole pod
    /// are released with its last container.
    pub fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) -> bool {
        let released = release(&mut self.state.assigned, keep);
        for (pod, _, cpus) in &released {
            let assigned = self.state.assigned.get(pod);
            let assigned = assigned.into_iter().flat_map(BTreeMap::values);
            let assigned = assigned.chain(self.state.pods.get(pod));
            let free = assigned.fold(cpus.clone(), |free, used| free.difference(used));
            self.state.shared = self.state.shared.union(&free);
        }
        let assigned = &self.state.assigned;
        let pods = self.state.pods.extract_if(.., |pod, _| !assigned.contains_key(pod));
        let shared = pods.fold(self.state.shared.clone(), |shared, (_, cpus)| shared.union(&cpus));
        self.state.shared = shared;
        if !self.state.assigned.contains_key(&self.reusable.0) {
            self.reusable = Default::default();
        }
        !released.is_empty()
    }

    /// Releases the CPUs of a pod that does not run, if its requests have changed since they were assigned: then they
    /// belong to another pod with the same UID.
    pub fn release_if_changed(&mut self, pod: &Pod) {
        let uid = pod.uid();
        let assigned = self.state.assigned.get(uid.as_str());
        let containers = || pod.init_containers().iter().chain(pod.containers());
        let changed = if let Some(cpus) = self.state.pods.get(uid.as_str()) {
            let part = |container: &Container| assigned?.get(&container.name);
            let differs = |container| {
                let count = self.count(pod, container);
                part(container).is_none_or(|part| count > 0 && count != part.len())
            };
            self.count_of_pod(pod) != cpus.len()
                || assigned.map_or(0, BTreeMap::len) != containers().count()
                || containers().any(differs)
        } else {
            let mut assigned = assigned.into_iter().flatten();
            assigned.any(|(name, cpus)| {
                let container = containers().find(|container| container.name == *name);
                container.is_none_or(|container| self.count(pod, container) != cpus.len())
            })
        };
        if changed {
            self.retain(|other, _| other != uid.as_str());
        }
    }

    /// Number of exclusive CPUs that a container requests.
    fn count(&self, pod: &Pod, container: &Container) -> usize {
        if pod_level::is_managed(pod, self.pod_level) {
            requests::of_container(pod, container)
        } else {
            0
        }
    }

    /// Number of exclusive CPUs that a pod requests.
    fn count_of_pod(&self, pod: &Pod) -> usize {
        if pod_level::is_managed(pod, self.pod_level) { requests::of_pod(pod) } else { 0 }
    }

    /// The exclusive CPUs of a pod and its containers; `None` if it has none.
    fn assigned_cpus(&self, pod: &str) -> Option<CpuSet> {
        let containers = self.state.assigned.get(pod)?.values();
        let assigned = containers.chain(self.state.pods.get(pod));
        Some(assigned.fold(CpuSet::default(), |all, cpus| all.union(cpus)))
    }

    /// CPUs of the pod's init containers that its next container may reuse.
    fn reusable(&self, pod: &str) -> CpuSet {
        let (owner, cpus) = &self.reusable;
        let own = Some(cpus).filter(|_| owner == pod);
        own.cloned().unwrap_or_default()
    }

    /// Records the CPUs of a container. Those of an init container can be reused by later containers.
    fn update_cpus_to_reuse(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let uid = pod.uid().to_string();
        let reusable = self.reusable(&uid);
        let mut init = pod.init_containers().iter();
        let ends = init.any(|init| init.name == container.name && !is_sidecar(init));
        let reusable = if ends { reusable.union(cpus) } else { reusable.difference(cpus) };
        self.reusable = (uid, reusable);
    }

    fn allocate_exclusive(
        &mut self,
        pod: &Pod,
        container: &Container,
        count: usize,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError> {
        let Some(policy) = &self.policy else {
            return Ok(());
        };
        let uid = pod.uid().to_string();
        if let Some(cpus) = self.exclusive(&uid, &container.name).cloned() {
            self.update_cpus_to_reuse(pod, container, &cpus);
            return Ok(());
        }
        let reusable = self.reusable(&uid);
        policy.check_cores(&self.state, count)?;
        let allocated = policy.allocate(&mut self.state, count, affinity.affinity, &reusable);
        let cpus = allocated.map_err(TopologyError::unexpected)?;
        if policy.topology.share_uncore(&cpus) {
            self.counters.aligned_uncore += 1;
        }
        self.update_cpus_to_reuse(pod, container, &cpus);
        let containers = self.state.assigned.entry(uid).or_default();
        containers.insert(container.name.clone(), cpus);
        self.counters.allocations.by_node += 1;
        self.counters.allocations.node_exclusive += 1;
        Ok(())
    }

    fn allocate_all(
        &mut self,
        pod: &Pod,
        count: usize,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError> {
        let Some(policy) = &self.policy else {
            return Ok(());
        };
        parts::check(pod, count)?;
        policy.check_cores(&self.state, count)?;
        let none = CpuSet::default();
        let allocated = policy.allocate(&mut self.state, count, affinity.affinity, &none);
        let cpus = allocated.map_err(TopologyError::unexpected)?;
        let counters = &mut self.counters.allocations;
        let earlier = counters.pod_exclusive;
        let divided = parts::divide(policy, pod, &cpus, counters);
        self.counters.requests += counters.pod_exclusive - earlier;
        let containers = divided.map_err(TopologyError::unexpected)?;
        self.counters.aligned_uncore += u64::from(policy.topology.share_uncore(&cpus));
        let uid = pod.uid().to_string();
        self.state.assigned.insert(uid.clone(), containers);
        self.state.pods.insert(uid, cpus);
        Ok(())
    }
}

fn hints(list: Vec<TopologyHint>) -> ResourceHints {
    ResourceHints::from([(CPU.to_owned(), list)])
}

impl HintProvider for CpuManager {
    fn container_hints(&self, pod: &Pod, container: &Container) -> ResourceHints {
        let count = self.count(pod, container);
        let Some(policy) = self.policy.as_ref().filter(|_| count > 0) else {
            return ResourceHints::new();
        };
        let uid = pod.uid().to_string();
        match self.exclusive(&uid, &container.name) {
            Some(cpus) if cpus.len() != count => hints(Vec::new()),
            Some(cpus) => hints(policy.hints(cpus, &CpuSet::default(), count)),
            None => {
                let available = policy.available(&self.state);
                hints(policy.hints(&available, &self.reusable(&uid), count))
            }
        }
    }

    fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        let count = self.count_of_pod(pod);
        let Some(policy) = self.policy.as_ref().filter(|_| count > 0) else {
            return ResourceHints::new();
        };
        let uid = pod.uid().to_string();
        if has_pod_level(pod) {
            let none = CpuSet::default();
            return hints(match self.assigned_cpus(&uid) {
                Some(cpus) => policy.hints(&cpus, &none, cpus.len()),
                None if parts::check(pod, count).is_err() => Vec::new(),
                None => policy.hints(&policy.available(&self.state), &none, count),
            });
        }
        let mut assigned = CpuSet::default();
        for container in pod.init_containers().iter().chain(pod.containers()) {
            if let Some(cpus) = self.exclusive(&uid, &container.name) {
                if cpus.len() != requests::of_container(pod, container) {
                    return hints(Vec::new());
                }
                assigned = assigned.union(cpus);
            }
        }
        if assigned.len() == count {
            return hints(policy.hints(&assigned, &CpuSet::default(), count));
        }
        let reusable = self.reusable(&uid).union(&assigned);
        hints(policy.hints(&policy.available(&self.state), &reusable, count))
    }

    fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError> {
        let count = self.count(pod, container);
        let Some(policy) = self.policy.as_ref().filter(|_| count > 0) else {
            return Ok(());
        };
        let whole_cores = u64::from(policy.options.full_pcpus_only);
        self.counters.requests += 1;
        let allocated = self.allocate_exclusive(pod, container, count, affinity);
        if allocated.is_ok() {
            self.counters.aligned_physical += whole_cores;
        } else {
            self.counters.errors += 1;
            self.counters.allocations.node_errors += 1;
            self.counters.misaligned_physical += whole_cores;
        }
        allocated
    }

    fn allocate_pod(&mut self, pod: &Pod, affinity: TopologyHint) -> Result<(), TopologyError> {
        let count = self.count_of_pod(pod);
        if count == 0 || self.assigned_cpus(pod.uid().as_str()).is_some() {
            return Ok(());
        }
        let allocated = self.allocate_all(pod, count, affinity);
        if allocated.is_err() {
            self.counters.errors += 1;
            self.counters.allocations.pod_errors += 1;
        }
        allocated
    }
}
