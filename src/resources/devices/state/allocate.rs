//! Selects the devices for containers. Pure.

use super::{DeviceManagerCache, DeviceResource, PluginId, ResourcePlugin};
use crate::model::PodUid;
use crate::resources::devices::allocation::{Allocation, NO_NUMA_NODE};
use crate::resources::devices::checkpoint::DevicesPerNuma;
use crate::resources::devices::error::DeviceAllocationError;
use crate::resources::devices::request::{DeviceRequest, DeviceUse, PodRequest};
use crate::resources::topology::NumaMask;
use std::collections::BTreeSet;

/// The next step of an allocation.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocationStep {
    /// The pod has all of its devices.
    Done,
    /// Call `GetPreferredAllocation` of the plugin.
    GetPreferred(PreferredAllocationQuery),
    /// Call `Allocate` of the plugin for these devices, which are reserved.
    Allocate(DeviceReservation),
}

/// A call of `GetPreferredAllocation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredAllocationQuery {
    /// The registration of the plugin.
    pub plugin: PluginId,
    /// IDs of the devices to choose from.
    pub available: Vec<String>,
    /// IDs of devices that have to be chosen.
    pub must_include: Vec<String>,
    /// Number of devices to choose.
    pub size: u64,
}

/// Devices that are reserved for a container until the plugin responds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct DeviceReservation {
    /// The registration of the plugin.
    pub plugin: PluginId,
    pub pod: PodUid,
    pub container: String,
    pub resource: String,
    pub devices: Vec<String>,
    /// Compared with [`Allocation::ticket`] when the plugin responds.
    pub ticket: u64,
}

impl DeviceManagerCache {
    /// Returns the next step for a pod, or for one container of it, and reserves missing devices. `preferred` is the
    /// response to the previous [`AllocationStep::GetPreferred`].
    ///
    /// # Errors
    /// A container cannot have its devices.
    pub fn next(
        &mut self,
        request: &PodRequest,
        only: Option<&str>,
        preferred: Option<&[String]>,
    ) -> Result<AllocationStep, DeviceAllocationError> {
        for container in &request.containers {
            if only.is_some_and(|only| only != container.name) {
                continue;
            }
            for (resource, amount) in &container.amounts {
                let step = self.next_of(request, container, resource, *amount, preferred)?;
                if step != AllocationStep::Done {
                    return Ok(step);
                }
            }
        }
        Ok(AllocationStep::Done)
    }

    fn next_of(
        &mut self,
        request: &PodRequest,
        container: &DeviceRequest,
        resource: &str,
        amount: u64,
        preferred: Option<&[String]>,
    ) -> Result<AllocationStep, DeviceAllocationError> {
        let own = self.allocation(&request.uid, &container.name, resource);
        let has = own.map(|own| own.ids().into_iter().cloned().collect::<BTreeSet<_>>());
        let responded = own.is_some_and(|own| own.response.is_some());
        if has.is_none() {
            self.check_unknown(resource)?;
            if !self.is_device_resource(resource) {
                return Ok(AllocationStep::Done);
            }
        }
        if let Some(has) = &has
            && u64::try_from(has.len()) != Ok(amount)
        {
            return Err(DeviceAllocationError::Changed {
                pod: request.uid.to_string(),
                container: container.name.clone(),
                resource: resource.into(),
                from: has.len(),
                to: amount,
            });
        }
        let plugin = self.usable_plugin(resource, has.as_ref())?;
        if has.is_some() && responded {
            return Ok(AllocationStep::Done);
        }
        let devices = match has {
            // Without a plugin response, the plugin is called again for the same devices.
            Some(has) => has.into_iter().collect(),
            None => match self.choose(request, container, resource, amount, preferred)? {
                DeviceChoice::Devices(devices) => devices,
                DeviceChoice::Preferred(preference) => {
                    return Ok(AllocationStep::GetPreferred(preference));
                }
            },
        };
        Ok(AllocationStep::Allocate(self.reserve(plugin, request, container, resource, devices)))
    }

    /// The plugin of a resource, if all devices in `has` are healthy.
    fn usable_plugin(
        &self,
        resource: &str,
        has: Option<&BTreeSet<String>>,
    ) -> Result<PluginId, DeviceAllocationError> {
        let name = || resource.to_owned();
        let Some(known) = self.resources.get(resource) else {
            return Err(DeviceAllocationError::Unregistered(name()));
        };
        let healthy = known.healthy();
        let (ResourcePlugin::Connected { id, .. }, false) = (&known.plugin, healthy.is_empty())
        else {
            return Err(DeviceAllocationError::NoHealthy {
                resource: name(),
                disconnected: known.is_disconnected(),
            });
        };
        if has.into_iter().flatten().any(|id| !healthy.contains(id)) {
            return Err(DeviceAllocationError::NoLongerHealthy(name()));
        }
        Ok(*id)
    }

