//! The memory manager of a node. Pure.

use super::policy::{self, StaticMemoryPolicy};
use super::reusable::{ReusableMemory, ended_before, is_regular_init};
use super::{MemoryBlock, MemoryBytes, MemoryState, hints, pod_level as parts, requests};
use crate::model::{Pod, PodExt};
use crate::resources::checkpoint::release;
use crate::resources::requests::has_pod_level;
use crate::resources::topology::{
    HintProvider, NumaMask, ResourceHints, TopologyError, TopologyHint,
};
use crate::resources::{AllocationCounters, pod_level};
use k8s_openapi::api::core::v1::Container;
use std::collections::{BTreeMap, BTreeSet};

/// Counters since the kubelet started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Containers of Guaranteed pods.
    pub requests: u64,
    /// Containers that did not get their memory.
    pub errors: u64,
    /// Allocations for containers and for pods.
    pub allocations: AllocationCounters,
}

/// Assigns memory by NUMA node; without the Static policy it does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryManager {
    is_on: bool,
    /// Whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pod_level: bool,
    state: MemoryState,
    reusable: ReusableMemory,
    /// Counters for metrics.
    pub counters: MemoryCounters,
}

impl MemoryManager {
    /// A manager with a policy, and the state of an earlier kubelet if there is one.
    ///
    /// # Errors
    /// The state does not match the machine; texts as upstream's.
    pub fn new(policy: &StaticMemoryPolicy, mut state: MemoryState) -> Result<Self, String> {
        policy.start(&mut state)?;
        Ok(Self { is_on: true, state, ..Self::default() })
    }

