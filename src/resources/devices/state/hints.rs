//! NUMA hints for the devices of containers. Pure.

use super::{DeviceManagerCache, PluginDevice};
use crate::model::Pod;
use crate::resources::devices::allocation::Allocation;
use crate::resources::devices::request::{Affinities, DeviceRequest, DeviceUse, PodRequest};
use crate::resources::topology::{
    HintProvider, NumaMask, ResourceHints, TopologyError, TopologyHint, subsets,
};
use k8s_openapi::api::core::v1::Container;
use std::collections::{BTreeMap, BTreeSet};

/// The hint provider for devices. Allocates in a copy of the state.
#[derive(Clone, Debug, Default)]
pub struct DeviceHints {
    state: DeviceManagerCache,
    /// The NUMA nodes of the machine.
    nodes: NumaMask,
    affinities: Affinities,
}

impl DeviceHints {
    /// Builds the provider for a machine with these NUMA nodes.
    pub fn new(state: DeviceManagerCache, nodes: NumaMask) -> Self {
        Self { state, nodes, affinities: Affinities::new() }
    }

    /// The NUMA affinities with which containers were allocated.
    pub fn into_affinities(self) -> Affinities {
        self.affinities
    }
}

impl HintProvider for DeviceHints {
    fn container_hints(&self, pod: &Pod, container: &Container) -> ResourceHints {
        let request = PodRequest::of(pod);
        let mut all = request.containers.iter();
        let Some(own) = all.find(|own| own.name == container.name) else {
            return ResourceHints::new();
        };
        let amounts = own.amounts.iter();
        let amounts = amounts.filter(|(resource, _)| self.state.is_device_resource(resource));
        let hints = amounts.map(|(resource, amount)| {
            let allocated = self.state.allocation(&request.uid, &own.name, resource);
            let allocated = allocated.map(Allocation::ids);
            let reusable = self.state.reusable(&request, own, resource);
            let hints = self.hints(resource, *amount, allocated, reusable);
            (resource.clone(), hints)
        });
        hints.collect()
    }

    fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        let request = PodRequest::of(pod);
        let amounts = of_pod(&request.containers).into_iter();
        let amounts = amounts.filter(|(resource, _)| self.state.is_device_resource(resource));
        let hints = amounts.map(|(resource, amount)| {
            let names = request.containers.iter().map(|own| own.name.as_str());
            let allocated = names.filter_map(|name| {
                let own = self.state.allocation(&request.uid, name, resource)?;
                Some(own.ids())
            });
            let allocated: BTreeSet<&String> = allocated.flatten().collect();
            let allocated = Some(allocated).filter(|ids| !ids.is_empty());
            let hints = self.hints(resource, amount, allocated, BTreeSet::new());
            (resource.to_owned(), hints)
        });
        hints.collect()
    }

    fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError> {
        if let Some(nodes) = affinity.affinity {
            self.affinities.insert(container.name.clone(), nodes);
        }
        let request = PodRequest::of(pod).aligned(&self.affinities);
        self.state.simulate_allocation(&request, &container.name);
        Ok(())
    }
}

impl DeviceHints {
    /// Hints for every set of NUMA nodes that has enough devices: of the `allocated` ones, or else of free ones and all
    /// `reusable` ones. Upstream's `generateDeviceTopologyHints`.
    fn hints(
        &self,
        resource: &str,
        amount: u64,
        allocated: Option<BTreeSet<&String>>,
        reusable: BTreeSet<&String>,
    ) -> Vec<TopologyHint> {
        let amount = usize::try_from(amount).unwrap_or(usize::MAX);
        let Some(known) = self.state.resources.get(resource) else {
            return vec![TopologyHint::ANY];
        };
        if known.devices.values().all(|device| device.numa_nodes.is_empty()) {
            return vec![TopologyHint::ANY];
        }
        let is_allocated = allocated.is_some();
        let (available, reusable) = if let Some(allocated) = allocated {
            (allocated, BTreeSet::new())
        } else {
            let taken = self.state.taken(resource);
            let free = known.healthy().difference(&taken).copied().collect();
            (free, reusable)
        };
        let number = available.union(&reusable).count();
        // As upstream: an existing allocation is not extended, so a changed number fits on no node.
        if number < amount || is_allocated && number != amount {
            return Vec::new();
        }
        let mut groups = BTreeMap::<NumaMask, DeviceGroup>::new();
        for (id, device) in &*known.devices {
            let group = groups.entry(mask_of(device)).or_default();
            group.all += 1;
            group.usable += usize::from(available.contains(id) || reusable.contains(id));
            group.has_reusable |= reusable.contains(id);
        }
        let nodes = self.nodes_of(&groups);
        let mut min_size = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut found = Vec::new();
        for mask in subsets(&nodes) {
            let near = |group: &NumaMask| !group.intersection(mask).is_empty();
            let of_mask = groups.iter().filter(|(group, _)| near(group));
            if of_mask.clone().map(|(_, group)| group.all).sum::<usize>() >= amount {
                min_size = min_size.min(mask.count());
            }
            let mut placed = groups.iter();
            let is_elsewhere = |(nodes, group): (&NumaMask, &DeviceGroup)| {
                group.has_reusable && !nodes.is_empty() && !near(nodes)
            };
            if !placed.any(is_elsewhere)
                && of_mask.map(|(_, group)| group.usable).sum::<usize>() >= amount
            {
                found.push(mask);
            }
        }
        let found = found.into_iter();
        found.map(|mask| TopologyHint::new(mask, mask.count() == min_size)).collect()
    }

    /// The NUMA nodes of the machine that have devices; all nodes if no device has an affinity.
    fn nodes_of(&self, groups: &BTreeMap<NumaMask, DeviceGroup>) -> Vec<u32> {
        let is_near = |node: &u32| groups.keys().any(|group| group.contains(*node));
        let known: Vec<u32> = self.nodes.nodes().filter(is_near).collect();
        if known.is_empty() { self.nodes.nodes().collect() } else { known }
    }
}

/// Devices with the same NUMA affinity. Grouped, because many devices have few distinct affinities.
#[derive(Default)]
struct DeviceGroup {
    all: usize,
    /// Number of devices that the container could get.
    usable: usize,
    /// Whether the group has a device that has to be reused.
    has_reusable: bool,
}

/// The NUMA nodes of a device; invalid ones are ignored.
fn mask_of(device: &PluginDevice) -> NumaMask {
    let nodes = device.numa_nodes.iter();
    let nodes = nodes.filter_map(|node| u32::try_from(*node).ok());
    NumaMask::of(nodes.filter(|node| *node < NumaMask::LIMIT)).unwrap_or_default()
}

/// Maximum number of devices of each resource that a pod needs at the same time: for its regular containers and
/// sidecars, or for an init container and the sidecars before it.
fn of_pod(containers: &[DeviceRequest]) -> BTreeMap<&str, u64> {
    let mut kept = BTreeMap::<&str, u64>::new();
    let mut peak = BTreeMap::<&str, u64>::new();
    for container in containers {
        for (resource, amount) in &container.amounts {
            let kept = kept.entry(resource).or_default();
            let concurrent = kept.saturating_add(*amount);
            if container.kind == DeviceUse::Kept {
                *kept = concurrent;
            }
            let peak = peak.entry(resource).or_default();
            *peak = concurrent.max(*peak);
        }
    }
    peak
}