    fn choose(
        &self,
        request: &PodRequest,
        container: &DeviceRequest,
        resource: &str,
        amount: u64,
        preferred: Option<&[String]>,
    ) -> Result<DeviceChoice, DeviceAllocationError> {
        let Some(known) = self.resources.get(resource) else {
            return Err(DeviceAllocationError::Unregistered(resource.into()));
        };
        let (healthy, taken) = (known.healthy(), self.taken(resource));
        let wanted = usize::try_from(amount).unwrap_or(usize::MAX);
        // As upstream: first devices of the pod's init containers, then devices on the NUMA nodes that the topology
        // manager selected; the plugin's preference selects among the rest.
        let reusable = self.reusable(request, container, resource);
        let reusable = reusable.into_iter().filter(|id| healthy.contains(id));
        let mut chosen: Vec<String> = reusable.take(wanted).cloned().collect();
        let available: Vec<&String> = healthy.difference(&taken).copied().collect();
        let mut needed = wanted.saturating_sub(chosen.len());
        if available.len() < needed {
            return Err(DeviceAllocationError::Unavailable {
                resource: resource.into(),
                requested: needed,
                available: available.len(),
            });
        }
        let (aligned, others) = known.by_affinity(available, container.affinity);
        let candidates = if needed < aligned.len() {
            aligned
        } else {
            needed -= aligned.len();
            chosen.extend(aligned.into_iter().cloned());
            others
        };
        if let ResourcePlugin::Connected { id, options, .. } = &known.plugin
            && options.get_preferred_allocation_available
            && needed > 0
            && preferred.is_none()
        {
            return Ok(DeviceChoice::Preferred(PreferredAllocationQuery {
                plugin: *id,
                available: candidates.into_iter().chain(&chosen).cloned().collect(),
                must_include: chosen.clone(),
                size: amount,
            }));
        }
        let preferred: BTreeSet<&String> = preferred.unwrap_or_default().iter().collect();
        let (first, rest): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|id| preferred.contains(id));
        chosen.extend(first.into_iter().chain(rest).take(needed).cloned());
        Ok(DeviceChoice::Devices(chosen))
    }

    /// Whether a container lacks devices of a resource that a plugin serves.
    pub fn is_missing_devices(&self, request: &PodRequest) -> bool {
        let lacks = |container: &DeviceRequest| {
            let mut resources = container.amounts.keys();
            resources.any(|resource| {
                let own = self.allocation(&request.uid, &container.name, resource);
                own.is_none() && self.is_device_resource(resource)
            })
        };
        request.containers.iter().any(lacks)
    }

    /// Allocates devices to a container without calling its plugin, as far as enough are free.
    pub(super) fn simulate_allocation(&mut self, request: &PodRequest, name: &str) {
        let mut all = request.containers.iter();
        let Some(container) = all.find(|own| own.name == name) else {
            return;
        };
        for (resource, amount) in &container.amounts {
            if self.allocation(&request.uid, name, resource).is_some() {
                continue;
            }
            let choice = self.choose(request, container, resource, *amount, Some(&[]));
            if let Ok(DeviceChoice::Devices(devices)) = choice {
                self.reserve(0, request, container, resource, devices);
            }
        }
    }

    /// Devices of the pod's earlier init containers that no sidecar or regular container has.
    pub(super) fn reusable(
        &self,
        request: &PodRequest,
        container: &DeviceRequest,
        resource: &str,
    ) -> BTreeSet<&String> {
        let ids = |name: &str| {
            let own = self.allocation(&request.uid, name, resource);
            own.map(Allocation::ids).unwrap_or_default()
        };
        let before = request.containers.iter().take_while(|other| other.name != container.name);
        let ended = before.filter(|other| other.kind == DeviceUse::UntilExit);
        let ended: BTreeSet<&String> = ended.flat_map(|other| ids(&other.name)).collect();
        let kept = request.containers.iter().filter(|other| other.kind == DeviceUse::Kept);
        let kept: BTreeSet<&String> = kept.flat_map(|other| ids(&other.name)).collect();
        ended.difference(&kept).copied().collect()
    }

    fn reserve(
        &mut self,
        plugin: PluginId,
        request: &PodRequest,
        container: &DeviceRequest,
        resource: &str,
        devices: Vec<String>,
    ) -> DeviceReservation {
        self.last_id += 1;
        let ticket = self.last_id;
        let known = self.resources.get(resource);
        let mut per_numa = DevicesPerNuma::new();
        for id in &devices {
            let device = known.and_then(|known| known.devices.get(id));
            let nodes = device.map_or(&[][..], |device| device.numa_nodes.as_slice());
            let nodes = if nodes.is_empty() { &[NO_NUMA_NODE] } else { nodes };
            for node in nodes {
                let list = per_numa.entry(*node).or_default();
                list.get_or_insert_default().push(id.clone());
            }
        }
        let allocation =
            Allocation { devices: per_numa, response: None, undecodable: None, ticket };
        let pod = self.pods.entry(request.uid.clone()).or_default();
        let all = pod.entry(container.name.clone()).or_default();
        all.insert(resource.into(), allocation);
        DeviceReservation {
            plugin,
            pod: request.uid.clone(),
            container: container.name.clone(),
            resource: resource.into(),
            devices,
            ticket,
        }
    }
}

impl DeviceResource {
    /// Sorts devices by NUMA affinity: on the preferred nodes, on other nodes, without affinity. Upstream's
    /// `filterByAffinity`.
    fn by_affinity<'a>(
        &self,
        devices: Vec<&'a String>,
        affinity: Option<NumaMask>,
    ) -> (Vec<&'a String>, Vec<&'a String>) {
        let nodes = |id: &String| {
            let device = self.devices.get(id);
            device.map_or(&[][..], |device| device.numa_nodes.as_slice())
        };
        let is_aligned = |id: &&String| {
            let mut nodes = nodes(id).iter().filter_map(|node| u32::try_from(*node).ok());
            affinity.is_some_and(|mask| nodes.any(|node| mask.contains(node)))
        };
        let (aligned, mut others): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_aligned);
        if affinity.is_some() {
            others.sort_by_key(|id| nodes(id).is_empty());
        }
        (aligned, others)
    }
}

enum DeviceChoice {
    Devices(Vec<String>),
    Preferred(PreferredAllocationQuery),
}
