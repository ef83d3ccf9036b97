//! Devices of the node, and their allocation to containers. Pure.
//!
//! A device belongs to at most one pod, and there to at most one regular container or sidecar. Later containers of a
//! pod may reuse the devices of its init containers.

mod allocate;
mod gone;
mod hints;
mod unknown;
#[cfg(test)]
mod tests;

pub use allocate::{AllocationStep, DeviceReservation, PreferredAllocationQuery};
pub use hints::DeviceHints;

use super::allocation::{Allocation, PodAllocations};
use super::checkpoint::DeviceData;
use super::entries;
use super::proto::{ContainerAllocateResponse, DevicePluginOptions};
use crate::base::clock::Instant;
use crate::model::PodUid;
use crate::state::device_capacity::{Capacities, Capacity};
use gone::GoneResources;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use unknown::UnknownDevices;

/// How long a resource is kept after its plugin disconnected.
const ENDPOINT_STOP_GRACE_PERIOD: Duration = Duration::from_secs(5 * 60);
/// Maximum number of resources; a plugin may register any name.
pub(super) const MAX_RESOURCES: usize = 256;
/// Maximum number of devices of all resources together.
pub(super) const MAX_DEVICES: usize = 100_000;

/// Identifies one registration of a plugin.
pub type PluginId = u64;

/// A device as its plugin reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDevice {
    /// Whether the device is healthy.
    pub healthy: bool,
    /// NUMA nodes of the device (`TopologyInfo`).
    pub numa_nodes: Vec<i64>,
}

/// Why a plugin's device list is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// A later registration has replaced this one.
    #[error("the plugin has registered again")]
    Replaced,
    /// The list exceeds `MAX_DEVICES`.
    #[error("all plugins together would have {total} devices, more than {MAX_DEVICES}")]
    TooMany {
        /// The total number with this list.
        total: usize,
    },
}

/// Devices of one resource, by ID.
pub type DeviceMap = BTreeMap<String, PluginDevice>;

#[derive(Clone, Debug)]
enum ResourcePlugin {
    Connected {
        id: PluginId,
        options: DevicePluginOptions,
        /// Whether the plugin has sent its devices.
        listed: bool,
        /// Whether the devices are still those of the replaced plugin, until this one sends its own.
        inherited: bool,
    },
    /// The plugin disconnected, or has only registered with an earlier kubelet.
    Stopped { since: Instant, options: DevicePluginOptions },
}

#[derive(Clone, Debug)]
struct DeviceResource {
    devices: Arc<DeviceMap>,
    plugin: ResourcePlugin,
}

impl DeviceResource {
    /// IDs of healthy devices.
    fn healthy(&self) -> BTreeSet<&String> {
        let devices = self.advertised().filter(|_| !self.is_disconnected());
        devices.map(|(id, _)| id).collect()
    }

    /// Devices that count as capacity.
    fn advertised(&self) -> impl Iterator<Item = (&String, &PluginDevice)> {
        let counts = match self.plugin {
            ResourcePlugin::Connected { listed, inherited, .. } => listed || inherited,
            ResourcePlugin::Stopped { .. } => false,
        };
        let devices = self.devices.iter();
        devices.filter(move |(_, device)| counts && device.healthy)
    }

    fn is_disconnected(&self) -> bool {
        !matches!(self.plugin, ResourcePlugin::Connected { listed: true, .. })
    }
}

/// The state of the device manager.
#[derive(Clone, Debug, Default)]
pub struct DeviceManagerCache {
    resources: BTreeMap<String, DeviceResource>,
    pods: HashMap<PodUid, PodAllocations>,
    gone: GoneResources,
    unknown: Option<UnknownDevices>,
    last_id: u64,
}

impl DeviceManagerCache {
    /// Restores the state from a checkpoint: the allocations, and resources without devices until their plugins
    /// register.
    pub fn restore(data: &DeviceData, now: Instant) -> Self {
        let entries = data.pod_device_entries.as_deref().unwrap_or_default();
        let mut state = Self { pods: entries::from_checkpoint(entries), ..Self::default() };
        for name in data.registered_devices.iter().flatten().map(|(name, _)| name) {
            state.resources.insert(
                name.clone(),
                DeviceResource {
                    devices: Arc::default(),
                    plugin: ResourcePlugin::Stopped {
                        since: now,
                        options: DevicePluginOptions::default(),
                    },
                },
            );
        }
        let allocated = state.pods.values().flat_map(BTreeMap::values).flat_map(BTreeMap::keys);
        let unserved = allocated.filter(|name| !state.resources.contains_key(*name));
        for name in unserved {
            state.gone.add(name, now);
        }
        state.gone.expire(now);
        state
    }

    /// Records that the checkpoint was damaged: running containers may have unknown devices.
    pub fn mark_damaged(&mut self) {
        self.unknown = Some(UnknownDevices::default());
    }