    /// Sets whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pub fn with_pod_level(self, pod_level: bool) -> Self {
        Self { pod_level, ..self }
    }

    /// Whether the policy is Static.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The name of the policy in the configuration.
    pub fn policy_name(&self) -> &'static str {
        if self.is_on { "Static" } else { "None" }
    }

    /// The memory of NUMA nodes, and its assignments.
    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// The allocatable memory of each NUMA node.
    pub fn allocatable(&self) -> Vec<MemoryBlock> {
        let nodes = self.state.nodes.iter();
        let tables = nodes.flat_map(|(node, memory)| {
            let tables = memory.memory_map.iter();
            tables.map(move |(resource, table)| (*node, resource, table.allocatable))
        });
        let tables = tables.filter(|(_, _, size)| *size > 0);
        tables
            .map(|(node, resource, size)| MemoryBlock {
                nodes: vec![node],
                resource: resource.clone(),
                size,
            })
            .collect()
    }

    /// The NUMA nodes of a container's memory, in the kernel's list format.
    pub fn nodes(&self, pod: &str, container: &str) -> Option<String> {
        let blocks = self.state.assigned.get(pod)?.get(container)?;
        let nodes: BTreeSet<u32> = blocks.iter().flat_map(|block| &block.nodes).copied().collect();
        let nodes: Vec<_> = nodes.iter().map(u32::to_string).collect();
        Some(nodes.join(",")).filter(|list| !list.is_empty())
    }

    /// Releases the memory of containers for which `keep` returns false; returns whether there was any. That of a whole
    /// pod is released with its last container.
    pub fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) -> bool {
        let released = release(&mut self.state.assigned, keep);
        let state = &mut self.state;
        let of_containers = released.iter().filter(|(pod, _, _)| !state.pods.contains_key(pod));
        for block in of_containers.flat_map(|(_, _, blocks)| blocks) {
            policy::release(&mut state.nodes, block);
        }
        let ended = state.pods.extract_if(.., |pod, _| !state.assigned.contains_key(pod));
        for block in ended.flat_map(|(_, blocks)| blocks) {
            policy::release(&mut state.nodes, &block);
        }
        self.reusable.clear_unless(|pod| self.state.assigned.contains_key(pod));
        !released.is_empty()
    }

    /// Releases the memory of init containers that have exited before this container is created. Returns whether there
    /// was any. Memory of a whole pod stays reserved for it.
    pub fn release_ended_init_containers(&mut self, pod: &Pod, container: &str) -> bool {
        let uid = pod.uid();
        if self.state.pods.contains_key(uid.as_str()) {
            return false;
        }
        let ended: BTreeSet<_> = ended_before(pod, container).map(|init| &*init.name).collect();
        !ended.is_empty()
            && self.retain(|other, name| other != uid.as_str() || !ended.contains(name))
    }

    /// Releases the memory of a pod that does not run, if its requests have changed since it was assigned: then it
    /// belongs to another pod with the same UID. Init containers are not compared, because memory that later containers
    /// reuse is no longer assigned to them.
    pub fn release_if_changed(&mut self, pod: &Pod) {
        let uid = pod.uid();
        let is_same = |container: &Container| {
            let requested = requests::of_container(pod, container);
            match self.blocks(pod, &container.name) {
                None => requested.is_empty(),
                Some(blocks) => requested.is_empty() || sizes(blocks) == requested,
            }
        };
        let same = match self.state.pods.get(uid.as_str()) {
            Some(blocks) => {
                let containers = || pod.init_containers().iter().chain(pod.containers());
                let parts = self.state.assigned.get(uid.as_str());
                let has_part = |container: &Container| {
                    parts.is_some_and(|parts| parts.contains_key(&container.name))
                };
                sizes(blocks) == requests::of_pod(pod)
                    && parts.map_or(0, BTreeMap::len) == containers().count()
                    && containers().all(|container| has_part(container) && is_same(container))
            }
            None => pod.containers().iter().all(is_same),
        };
        let has_some = self.state.assigned.contains_key(uid.as_str());
        if has_some && !(same && self.is_managed(pod)) {
            self.retain(|other, _| other != uid.as_str());
        }
    }

    fn is_managed(&self, pod: &Pod) -> bool {
        self.is_on && pod_level::is_managed(pod, self.pod_level)
    }

    fn blocks(&self, pod: &Pod, container: &str) -> Option<&Vec<MemoryBlock>> {
        self.state.assigned.get(pod.uid().as_str())?.get(container)
    }

    fn allocate_blocks(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: TopologyHint,
    ) -> Result<(), String> {
        if let Some(blocks) = self.blocks(pod, &container.name).cloned() {
            self.reusable.update(pod, container, &blocks);
            return Ok(());
        }
        let requested = requests::of_container(pod, container);
        // The container shares the memory of its pod; shared memory is not aligned.
        if requested.is_empty() {
            return Ok(());
        }
        let reusable = |mask, resource: &str| self.reusable.bytes(pod, mask, resource);
        let mask = StaticMemoryPolicy::nodes_for(&self.state, &requested, affinity, reusable)?;
        let mut blocks = Vec::new();
        for (resource, size) in requested {
            let reused = self.reusable.bytes(pod, mask, &resource);
            let block = MemoryBlock { nodes: mask.nodes().collect(), resource, size };
            policy::reserve(&mut self.state.nodes, &block, size.saturating_sub(reused));
            blocks.push(block);
            self.counters.allocations.by_node += 1;
        }
        self.counters.allocations.node_exclusive += 1;
        self.reusable.update(pod, container, &blocks);
        self.shrink_init_containers(pod, &container.name, &blocks);
        let containers = self.state.assigned.entry(pod.uid().to_string()).or_default();
        containers.insert(container.name.clone(), blocks);
        Ok(())
    }

    fn allocate_all(&mut self, pod: &Pod, affinity: TopologyHint) -> Result<(), TopologyError> {
        let total = requests::of_pod(pod);
        parts::check(pod, &total)?;
        let mask = StaticMemoryPolicy::nodes_for(&self.state, &total, affinity, |_, _| 0)
            .map_err(TopologyError::unexpected)?;
        let blocks = parts::blocks(&total, mask);
        for block in &blocks {
            policy::reserve(&mut self.state.nodes, block, block.size);
        }
        let counters = &mut self.counters.allocations;
        let earlier = counters.pod_exclusive;
        let parts = parts::divide(pod, &total, counters).into_iter();
        self.counters.requests += counters.pod_exclusive - earlier;
        // As upstream, init containers that share are counted as well.
        let init = pod.init_containers().iter();
        let shared = init.filter(|init| requests::of_container(pod, init).is_empty());
        self.counters.requests += u64::try_from(shared.count()).unwrap_or(u64::MAX);
        let parts = parts.map(|(name, bytes)| (name, parts::blocks(&bytes, mask)));
        let uid = pod.uid().to_string();
        self.state.assigned.insert(uid.clone(), parts.collect());
        self.state.pods.insert(uid, blocks);
        Ok(())
    }

    /// Removes memory that a container reuses from the assignments of init containers, so that the assignments of the
    /// pod add up to the reserved memory.
    fn shrink_init_containers(&mut self, pod: &Pod, container: &str, blocks: &[MemoryBlock]) {
        let uid = pod.uid();
        let Some(containers) = self.state.assigned.get_mut(uid.as_str()) else {
            return;
        };
        for block in blocks {
            let mut left = block.size;
            for init in ended_before(pod, container) {
                let own = containers.get_mut(&init.name).into_iter().flatten();
                let alike = |own: &&mut MemoryBlock| {
                    own.resource == block.resource && own.nodes == block.nodes
                };
                for own in own.filter(alike) {
                    let used = own.size.min(left);
                    own.size -= used;
                    left -= used;
                }
            }
        }
    }

    fn calculate(&self, pod: &Pod, requested: &MemoryBytes) -> ResourceHints {
        let reusable = |mask, resource: &str| self.reusable.bytes(pod, mask, resource);
        let found = hints::hints(&self.state.nodes, requested, reusable);
        // If no nodes are suitable, upstream returns no hints, and the allocation fails with the reason.
        let resources = requested.keys().filter(|_| !found.is_empty());
        resources.map(|name| (name.clone(), found.clone())).collect()
    }

    /// Whether an init container exited before this kubelet started: then regular containers of the pod have memory and
    /// it has none.
    fn has_ended(&self, pod: &Pod, container: &Container) -> bool {
        let has_blocks = |name: &str| self.blocks(pod, name).is_some();
        is_regular_init(pod, &container.name)
            && !has_blocks(&container.name)
            && pod.containers().iter().any(|main| has_blocks(&main.name))
    }
}