    /// The data of the checkpoint.
    pub fn to_checkpoint(&self) -> DeviceData {
        let healthy = self.resources.iter().map(|(name, resource)| {
            let ids = resource.advertised().map(|(id, _)| id.clone()).collect();
            (name.clone(), Some(ids))
        });
        DeviceData {
            pod_device_entries: Some(entries::to_checkpoint(&self.pods)).filter(|e| !e.is_empty()),
            registered_devices: Some(healthy.collect()),
        }
    }

    // -- plugins -----------------------------------------------------------------------------------------------

    /// Whether this resource can register within `MAX_RESOURCES`.
    pub fn has_room_for(&self, resource: &str) -> bool {
        self.resources.len() < MAX_RESOURCES || self.resources.contains_key(resource)
    }

    /// Returns the ID for a new registration.
    pub fn next_plugin_id(&mut self) -> PluginId {
        self.last_id += 1;
        self.last_id
    }

    /// Records a registration, which replaces an earlier one. False if a later one exists.
    pub fn set_connected(
        &mut self,
        resource: &str,
        id: PluginId,
        options: DevicePluginOptions,
    ) -> bool {
        let before = self.resources.get(resource).map(|known| &known.plugin);
        let inherited = match before {
            Some(ResourcePlugin::Connected { id: other, .. }) if *other > id => return false,
            Some(ResourcePlugin::Connected { listed, inherited, .. }) => *listed || *inherited,
            Some(ResourcePlugin::Stopped { .. }) | None => false,
        };
        let plugin = ResourcePlugin::Connected { id, options, listed: false, inherited };
        self.gone.remove(resource);
        match self.resources.get_mut(resource) {
            Some(known) => known.plugin = plugin,
            None => {
                let devices = Arc::default();
                self.resources.insert(resource.into(), DeviceResource { devices, plugin });
            }
        }
        true
    }

    /// Records a plugin's device list. Returns the pods whose statuses change.
    ///
    /// # Errors
    /// The list is rejected.
    pub fn set_devices(
        &mut self,
        resource: &str,
        from: PluginId,
        devices: DeviceMap,
    ) -> Result<BTreeSet<PodUid>, ListError> {
        let others = self.resources.iter().filter(|(name, _)| *name != resource);
        let others = others.map(|(_, other)| other.devices.len());
        let total = others.sum::<usize>() + devices.len();
        let known = self.resources.get_mut(resource);
        let known = known.ok_or(ListError::Replaced)?;
        let ResourcePlugin::Connected { id, listed, .. } = &mut known.plugin else {
            return Err(ListError::Replaced);
        };
        if *id != from {
            return Err(ListError::Replaced);
        }
        if total > MAX_DEVICES {
            return Err(ListError::TooMany { total });
        }
        *listed = true;
        let before = std::mem::replace(&mut known.devices, Arc::new(devices));
        let devices = &known.devices;
        let is_changed = |id: &String| {
            let health = |devices: &DeviceMap| devices.get(id).map(|device| device.healthy);
            let now = health(devices);
            now.is_some() && health(&before) != now
        };
        let changed = self.pods.iter().filter(|(_, containers)| {
            let allocations = containers.values().filter_map(|all| all.get(resource));
            allocations.into_iter().any(|all| all.ids().into_iter().any(is_changed))
        });
        Ok(changed.map(|(uid, _)| uid.clone()).collect())
    }

    /// Records that a plugin disconnected; false if a later registration has replaced it.
    pub fn set_disconnected(&mut self, resource: &str, from: PluginId, now: Instant) -> bool {
        let Some(known) = self.resources.get_mut(resource) else {
            return false;
        };
        match &known.plugin {
            ResourcePlugin::Connected { id, options, .. } if *id == from => {
                let options = *options;
                known.plugin = ResourcePlugin::Stopped { since: now, options };
                true
            }
            _ => false,
        }
    }