fn sizes(blocks: &[MemoryBlock]) -> MemoryBytes {
    let sizes = blocks.iter();
    sizes.map(|block| (block.resource.clone(), block.size)).collect()
}

/// The hints for memory that is already assigned; none if the request has changed.
fn regenerate_hints(blocks: &[MemoryBlock], requested: &MemoryBytes) -> ResourceHints {
    let fits = |block: &MemoryBlock| requested.get(&block.resource) == Some(&block.size);
    if blocks.len() != requested.len() || !blocks.iter().all(fits) {
        return ResourceHints::new();
    }
    let hint = |block: &MemoryBlock| {
        let mask = NumaMask::of(block.nodes.iter().copied())?;
        Some((block.resource.clone(), vec![TopologyHint::new(mask, true)]))
    };
    blocks.iter().filter_map(hint).collect()
}

impl HintProvider for MemoryManager {
    fn container_hints(&self, pod: &Pod, container: &Container) -> ResourceHints {
        if !self.is_managed(pod) || self.has_ended(pod, container) {
            return ResourceHints::new();
        }
        let requested = requests::of_container(pod, container);
        match self.blocks(pod, &container.name) {
            Some(blocks) => regenerate_hints(blocks, &requested),
            None => self.calculate(pod, &requested),
        }
    }

    fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        if !self.is_managed(pod) {
            return ResourceHints::new();
        }
        let requested = requests::of_pod(pod);
        if has_pod_level(pod) {
            return match self.state.pods.get(pod.uid().as_str()) {
                Some(blocks) => regenerate_hints(blocks, &sizes(blocks)),
                // What an earlier kubelet allocated for containers is kept.
                None if self.state.assigned.contains_key(pod.uid().as_str()) => {
                    ResourceHints::new()
                }
                None if parts::check(pod, &requested).is_err() => {
                    requested.into_keys().map(|name| (name, Vec::new())).collect()
                }
                None => self.calculate(pod, &requested),
            };
        }
        let mut containers = pod.init_containers().iter().chain(pod.containers());
        let blocks = containers.find_map(|container| self.blocks(pod, &container.name));
        match blocks {
            Some(blocks) => regenerate_hints(blocks, &requested),
            None => self.calculate(pod, &requested),
        }
    }

    fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError> {
        if !self.is_managed(pod) || self.has_ended(pod, container) {
            return Ok(());
        }
        self.counters.requests += 1;
        let allocated = self.allocate_blocks(pod, container, affinity);
        if allocated.is_err() {
            self.counters.errors += 1;
            self.counters.allocations.node_errors += 1;
        }
        allocated.map_err(TopologyError::unexpected)
    }

    fn allocate_pod(&mut self, pod: &Pod, affinity: TopologyHint) -> Result<(), TopologyError> {
        if !self.is_managed(pod) || self.state.assigned.contains_key(pod.uid().as_str()) {
            return Ok(());
        }
        self.counters.requests += 1;
        let allocated = self.allocate_all(pod, affinity);
        if allocated.is_err() {
            self.counters.errors += 1;
            self.counters.allocations.pod_errors += 1;
        }
        allocated
    }
}