    /// Removes resources whose plugins have been disconnected for `ENDPOINT_STOP_GRACE_PERIOD`, and forgets those that
    /// were removed long ago; returns whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let over = self.resources.iter().filter(|(_, resource)| match resource.plugin {
            ResourcePlugin::Stopped { since, .. } => {
                now.saturating_duration_since(since) > ENDPOINT_STOP_GRACE_PERIOD
            }
            ResourcePlugin::Connected { .. } => false,
        });
        let over: Vec<_> = over.map(|(name, _)| name.clone()).collect();
        for name in &over {
            self.resources.remove(name);
            self.gone.add(name, now);
        }
        let gone_changed = self.gone.expire(now);
        !over.is_empty() || gone_changed
    }

    /// Time at which the next resource is removed or forgotten.
    pub fn next_expiry(&self) -> Option<Instant> {
        let stopped = self.resources.values().filter_map(|resource| match resource.plugin {
            ResourcePlugin::Stopped { since, .. } => {
                Some(since + ENDPOINT_STOP_GRACE_PERIOD + Duration::from_millis(1))
            }
            ResourcePlugin::Connected { .. } => None,
        });
        stopped.chain(self.gone.next_expiry()).min()
    }

    /// The capacity of each resource.
    pub fn capacities(&self) -> Capacities {
        let gone = self.gone.capacities();
        let known = self.resources.iter().map(|(name, resource)| {
            let capacity = Capacity {
                capacity: resource.devices.len(),
                allocatable: resource.advertised().count(),
                is_forgotten: false,
            };
            (name.clone(), capacity)
        });
        gone.chain(known).collect()
    }

    /// Healthy devices by resource.
    pub fn allocatable(&self) -> BTreeMap<String, DeviceMap> {
        let healthy = self.resources.iter().map(|(name, resource)| {
            let devices = resource.advertised();
            let devices = devices.map(|(id, device)| (id.clone(), device.clone()));
            (name.clone(), devices.collect())
        });
        healthy.collect()
    }

    /// Whether the plugin's last list has the device as healthy. An unknown device counts as healthy.
    pub fn is_healthy(&self, resource: &str, device: &str) -> bool {
        let known = self.resources.get(resource);
        known.and_then(|known| known.devices.get(device)).is_none_or(|device| device.healthy)
    }

    // -- allocations -------------------------------------------------------------------------------------------

    /// Whether a plugin serves the resource, or did so before.
    pub fn is_device_resource(&self, resource: &str) -> bool {
        let mut all = self.pods.values().flat_map(BTreeMap::values);
        self.resources.contains_key(resource) || all.any(|all| all.contains_key(resource))
    }

    /// The allocations of a pod.
    pub fn of_pod(&self, uid: &PodUid) -> Option<&PodAllocations> {
        self.pods.get(uid)
    }

    /// Number of allocated devices by resource.
    pub fn allocated(&self) -> BTreeMap<String, i64> {
        let all = self.pods.values().flat_map(BTreeMap::values);
        let names: BTreeSet<_> = all.flat_map(BTreeMap::keys).collect();
        let count = |name: &String| i64::try_from(self.taken(name).len()).unwrap_or(i64::MAX);
        names.into_iter().map(|name| (name.clone(), count(name))).collect()
    }

    /// Pods that have devices of a resource.
    pub fn pods_using(&self, resource: &str) -> Vec<PodUid> {
        let pods = self.pods.iter();
        let pods = pods.filter(|(_, all)| all.values().any(|all| all.contains_key(resource)));
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    fn taken(&self, resource: &str) -> BTreeSet<&String> {
        let all = self.pods.values().flat_map(BTreeMap::values);
        all.filter_map(|all| all.get(resource)).flat_map(Allocation::ids).collect()
    }

    /// Records the plugin's response to `Allocate`; false if the devices were released in the meantime.
    pub fn allocate(
        &mut self,
        of: &DeviceReservation,
        response: ContainerAllocateResponse,
    ) -> bool {
        let containers = self.pods.get_mut(&of.pod);
        let all = containers.and_then(|containers| containers.get_mut(&of.container));
        match all.and_then(|all| all.get_mut(&of.resource)) {
            Some(own) if own.ticket == of.ticket => {
                own.response = Some(Arc::new(response));
                own.undecodable = None;
                true
            }
            _ => false,
        }
    }

    /// Records that `Allocate` failed, and frees the devices.
    pub fn fail_allocation(&mut self, of: &DeviceReservation) {
        let is_current = self
            .allocation(&of.pod, &of.container, &of.resource)
            .is_some_and(|own| own.ticket == of.ticket);
        let Some(containers) = self.pods.get_mut(&of.pod).filter(|_| is_current) else {
            return;
        };
        if let Some(all) = containers.get_mut(&of.container) {
            all.remove(&of.resource);
        }
        self.release_unprepared(&of.pod);
    }

    /// Frees those devices of a pod that plugins have not prepared, after its allocation failed.
    pub fn release_unprepared(&mut self, uid: &PodUid) {
        let Some(containers) = self.pods.get_mut(uid) else {
            return;
        };
        for all in containers.values_mut() {
            all.retain(|_, own| own.response.is_some() || own.ticket == 0);
        }
        containers.retain(|_, all| !all.is_empty());
        if containers.is_empty() {
            self.pods.remove(uid);
        }
    }

    /// Releases the devices of a pod; returns whether it had any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        let had = self.pods.remove(uid).is_some();
        let had_unknown = self.unknown.as_mut().is_some_and(|unknown| unknown.release(uid));
        had || had_unknown
    }

    /// Pods that have devices.
    pub fn pods(&self) -> Vec<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// The devices of one resource that are allocated to a container.
    pub fn allocation(&self, uid: &PodUid, container: &str, resource: &str) -> Option<&Allocation> {
        self.pods.get(uid)?.get(container)?.get(resource)
    }

    /// The registration of a resource's plugin, and its options. `None` if no plugin serves the resource; an ID of
    /// `None` if its plugin is disconnected.
    pub fn plugin(&self, resource: &str) -> Option<(Option<PluginId>, DevicePluginOptions)> {
        Some(match &self.resources.get(resource)?.plugin {
            ResourcePlugin::Connected { id, options, .. } => (Some(*id), *options),
            ResourcePlugin::Stopped { options, .. } => (None, *options),
        })
    }
}
